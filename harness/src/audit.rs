//! The audit pass: exact memory figures, and a check of every address that the strategy hands out.
//!
//! Its definitions are those of `docs/METHODOLOGY.md`. Nothing here is timed.

use crate::interrupt::Interrupt;
use crate::replay::{Finding, Outcome, Spent, Tape, step};
use crate::shadow::Shadow;
use crate::watch::Watch;
use allocator_core::{CallKind, Machine, Strategy};
use workload_gen::{Event, Trace};

/// Points of a timeline at most.
const TIMELINE_POINTS: u64 = 2000;

/// What a run did, in exact figures.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    /// The highest Q: bytes requested by live and pending blocks.
    pub requested_peak: u64,
    /// The highest A: the same with each block rounded up to 512. The load bound.
    pub load_peak: u64,
    /// The most bytes that were pending.
    pub pending_peak: u64,
    /// The highest R: bytes that the strategy holds.
    pub reserved_peak: u64,
    /// The most bytes that the card lost.
    pub device_used_peak: u64,
    /// The first event at which R reached its peak.
    pub reserved_peak_event: u64,
    /// A after that event.
    pub load_at_reserved_peak: u64,
    /// Q after that event.
    pub requested_at_reserved_peak: u64,
    /// R after the last event.
    pub reserved_end: u64,
    /// Q after the last event.
    pub requested_end: u64,
    /// The last event at which memory or addresses came from the driver or went back to it, if any.
    pub last_driver_event: Option<u64>,
    /// Driver calls that the strategy made, by kind.
    pub calls: [u64; CallKind::ALL.len()],
    /// Nanoseconds that those calls took on the device's clock.
    pub driver_ns: u64,
    /// The device's clock after the last event.
    pub end_ns: u64,
}

/// Lowest and highest of a series in a bucket of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Band {
    /// The lowest value.
    pub min: u64,
    /// The highest value.
    pub max: u64,
}

impl Band {
    const EMPTY: Band = Band { min: u64::MAX, max: 0 };

    fn add(&mut self, value: u64) {
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }
}

/// A bucket of consecutive events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Point {
    /// The first event.
    pub event: u64,
    /// How many.
    pub events: u64,
    /// The device's clock after the last of them.
    pub end_ns: u64,
    /// R, within events too.
    pub reserved: Band,
    /// The card's loss.
    pub device_used: Band,
    /// Q.
    pub requested: Band,
    /// A.
    pub load: Band,
    /// The pending part of Q.
    pub pending: Band,
}

impl Point {
    /// A bucket without events yet.
    pub(crate) fn new(event: u64) -> Point {
        let none = Band::EMPTY;
        let (events, end_ns) = (0, 0);
        Point { event, events, end_ns, reserved: none, device_used: none, requested: none, load: none, pending: none }
    }
}

/// The result of an audit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Audit {
    /// The figures.
    pub memory: Memory,
    /// How they came about.
    pub timeline: Vec<Point>,
    /// What went wrong, if anything.
    pub finding: Option<Finding>,
    /// Allocations refused for want of memory.
    pub failed_allocs: u64,
    /// Events on blocks whose allocation was refused.
    pub skipped_events: u64,
    /// Allocations served from the default pool because the strategy has no private pools.
    pub pool_fallbacks: u64,
    /// Control calls that the strategy does not have.
    pub unsupported_controls: u64,
}

/// Replays `trace` on `strategy`, which was made for `machine` and has served nothing yet. After an interrupt the result
/// is not the trace's.
pub fn audit<M: Machine>(trace: &Trace, strategy: &mut dyn Strategy, machine: M, interrupt: &Interrupt) -> Audit {
    let mut watch = Watch::new(machine);
    let mut tape = Tape::new(trace.header.slots, &trace.texts);
    let mut shadow = Shadow::new(trace.header.slots);
    let mut memory = Memory::default();
    let mut timeline = Vec::new();
    let bucket = (trace.events.len() as u64).div_ceil(TIMELINE_POINTS).max(1);
    for (index, event) in interrupt.events(&trace.events) {
        let index = index as u64;
        match *event {
            Event::Use { slot, stream } => shadow.used(slot, stream),
            Event::Free { slot, ticket } => shadow.freed(slot, ticket, &mut watch),
            _ => {}
        }
        let before = watch.usage();
        step(strategy, &mut watch, event, &mut tape);
        let after = watch.usage();
        let has_called = after != before;
        let moves = |kind: &CallKind| kind.moves_memory() && after.calls[*kind as usize] > before.calls[*kind as usize];
        if has_called && CallKind::ALL.iter().any(moves) {
            memory.last_driver_event = Some(index);
        }
        if let Err(text) = shadow.removed(&watch.backing.take_removed()) {
            tape.note(Outcome::Invalid, index, text);
        }
        if let Event::Alloc { slot, size, stream, .. } = *event
            && let Some(block) = tape.block(slot)
        {
            let ptr = block.ptr();
            if let Err(text) = shadow.allocated(slot, ptr, size, stream, &watch) {
                tape.note(Outcome::Invalid, index, text);
            }
        }
        if has_called || matches!(event, Event::Done { .. }) {
            shadow.settle(&mut watch);
        }
        memory.note(index, &shadow, &mut watch, after.now_ns, bucket, &mut timeline);
    }
    memory.finish(&watch, &tape, &shadow);
    Audit {
        memory,
        timeline,
        finding: tape.finding,
        failed_allocs: tape.failed_allocs,
        skipped_events: tape.skipped_events,
        pool_fallbacks: tape.pool_fallbacks,
        unsupported_controls: tape.unsupported_controls,
    }
}

impl Memory {
    fn note<M: Machine>(
        &mut self,
        index: u64,
        shadow: &Shadow,
        watch: &mut Watch<M>,
        now_ns: u64,
        bucket: u64,
        timeline: &mut Vec<Point>,
    ) {
        let (reserved, device_used) = watch.take_highs();
        self.requested_peak = self.requested_peak.max(shadow.requested);
        self.load_peak = self.load_peak.max(shadow.load);
        self.pending_peak = self.pending_peak.max(shadow.pending_bytes);
        self.device_used_peak = self.device_used_peak.max(device_used);
        if reserved > self.reserved_peak {
            self.reserved_peak = reserved;
            self.reserved_peak_event = index;
            self.load_at_reserved_peak = shadow.load;
            self.requested_at_reserved_peak = shadow.requested;
        }
        if index.is_multiple_of(bucket) {
            timeline.push(Point::new(index));
        }
        if let Some(point) = timeline.last_mut() {
            point.events += 1;
            point.end_ns = now_ns;
            point.reserved.add(reserved);
            point.reserved.add(watch.reserved());
            point.device_used.add(device_used);
            point.device_used.add(watch.device_used());
            point.requested.add(shadow.requested);
            point.load.add(shadow.load);
            point.pending.add(shadow.pending_bytes);
        }
    }

    fn finish<M: Machine>(&mut self, watch: &Watch<M>, tape: &Tape<'_>, shadow: &Shadow) {
        let own = Spent::of(watch).since(&tape.workload);
        self.calls = own.calls;
        self.driver_ns = own.total_ns();
        let usage = watch.usage();
        self.end_ns = usage.now_ns;
        self.reserved_end = usage.reserved;
        self.requested_end = shadow.requested;
    }
}
