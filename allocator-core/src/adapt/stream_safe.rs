//! Streams for allocators that know none.
//!
//! Many published allocators serve one stream. Here each stream gets an allocator of its own, so what was freed on a
//! stream comes after its last use there; blocks that other streams used wait until those have passed the point of the
//! free. Want of memory is everybody's: all give back what they cache, and the one that asked tries once more.
//!
//! ```text
//! stream 0 ──▶ allocator ── malloc ──▶ device       a, freed on 0 while 1 uses it, waits for a fence on 1,
//! stream 1 ──▶ allocator ── malloc ──▶              then goes back to the allocator of 0
//! ```

use crate::device::{Device, DeviceInfo, Sync};
use crate::error::{AllocError, ConfigError, DeviceError, FreeError, FreeFailure};
use crate::request::{Block, PoolId, Request, StreamId};
use crate::strategy::{Configure, Span, SpanState, Strategy};
use crate::stream_numbers::StreamNumbers;
use crate::stream_uses::StreamUses;
use serde::{Serialize, de::DeserializeOwned};

/// An allocator for one stream; [`StreamSafe`] makes a strategy of it. What it is asked for is never empty, and what it
/// gets back is live: there is nothing to check.
pub trait SingleStream: Clone + Send {
    /// The name on the command line and in results.
    const NAME: &'static str;
    /// One line for lists.
    const ABOUT: &'static str;
    /// Every parameter with its default. Field names are the parameters' names.
    type Params: Default + Serialize + DeserializeOwned;

    /// An allocator that holds nothing yet, or the parameter that makes no sense.
    fn new(params: Self::Params, device: &DeviceInfo) -> Result<Self, ConfigError>;

    /// Memory of at least `size` bytes. [`AllocError::OutOfMemory`] if there is none, without another try. After an
    /// error nothing has changed.
    fn allocate(&mut self, dev: &mut dyn Device, size: u64) -> Result<Place, AllocError>;

    /// Takes memory back. After an error it is still handed out.
    fn free(&mut self, dev: &mut dyn Device, place: Place) -> Result<(), DeviceError>;

    /// Gives free memory back to the device until at most `keep` bytes are reserved, as far as it can be given back.
    fn trim(&mut self, dev: &mut dyn Device, keep: u64) -> Result<(), DeviceError>;

    /// Bytes held from the device.
    fn reserved(&self) -> u64;

    /// Visits every span of every segment: [`SpanState::Live`] what is handed out. Streams and pools are filled in by
    /// the caller.
    fn inspect(&self, visit: &mut dyn FnMut(Span));
}

/// Memory that a [`SingleStream`] handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The address of its first byte; not 0.
    pub ptr: u64,
    /// The allocator's own key for it.
    pub key: u32,
}

/// The strategy. A block's slot is its index in `blocks`.
#[derive(Clone, Debug)]
pub struct StreamSafe<S> {
    /// What a new stream starts with.
    fresh: S,
    lanes: Vec<(StreamId, S)>,
    numbers: StreamNumbers,
    blocks: Vec<Entry>,
    vacant: Vec<u32>,
    uses: StreamUses,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    place: Place,
    /// The stream's index.
    lane: u32,
    generation: u32,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Live,
    /// Live, and used on further streams.
    Shared,
    Waiting,
    Vacant,
}

impl<S: SingleStream> StreamSafe<S> {
    /// The block's entry, or `None` if the block is not ours or not live any more.
    #[inline]
    fn find(&mut self, block: &Block) -> Option<&mut Entry> {
        let entry = self.blocks.get_mut(block.slot() as usize)?;
        let is_live = matches!(entry.state, State::Live | State::Shared);
        let is_same = entry.generation == block.generation() && entry.place.ptr == block.ptr();
        (is_live && is_same).then_some(entry)
    }

    /// The index of a stream.
    #[inline]
    fn lane(&mut self, stream: StreamId) -> u32 {
        self.numbers.get(stream).unwrap_or_else(|| {
            self.lanes.push((stream, self.fresh.clone()));
            self.numbers.add(stream)
        })
    }

