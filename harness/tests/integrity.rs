//! The integrity pass finds what it is for, on memory that is simulated down to the pattern.

mod patterns;

use allocator_core::cuda::Mismatched;
use allocator_core::{
    Device, DeviceError, DeviceInfo, Fence, Handle, Machine, MemoryInfo, SimDevice, Strategy, StreamId, Sync, Usage,
};
use harness::integrity::{Patterns, integrity};
use harness::interrupt::Interrupt;
use harness::replay::Outcome;
use patterns::{CORRUPTING, churn, toy::Toy};
use std::collections::{BTreeMap, VecDeque};

const GRAIN: u64 = 512;

/// Something queued on a stream.
enum Op {
    Fill { at: u64, size: u64, block: u64 },
    Check { at: u64, size: u64, block: u64, tag: u64 },
}

/// A simulated device with contents: which block's pattern is in every 512 bytes. What is queued on a stream happens
/// when the stream gets there.
struct Contents {
    sim: SimDevice,
    queues: BTreeMap<StreamId, VecDeque<(u64, Fence, Op)>>,
    count: u64,
    grains: BTreeMap<u64, u64>,
    found: Vec<Mismatched>,
}

impl Contents {
    fn new() -> Contents {
        let sim = SimDevice::new(1 << 30);
        Contents { sim, queues: BTreeMap::new(), count: 0, grains: BTreeMap::new(), found: Vec::new() }
    }

    fn queue(&mut self, stream: StreamId, op: Op) -> Result<(), DeviceError> {
        let fence = self.sim.fence(stream)?;
        self.count += 1;
        self.queues.entry(stream).or_default().push_back((self.count, fence, op));
        self.advance()
    }

    fn advance(&mut self) -> Result<(), DeviceError> {
        while let Some(stream) = self.next()? {
            if let Some((_, _, op)) = self.queues.get_mut(&stream).and_then(VecDeque::pop_front) {
                self.happens(op);
            }
        }
        Ok(())
    }

    /// Of what may happen now, what was queued first happens first: what one stream waits for on another was queued
    /// before. Looking takes time, in which more may get ready, so one look must agree with the next.
    fn next(&mut self) -> Result<Option<StreamId>, DeviceError> {
        let mut before = self.look()?;
        loop {
            let now = self.look()?;
            if now == before {
                return Ok(now.map(|(_, stream)| stream));
            }
            before = now;
        }
    }

    fn look(&mut self) -> Result<Option<(u64, StreamId)>, DeviceError> {
        let mut ready = None;
        for (&stream, queue) in &self.queues {
            if let Some((number, fence, _)) = queue.front()
                && ready.is_none_or(|(least, _)| *number < least)
                && self.sim.poll(*fence)?
            {
                ready = Some((*number, stream));
            }
        }
        Ok(ready)
    }

    fn happens(&mut self, op: Op) {
        match op {
            Op::Fill { at, size, block } => {
                self.grains.extend((at..at + size).step_by(GRAIN as usize).map(|grain| (grain, block)));
            }
            Op::Check { at, size, block, tag } => {
                let wrong = |grain: &u64| self.grains.get(grain) != Some(&block);
                let mut wrong = (at..at + size).step_by(GRAIN as usize).filter(wrong);
                if let Some(first) = wrong.next() {
                    let (index, words) = ((first - at) / 8, (1 + wrong.count() as u64) * GRAIN / 8);
                    let found = self.grains.get(&first).map_or(u64::MAX, |block| block << 40 | index);
                    self.found.push(Mismatched { tag, words, index, found });
                }
            }
        }
    }
}

impl Patterns for Contents {
    fn fill(&mut self, stream: StreamId, at: u64, size: u64, block: u64) -> Result<(), DeviceError> {
        self.queue(stream, Op::Fill { at, size, block })
    }

    fn check(
        &mut self,
        stream: StreamId,
        at: (u64, u64),
        block: u64,
        tag: u64,
    ) -> Result<Vec<Mismatched>, DeviceError> {
        self.queue(stream, Op::Check { at: at.0, size: at.1, block, tag })?;
        Ok(std::mem::take(&mut self.found))
    }

    fn settle(&mut self) -> Result<Vec<Mismatched>, DeviceError> {
        while self.queues.values().any(|queue| !queue.is_empty()) {
            self.sim.host_work(1_000);
            self.advance()?;
        }
        Ok(std::mem::take(&mut self.found))
    }
}

impl Device for Contents {
    fn info(&self) -> DeviceInfo {
        self.sim.info()
    }
    fn malloc(&mut self, size: u64) -> Result<u64, DeviceError> {
        self.sim.malloc(size)
    }
    fn free(&mut self, ptr: u64) -> Result<(), DeviceError> {
        self.sim.free(ptr)?;
        self.advance()
    }
    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError> {
        self.sim.reserve(size)
    }
    fn unreserve(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        self.sim.unreserve(va, size)
    }
    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        self.sim.create(size)
    }
    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        self.sim.release(handle)
    }
    fn map(&mut self, va: u64, handles: &[Handle]) -> Result<(), DeviceError> {
        self.sim.map(va, handles)
    }
    fn unmap(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        self.sim.unmap(va, size)
    }
    fn fence(&mut self, stream: StreamId) -> Result<Fence, DeviceError> {
        self.sim.fence(stream)
    }
    fn poll(&mut self, fence: Fence) -> Result<bool, DeviceError> {
        self.sim.poll(fence)
    }
    fn order_after(&mut self, stream: StreamId, fence: Fence) -> Result<(), DeviceError> {
        self.sim.order_after(stream, fence)
    }
    fn sync(&mut self, what: Sync) -> Result<(), DeviceError> {
        self.sim.sync(what)?;
        self.advance()
    }
    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        self.sim.memory_info()
    }
}

impl Machine for Contents {
    fn work(&mut self, stream: StreamId, ns: u64) -> Result<(), DeviceError> {
        self.sim.work(stream, ns)
    }
    fn host_work(&mut self, ns: u64) {
        self.sim.host_work(ns);
    }
    fn complete(&mut self, ticket: u32) {
        self.sim.complete(ticket);
    }
    fn usage(&self) -> Usage {
        self.sim.usage()
    }
}

#[test]
fn strategies_that_keep_the_rules_pass() {
    for seed in 1..4 {
        let trace = churn(seed, 3_000);
        let caching = || -> Box<dyn Strategy> {
            let device = SimDevice::new(1 << 30);
            Box::new(
                <strategy_caching::Caching as allocator_core::Configure>::new(Default::default(), &device.info())
                    .unwrap(),
            )
        };
        for mut strategy in [Box::new(Toy::new(None)) as Box<dyn Strategy>, caching()] {
            let result = integrity(&trace, strategy.as_mut(), Contents::new(), &Interrupt::default());
            assert_eq!(result.finding, None);
            assert!(result.blocks > 900 && result.checks > 900 && result.cross_checks > 300, "{result:?}");
        }
    }
}

#[test]
fn memory_with_two_owners_is_found_and_both_are_named() {
    for bug in CORRUPTING {
        let found = (1..6).find_map(|seed| {
            let result =
                integrity(&churn(seed, 3_000), &mut Toy::new(Some(bug)), Contents::new(), &Interrupt::default());
            result.finding.filter(|finding| finding.outcome == Outcome::Invalid)
        });
        let finding = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        assert!(finding.event.is_some() && finding.text.contains("bytes at 0x"), "{bug:?}: {}", finding.text);
        println!("{bug:?}: {}", finding.text);
    }
}
