//! The integrity pass: is the memory behind every block really the block's own?
//!
//! Every block is filled on its stream with a pattern that names it, and checked when another stream uses it, before it
//! is freed, and, where its free has to wait, at the last moment at which nobody else may have it. Streams that have to
//! be waited for are kept busy before they check, so that memory which is reused too early is overwritten by then. What
//! overwrote it names itself: its pattern is there.
//!
//! Ticket work is unknown, so its check is made when the ticket ends: when the trace says so, or when the strategy waits
//! for it, by itself or with all other work of the card.

use crate::interrupt::Interrupt;
use crate::replay::{Finding, Outcome, Tape, step};
use allocator_core::cuda::{CudaDevice, Mismatched};
use allocator_core::{
    AsyncSettings, Device, DeviceError, DeviceInfo, Fence, Handle, Machine, MemoryInfo, StreamId, Sync,
};
use allocator_core::{Strategy, Usage};
use std::collections::BTreeMap;
use workload_gen::{Event, Trace};

/// How long a stream is kept busy before it checks a block that was used on it.
const DELAY_NS: u64 = 200_000;
/// One in so many checks on a block's own stream is delayed too, if the trace has several streams.
const DELAYED_EVERY: u64 = 32;
/// Patterns have room for so many numbers. 0 is none of them, so that empty memory is nobody's.
const NUMBERS: u64 = (1 << 24) - 1;

/// A device whose memory can be filled and checked in stream order.
pub trait Patterns: Machine {
    /// Writes the pattern of `block`.
    fn fill(&mut self, stream: StreamId, ptr: u64, size: u64, block: u64) -> Result<(), DeviceError>;

    /// Compares memory with the pattern of `block`; mismatches may come back for any check made so far.
    fn check(&mut self, stream: StreamId, at: (u64, u64), block: u64, tag: u64)
    -> Result<Vec<Mismatched>, DeviceError>;

    /// Waits for all work, and for the results of all checks.
    fn settle(&mut self) -> Result<Vec<Mismatched>, DeviceError>;
}

impl Patterns for CudaDevice {
    fn fill(&mut self, stream: StreamId, ptr: u64, size: u64, block: u64) -> Result<(), DeviceError> {
        CudaDevice::fill(self, stream, ptr, size, block)
    }

    fn check(
        &mut self,
        stream: StreamId,
        at: (u64, u64),
        block: u64,
        tag: u64,
    ) -> Result<Vec<Mismatched>, DeviceError> {
        CudaDevice::check(self, stream, at.0, at.1, block, tag)
    }

    fn settle(&mut self) -> Result<Vec<Mismatched>, DeviceError> {
        self.take_mismatches()
    }
}

/// The result of the pass.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Integrity {
    /// Blocks that were filled.
    pub blocks: u64,
    /// Bytes that were filled.
    pub bytes: u64,
    /// Checks made on the blocks' own streams.
    pub checks: u64,
    /// Checks made on other streams, or when a ticket ended.
    pub cross_checks: u64,
    /// Checks that found something else than the pattern.
    pub violations: u64,
    /// What went wrong, if anything.
    pub finding: Option<Finding>,
}

/// A filled block.
#[derive(Clone, Debug)]
struct Filled {
    ptr: u64,
    size: u64,
    stream: StreamId,
    number: u64,
    others: Vec<StreamId>,
}

/// What a check was about, for the report.
#[derive(Clone, Copy, Debug)]
struct Checked {
    event: u64,
    ptr: u64,
    size: u64,
    stream: StreamId,
    number: u64,
    when: &'static str,
}

/// The number in the pattern of the block with this number.
fn pattern(number: u64) -> u64 {
    1 + number % NUMBERS
}

/// Checks blocks, and passes a strategy's calls on to the device.
#[derive(Debug)]
struct Checker<P> {
    device: P,
    event: u64,
    /// Freed blocks that wait for a ticket.
    late: BTreeMap<StreamId, Vec<Filled>>,
    made: Vec<Checked>,
    /// The event that asked for each block, by number.
    asked_at: Vec<u64>,
    result: Integrity,
    failed: Option<DeviceError>,
}