    fn reserved(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.1.reserved()).sum()
    }

    /// Gives a block's memory to its allocator.
    #[inline]
    fn give_back(&mut self, dev: &mut dyn Device, slot: u32) -> Result<(), DeviceError> {
        let entry = &mut self.blocks[slot as usize];
        self.lanes[entry.lane as usize].1.free(dev, entry.place)?;
        entry.state = State::Vacant;
        self.vacant.push(slot);
        Ok(())
    }

    /// Takes those blocks back that need not wait any more.
    fn settle(&mut self, dev: &mut dyn Device, streams: usize) -> Result<(), DeviceError> {
        let polled = self.uses.poll(dev, streams);
        while let Some(slot) = self.uses.next_done() {
            self.give_back(dev, slot)?;
            self.uses.take_done();
            dev.retired(self.blocks[slot as usize].place.ptr);
        }
        polled
    }

    /// Lets every allocator give back what it can, until at most `keep` bytes are reserved.
    fn release(&mut self, dev: &mut dyn Device, keep: u64) -> Result<(), DeviceError> {
        let mut reserved = self.reserved();
        for (_, allocator) in &mut self.lanes {
            let surplus = reserved.saturating_sub(keep);
            if surplus == 0 {
                break;
            }
            let before = allocator.reserved();
            allocator.trim(dev, before.saturating_sub(surplus))?;
            reserved -= before - allocator.reserved();
        }
        Ok(())
    }

    /// Further tries: when everything that is free has gone back to the device; when the host has waited for blocks that
    /// others use, and the stream got its own; when those have gone back, too. Each only if it can help.
    #[cold]
    fn try_again(&mut self, dev: &mut dyn Device, lane: u32, size: u64) -> Result<Place, AllocError> {
        let mut answer = Err(AllocError::OutOfMemory);
        let before = self.reserved();
        self.release(dev, 0)?;
        if self.reserved() < before {
            answer = self.lanes[lane as usize].1.allocate(dev, size);
        }
        if answer == Err(AllocError::OutOfMemory) && self.uses.is_waiting() {
            dev.sync(Sync::Device)?;
            self.settle(dev, usize::MAX)?;
            answer = self.lanes[lane as usize].1.allocate(dev, size);
            if answer == Err(AllocError::OutOfMemory) {
                self.release(dev, 0)?;
                answer = self.lanes[lane as usize].1.allocate(dev, size);
            }
        }
        answer
    }
}

impl<S: SingleStream> Strategy for StreamSafe<S> {
    #[inline]
    fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        if req.pool != PoolId::DEFAULT {
            return Err(AllocError::UnknownPool);
        }
        if req.size == 0 {
            return Ok(Block::empty());
        }
        if self.uses.is_waiting() {
            self.settle(dev, StreamUses::FEW)?;
        }
        let lane = self.lane(req.stream);
        let place = match self.lanes[lane as usize].1.allocate(dev, req.size) {
            Err(AllocError::OutOfMemory) => self.try_again(dev, lane, req.size)?,
            answer => answer?,
        };
        let (slot, generation) = match self.vacant.pop() {
            Some(slot) => {
                let entry = &mut self.blocks[slot as usize];
                let generation = entry.generation.wrapping_add(1);
                *entry = Entry { place, lane, generation, state: State::Live };
                (slot, generation)
            }
            None => {
                self.blocks.push(Entry { place, lane, generation: 0, state: State::Live });
                ((self.blocks.len() - 1) as u32, 0)
            }
        };
        Block::new(place.ptr, slot, generation).ok_or(AllocError::AddressSpace)
    }

    #[inline]
    fn free(&mut self, dev: &mut dyn Device, block: Block) -> Result<(), FreeError> {
        if block.is_empty() {
            return Ok(());
        }
        let slot = block.slot();
        let Some(&mut Entry { state, .. }) = self.find(&block) else {
            return Err(FreeError { block, reason: FreeFailure::NotLive });
        };
        if state == State::Shared {
            match self.uses.free(dev, slot) {
                Ok(true) => {
                    self.blocks[slot as usize].state = State::Waiting;
                    return Ok(());
                }
                Ok(false) => {}
                Err(error) => return Err(FreeError { block, reason: error.into() }),
            }
        }
        self.give_back(dev, slot).map_err(|error| FreeError { block, reason: error.into() })
    }

    fn record_stream(&mut self, _: &mut dyn Device, block: &Block, stream: StreamId) -> Result<(), AllocError> {
        if block.is_empty() {
            return Ok(());
        }
        let lane = self.find(block).ok_or(AllocError::NotLive)?.lane;
        if self.lanes[lane as usize].0 != stream {
            self.blocks[block.slot() as usize].state = State::Shared;
            self.uses.record(block.slot(), stream);
        }
        Ok(())
    }

    /// If what is free does not suffice and blocks wait for streams, the host waits first.
    fn trim(&mut self, dev: &mut dyn Device, keep: u64) -> Result<u64, AllocError> {
        let before = self.reserved();
        self.release(dev, keep)?;
        if self.reserved() > keep && self.uses.is_waiting() {
            dev.sync(Sync::Device)?;
            self.settle(dev, usize::MAX)?;
            self.release(dev, keep)?;
        }
        Ok(before.saturating_sub(self.reserved()))
    }

    fn inspect(&self, visit: &mut dyn FnMut(Span)) {
        let waiting = self.blocks.iter().filter(|entry| entry.state == State::Waiting);
        let mut waiting: Vec<u64> = waiting.map(|entry| entry.place.ptr).collect();
        waiting.sort_unstable();
        let mut spans = Vec::new();
        for (stream, allocator) in &self.lanes {
            allocator.inspect(&mut |span| {
                let is_waiting = span.state == SpanState::Live && waiting.binary_search(&span.ptr).is_ok();
                let state = if is_waiting { SpanState::Pending } else { span.state };
                spans.push(Span { state, stream: *stream, ..span });
            });
        }
        spans.sort_unstable_by_key(|span| span.ptr);
        spans.into_iter().for_each(visit);
    }
}

impl<S: SingleStream> Configure for StreamSafe<S> {
    const NAME: &'static str = S::NAME;
    const ABOUT: &'static str = S::ABOUT;
    type Params = S::Params;

    fn new(params: S::Params, device: &DeviceInfo) -> Result<Self, ConfigError> {
        let fresh = S::new(params, device)?;
        let (numbers, uses) = (StreamNumbers::default(), StreamUses::default());
        Ok(StreamSafe { fresh, lanes: Vec::new(), numbers, blocks: Vec::new(), vacant: Vec::new(), uses })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{CallKind, Machine};
    use crate::faults::FaultDevice;
    use crate::sim::SimDevice;

    const MIB: u64 = 1 << 20;

    /// Keeps one free piece of memory, and has the rest from the device each time.
    #[derive(Clone, Debug, Default)]
    struct KeepsOne {
        sizes: Vec<(u64, u64)>,
        kept: Option<u32>,
        reserved: u64,
    }

    impl KeepsOne {
        fn discard(&mut self, dev: &mut dyn Device, key: u32) -> Result<(), DeviceError> {
            let (ptr, size) = &mut self.sizes[key as usize];
            dev.free(*ptr)?;
            self.reserved -= std::mem::take(size);
            Ok(())
        }
    }

    impl SingleStream for KeepsOne {
        const NAME: &'static str = "keeps-one";
        const ABOUT: &'static str = "for tests";
        type Params = ();

        fn new((): (), _: &DeviceInfo) -> Result<Self, ConfigError> {
            Ok(KeepsOne::default())
        }

        fn allocate(&mut self, dev: &mut dyn Device, size: u64) -> Result<Place, AllocError> {
            if let Some(key) = self.kept.take_if(|key| self.sizes[*key as usize].1 >= size) {
                return Ok(Place { ptr: self.sizes[key as usize].0, key });
            }
            let ptr = dev.malloc(size).map_err(|error| match error {
                DeviceError::OutOfMemory => AllocError::OutOfMemory,
                other => other.into(),
            })?;
            self.reserved += size;
            self.sizes.push((ptr, size));
            Ok(Place { ptr, key: self.sizes.len() as u32 - 1 })
        }

        fn free(&mut self, dev: &mut dyn Device, place: Place) -> Result<(), DeviceError> {
            if self.kept.is_some() {
                return self.discard(dev, place.key);
            }
            self.kept = Some(place.key);
            Ok(())
        }

        fn trim(&mut self, dev: &mut dyn Device, keep: u64) -> Result<(), DeviceError> {
            if let Some(key) = self.kept.filter(|_| self.reserved > keep) {
                self.discard(dev, key)?;
                self.kept = None;
            }
            Ok(())
        }

        fn reserved(&self) -> u64 {
            self.reserved
        }

        fn inspect(&self, visit: &mut dyn FnMut(Span)) {
            for (key, &(ptr, size)) in (0..).zip(&self.sizes).filter(|(_, (_, size))| *size > 0) {
                let state = if self.kept == Some(key) { SpanState::Cached } else { SpanState::Live };
                visit(Span { segment: ptr, ptr, size, state, stream: StreamId::DEFAULT, pool: PoolId::DEFAULT });
            }
        }
    }

    fn fresh(info: &DeviceInfo) -> StreamSafe<KeepsOne> {
        StreamSafe::new((), info).unwrap()
    }

    crate::conformance!(fresh);

    #[test]
    fn streams_do_not_share_and_want_of_memory_is_everybodys() {
        let mut dev = SimDevice::new(16 * MIB);
        let mut strategy = fresh(&dev.info());
        let request = |stream| Request::new(6 * MIB, StreamId(stream));
        let block = strategy.allocate(&mut dev, request(0)).unwrap();
        let first = block.ptr();
        strategy.free(&mut dev, block).unwrap();
        let other = strategy.allocate(&mut dev, request(1)).unwrap();
        assert_ne!(other.ptr(), first);
        let again = strategy.allocate(&mut dev, request(0)).unwrap();
        assert_eq!(again.ptr(), first);
        strategy.free(&mut dev, again).unwrap();
        assert!(strategy.allocate(&mut dev, request(2)).is_ok(), "stream 0 gives back what it keeps");
        assert_eq!(strategy.allocate(&mut dev, request(3)), Err(AllocError::OutOfMemory));
    }

    #[test]
    fn the_host_waits_only_if_nothing_else_helps() {
        let mut dev = SimDevice::new(32 * MIB);
        let mut strategy = fresh(&dev.info());
        let allocate = |strategy: &mut StreamSafe<KeepsOne>, dev: &mut SimDevice, mib| {
            strategy.allocate(dev, Request::new(mib * MIB, StreamId(0)))
        };
        let cached = allocate(&mut strategy, &mut dev, 16).unwrap();
        let shared = allocate(&mut strategy, &mut dev, 4).unwrap();
        strategy.record_stream(&mut dev, &shared, StreamId::ticket(0)).unwrap();
        strategy.free(&mut dev, cached).unwrap();
        strategy.free(&mut dev, shared).unwrap();
        let syncs = |dev: &SimDevice| dev.usage().calls[CallKind::Sync as usize];
        let block = allocate(&mut strategy, &mut dev, 20).unwrap();
        assert_eq!(syncs(&dev), 0, "what was cached is enough");
        strategy.free(&mut dev, block).unwrap();
        assert!(allocate(&mut strategy, &mut dev, 30).is_ok());
        assert_eq!(syncs(&dev), 1, "only the shared block makes room");
    }

    #[test]
    fn what_cannot_go_back_yet_goes_back_later() {
        let error = DeviceError::Driver { call: CallKind::Free, code: 999 };
        let sim = SimDevice::new(16 * MIB);
        let mut dev = FaultDevice::new(sim).fail_nth(CallKind::Free, 1, error);
        let mut strategy = fresh(&dev.info());
        let blocks: Vec<Block> =
            (0..2).map(|_| strategy.allocate(&mut dev, Request::new(MIB, StreamId(0))).unwrap()).collect();
        for (ticket, block) in (0..).zip(&blocks) {
            strategy.record_stream(&mut dev, block, StreamId::ticket(ticket)).unwrap();
        }
        let states = |strategy: &StreamSafe<KeepsOne>| {
            let mut states = Vec::new();
            strategy.inspect(&mut |span| states.push(span.state));
            states.sort_unstable_by_key(|state| state.name());
            states
        };
        for block in blocks {
            strategy.free(&mut dev, block).unwrap();
        }
        assert_eq!(states(&strategy), [SpanState::Pending; 2]);
        dev.complete(0);
        dev.complete(1);
        assert!(matches!(strategy.allocate(&mut dev, Request::new(512, StreamId(1))), Err(AllocError::Device(_))));
        assert_eq!(states(&strategy), [SpanState::Cached, SpanState::Pending]);
        assert!(strategy.allocate(&mut dev, Request::new(512, StreamId(1))).is_ok());
        assert_eq!(states(&strategy), [SpanState::Cached, SpanState::Live]);
    }
}