impl<P: Patterns> Checker<P> {
    /// The pass's own calls have nobody to report to but the result.
    fn keep<T>(&mut self, outcome: Result<T, DeviceError>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(why) => {
                if self.failed.is_none() {
                    self.failed = Some(why);
                    let text = format!("a fill or check on the device: {why}");
                    self.note(Finding { outcome: Outcome::Error, event: Some(self.event), text });
                }
                None
            }
        }
    }

    fn note(&mut self, finding: Finding) {
        if self.result.finding.as_ref().is_none_or(|known| known.outcome < finding.outcome) {
            self.result.finding = Some(finding);
        }
    }

    fn filled(&mut self, ptr: u64, size: u64, stream: StreamId) -> Filled {
        let number = self.asked_at.len() as u64;
        self.asked_at.push(self.event);
        self.result.blocks += 1;
        self.result.bytes += size;
        let outcome = self.device.fill(stream, ptr, size, pattern(number));
        self.keep(outcome);
        Filled { ptr, size, stream, number, others: Vec::new() }
    }

    fn check(&mut self, block: &Filled, stream: StreamId, when: &'static str) {
        let is_own = stream == block.stream;
        if is_own {
            self.result.checks += 1
        } else {
            self.result.cross_checks += 1
        }
        let tag = self.made.len() as u64;
        let &Filled { ptr, size, number, .. } = block;
        self.made.push(Checked { event: self.event, ptr, size, stream, number, when });
        let outcome = self.device.check(stream, (ptr, size), pattern(number), tag);
        let found = self.keep(outcome);
        self.report(found);
    }

    fn settle(&mut self) {
        let outcome = self.device.settle();
        let found = self.keep(outcome);
        self.report(found);
    }

    fn report(&mut self, found: Option<Vec<Mismatched>>) {
        for mismatch in found.into_iter().flatten() {
            self.result.violations += 1;
            let Some(&Checked { event, ptr, size, stream, number, when }) = self.made.get(mismatch.tag as usize) else {
                continue;
            };
            let asked_at = self.asked_at.get(number as usize).copied().unwrap_or_default();
            let at = ptr + 8 * mismatch.index;
            let text = format!(
                "the {size} bytes at {ptr:#x} that event {asked_at} asked for were overwritten: checked {when} on stream \
                 {stream}, {} words of 8 bytes are wrong; {at:#x} holds {}",
                mismatch.words,
                self.culprit(mismatch.found, number)
            );
            self.note(Finding { outcome: Outcome::Invalid, event: Some(event), text });
        }
    }

    /// Who wrote a word.
    fn culprit(&self, word: u64, number: u64) -> String {
        // Numbers repeat; the last block of that number is the likeliest.
        let latest = (self.asked_at.len() as u64).saturating_sub(1);
        let turns = latest / NUMBERS;
        let writer = (word >> 40).checked_sub(1).and_then(|writer| {
            let candidates = [turns, turns.saturating_sub(1)].map(|turn| turn * NUMBERS + writer);
            candidates.into_iter().find(|writer| *writer <= latest && *writer != number)
        });
        match writer.and_then(|writer| self.asked_at.get(writer as usize)) {
            Some(event) => format!("the pattern of the block that event {event} asked for"),
            None => format!("{word:#x}"),
        }
    }

    /// Another stream may use a block when it has waited for what filled it, which is up to the workload.
    fn used(&mut self, block: &mut Filled, stream: StreamId) {
        if stream == block.stream || stream.as_ticket().is_some() {
            return;
        }
        if !block.others.contains(&stream) {
            block.others.push(stream);
        }
        let waits = self.device.fence(block.stream).and_then(|fence| self.device.order_after(stream, fence));
        self.keep(waits);
        self.check(block, stream, "when another stream used it");
    }

    fn freed(&mut self, block: &Filled, ticket: Option<u32>, is_delayed: bool) {
        if is_delayed {
            let outcome = self.device.work(block.stream, DELAY_NS);
            self.keep(outcome);
        }
        self.check(block, block.stream, "before its free");
        for &other in &block.others {
            let outcome = self.device.work(other, DELAY_NS);
            self.keep(outcome);
            self.check(block, other, "on another stream that its free waits for,");
        }
        if let Some(ticket) = ticket {
            self.late.entry(StreamId::ticket(ticket)).or_default().push(block.clone());
        }
    }

    /// A ticket is about to end: until now the blocks that wait for it must have stayed as they were.
    fn ending(&mut self, ticket: StreamId) {
        if let Some(blocks) = self.late.remove(&ticket) {
            self.check_late(&blocks);
        }
    }

    fn all_ending(&mut self) {
        let blocks: Vec<Filled> = std::mem::take(&mut self.late).into_values().flatten().collect();
        self.check_late(&blocks);
    }

    fn check_late(&mut self, blocks: &[Filled]) {
        if blocks.is_empty() {
            return;
        }
        // After everything that was queued so far, and before anything else is.
        self.settle();
        for block in blocks {
            // Its own stream has nothing queued, but it is no check of the stream's own.
            self.check(block, block.stream, "when the work that its free waits for ended,");
            self.result.checks -= 1;
            self.result.cross_checks += 1;
        }
        self.settle();
    }
}

/// Replays `trace` on `strategy`, which was made for `device` and has served nothing yet. After an interrupt the result is
/// not the trace's.
pub fn integrity<P: Patterns>(
    trace: &Trace,
    strategy: &mut dyn Strategy,
    device: P,
    interrupt: &Interrupt,
) -> Integrity {
    let mut checker = Checker {
        device,
        event: 0,
        late: BTreeMap::new(),
        made: Vec::new(),
        asked_at: Vec::new(),
        result: Integrity::default(),
        failed: None,
    };
    let mut tape = Tape::new(trace.header.slots, &trace.texts);
    let mut blocks: Vec<Option<Filled>> = vec![None; trace.header.slots as usize];
    let first_stream = trace.events.iter().find_map(stream_of);
    let has_several = trace.events.iter().filter_map(stream_of).any(|stream| Some(stream) != first_stream);
    for (index, event) in interrupt.events(&trace.events) {
        checker.event = index as u64;
        if let Event::Free { slot, ticket } = *event
            && let Some(block) = blocks[slot as usize].take()
        {
            let is_delayed = has_several && block.number.is_multiple_of(DELAYED_EVERY);
            checker.freed(&block, ticket, is_delayed);
        }
        step(strategy, &mut checker, event, &mut tape);
        match *event {
            Event::Alloc { slot, size, stream, .. } if size > 0 => {
                if let Some(block) = tape.block(slot) {
                    let filled = checker.filled(block.ptr(), size, stream);
                    blocks[slot as usize] = Some(filled);
                }
            }
            Event::Use { slot, stream } => {
                if let Some(block) = &mut blocks[slot as usize] {
                    checker.used(block, stream);
                }
            }
            _ => {}
        }
        if checker.failed.is_some() {
            // A card that failed once answers nothing more.
            break;
        }
    }
    for block in blocks.iter().flatten() {
        checker.check(block, block.stream, "at the end");
    }
    checker.all_ending();
    checker.settle();
    if let Some(finding) = tape.finding {
        checker.note(finding);
    }
    checker.result
}

fn stream_of(event: &Event) -> Option<StreamId> {
    match *event {
        Event::Alloc { stream, .. } | Event::Use { stream, .. } => Some(stream),
        _ => None,
    }
}

impl<P: Patterns> Device for Checker<P> {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn malloc(&mut self, size: u64) -> Result<u64, DeviceError> {
        self.device.malloc(size)
    }

    /// `cuMemFree` waits for all work on the card, so whatever a ticket stands for is over then.
    fn free(&mut self, ptr: u64) -> Result<(), DeviceError> {
        self.all_ending();
        self.device.free(ptr)
    }

    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError> {
        self.device.reserve(size)
    }

    fn unreserve(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        self.device.unreserve(va, size)
    }

    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        self.device.create(size)
    }

    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        self.device.release(handle)
    }

    fn map(&mut self, va: u64, handles: &[Handle]) -> Result<(), DeviceError> {
        self.device.map(va, handles)
    }

    fn unmap(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        self.device.unmap(va, size)
    }

    fn malloc_async(&mut self, size: u64, stream: StreamId) -> Result<u64, DeviceError> {
        self.device.malloc_async(size, stream)
    }

    fn free_async(&mut self, ptr: u64, stream: StreamId) -> Result<(), DeviceError> {
        self.device.free_async(ptr, stream)
    }

    fn trim_async(&mut self, keep: u64) -> Result<(), DeviceError> {
        self.device.trim_async(keep)
    }

    fn configure_async(&mut self, settings: AsyncSettings) -> Result<(), DeviceError> {
        self.device.configure_async(settings)
    }

    fn fence(&mut self, stream: StreamId) -> Result<Fence, DeviceError> {
        self.device.fence(stream)
    }

    fn poll(&mut self, fence: Fence) -> Result<bool, DeviceError> {
        self.device.poll(fence)
    }

    fn order_after(&mut self, stream: StreamId, fence: Fence) -> Result<(), DeviceError> {
        self.device.order_after(stream, fence)
    }

    fn sync(&mut self, what: Sync) -> Result<(), DeviceError> {
        match what {
            Sync::Fence(Fence { stream, .. }) | Sync::Stream(stream) if stream.as_ticket().is_some() => {
                self.ending(stream)
            }
            Sync::Device => self.all_ending(),
            _ => {}
        }
        self.device.sync(what)
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        self.device.memory_info()
    }

    fn retired(&mut self, ptr: u64) {
        self.device.retired(ptr)
    }
}

impl<P: Patterns> Machine for Checker<P> {
    fn work(&mut self, stream: StreamId, ns: u64) -> Result<(), DeviceError> {
        self.device.work(stream, ns)
    }

    fn host_work(&mut self, ns: u64) {
        self.device.host_work(ns)
    }

    fn complete(&mut self, ticket: u32) {
        self.ending(StreamId::ticket(ticket));
        self.device.complete(ticket)
    }

    fn usage(&self) -> Usage {
        self.device.usage()
    }
}
