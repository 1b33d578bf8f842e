//! The audit against strategies whose behaviour is known: exact figures of good ones, and a verdict on each bad one.

use allocator_core::{AllocError, Block, Control, ControlError, Device, FreeError, PoolId, Profile, Request};
use allocator_core::{SimDevice, Span, Strategy, StreamId};
use harness::audit::{Audit, Band, audit};
use harness::interrupt::Interrupt;
use harness::replay::Outcome;
use strategy_direct::Direct;
use workload_gen::{Event, Header, PoolOp, Trace};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 2 * MIB;

/// What a [`Rogue`] does.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    /// A fresh piece of one segment for each request, nothing reused: correct.
    Bump,
    /// Gets the segment again for each request and gives the old one back afterwards, unless something is live in it.
    Churn,
    /// The same address twice.
    Twice,
    /// An address that the device never gave.
    Unbacked,
    /// Fewer bytes than asked for.
    Short,
    /// An odd address.
    Misaligned,
    /// Gives back memory that is in use.
    Released,
    /// Two addresses of the same memory.
    Alias,
}

struct Rogue {
    mode: Mode,
    segment: Option<u64>,
    served: u64,
}

impl Rogue {
    fn new(mode: Mode) -> Rogue {
        Rogue { mode, segment: None, served: 0 }
    }

    fn place(&mut self, dev: &mut dyn Device, size: u64) -> Result<u64, AllocError> {
        let nth = self.served;
        self.served += 1;
        match self.mode {
            Mode::Unbacked => return Ok(1 << 40),
            Mode::Short => return Ok(dev.malloc(size / 2)?),
            Mode::Misaligned => return Ok(dev.malloc(size + 512)? + 1),
            Mode::Released => {
                let new = dev.malloc(size)?;
                if let Some(old) = self.segment.replace(new) {
                    dev.free(old)?;
                }
                return Ok(new);
            }
            Mode::Churn => {
                let new = dev.malloc(4 * PAGE)?;
                if let Some(old) = self.segment.replace(new) {
                    dev.free(old)?;
                }
                return Ok(new);
            }
            Mode::Bump | Mode::Twice | Mode::Alias => {}
        }
        let segment = match self.segment {
            Some(segment) => segment,
            None if self.mode == Mode::Alias => {
                let va = dev.reserve(2 * PAGE)?;
                let handle = dev.create(PAGE)?;
                dev.map(va, &[handle, handle])?;
                va
            }
            None => dev.malloc(16 * PAGE)?,
        };
        self.segment = Some(segment);
        Ok(match self.mode {
            Mode::Twice => segment,
            Mode::Alias => segment + nth * PAGE,
            _ => segment + nth * PAGE / 2,
        })
    }
}

impl Strategy for Rogue {
    fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        let ptr = self.place(dev, req.size)?;
        Block::new(ptr, 0, 0).ok_or(AllocError::AddressSpace)
    }
    fn free(&mut self, _: &mut dyn Device, _: Block) -> Result<(), FreeError> {
        Ok(())
    }
    fn record_stream(&mut self, _: &mut dyn Device, _: &Block, _: StreamId) -> Result<(), AllocError> {
        Ok(())
    }
    fn trim(&mut self, _: &mut dyn Device, _: u64) -> Result<u64, AllocError> {
        Ok(0)
    }
    fn inspect(&self, _: &mut dyn FnMut(Span)) {}
}

fn alloc(slot: u32, size: u64) -> Event {
    Event::Alloc { slot, size, stream: StreamId(0), pool: PoolId::DEFAULT }
}

fn free(slot: u32) -> Event {
    Event::Free { slot, ticket: None }
}

fn trace(events: &[Event]) -> Trace {
    let header = Header { slots: 8, tickets: 8, ..Header::default() };
    Trace { header, events: events.to_vec(), ..Trace::default() }
}

fn audited(strategy: &mut dyn Strategy, events: &[Event]) -> Audit {
    audit(&trace(events), strategy, SimDevice::new(1 << 30), &Interrupt::default())
}

/// The event and the words of the verdict on a rogue.
fn verdict(mode: Mode, events: &[Event]) -> (Option<u64>, String) {
    let finding = audited(&mut Rogue::new(mode), events).finding.expect("a verdict");
    assert_eq!(finding.outcome, Outcome::Invalid);
    (finding.event, finding.text)
}

#[test]
fn direct_is_measured_to_the_byte() {
    let audit =
        audited(&mut Direct::default(), &[alloc(0, 1000), alloc(1, 3 * MIB), free(0), alloc(0, 513), free(1), free(0)]);
    let memory = &audit.memory;
    assert_eq!(audit.finding, None);
    assert_eq!(memory.requested_peak, 3 * MIB + 1000);
    assert_eq!(memory.load_peak, 3 * MIB + 1024);
    assert_eq!(memory.reserved_peak, 3 * MIB + 1000, "what was asked for");
    assert_eq!(memory.device_used_peak, 3 * PAGE, "one shared page and two whole ones");
    assert_eq!(memory.reserved_peak_event, 1);
    assert_eq!(memory.load_at_reserved_peak, 3 * MIB + 1024);
    assert_eq!(memory.requested_at_reserved_peak, 3 * MIB + 1000);
    assert_eq!((memory.reserved_end, memory.requested_end), (0, 0));
    assert_eq!(&memory.calls[..2], [3, 3]);
    assert_eq!(memory.calls[2..].iter().sum::<u64>(), 0);
    let Profile { malloc, free, .. } = Profile::default();
    let mallocs = 3 * malloc.base_ns + 3 * malloc.ns_per_mib;
    let frees = 3 * free.base_ns + 3 * free.ns_per_mib;
    assert_eq!(memory.driver_ns, mallocs + frees, "a base and a part by size for each call");
    assert_eq!(memory.end_ns, mallocs + frees);
    assert_eq!(audit.timeline.len(), 6);
    assert_eq!(audit.timeline[1].load, Band { min: 3 * MIB + 1024, max: 3 * MIB + 1024 });
}

#[test]
fn a_correct_strategy_passes() {
    let audit =
        audited(&mut Rogue::new(Mode::Bump), &[alloc(0, MIB), alloc(1, MIB), free(0), alloc(0, MIB), alloc(2, 0)]);
    assert_eq!(audit.finding, None);
    assert_eq!(audit.memory.reserved_peak, 16 * PAGE);
    assert_eq!(audit.memory.load_peak, 2 * MIB);
}

#[test]
fn every_wrong_address_is_found_at_its_event() {
    let two = [alloc(0, MIB), alloc(1, MIB)];
    let (event, text) = verdict(Mode::Twice, &two);
    assert_eq!(event, Some(1));
    assert!(text.contains("overlaps the live block"), "{text}");
    let (event, text) = verdict(Mode::Unbacked, &two);
    assert_eq!(event, Some(0));
    assert!(text.contains("not backed by device memory"), "{text}");
    let (event, text) = verdict(Mode::Short, &two);
    assert_eq!(event, Some(0));
    assert!(text.contains("not backed by device memory"), "{text}");
    let (event, text) = verdict(Mode::Misaligned, &two);
    assert_eq!(event, Some(0));
    assert!(text.contains("not aligned to 512"), "{text}");
    let (event, text) = verdict(Mode::Released, &two);
    assert_eq!(event, Some(1));
    assert!(text.contains("lost its memory"), "{text}");
    let (event, text) = verdict(Mode::Alias, &two);
    assert_eq!(event, Some(1));
    assert!(text.contains("shares memory with the live block"), "{text}");
}

#[test]
fn memory_may_be_used_again_after_a_free() {
    for mode in [Mode::Twice, Mode::Released, Mode::Alias] {
        let audit = audited(&mut Rogue::new(mode), &[alloc(0, MIB), free(0), alloc(1, MIB), free(1)]);
        assert_eq!(audit.finding, None);
    }
}

#[test]
fn a_peak_inside_an_event_counts() {
    let audit = audited(&mut Rogue::new(Mode::Churn), &[alloc(0, MIB), free(0), alloc(0, MIB), free(0)]);
    let memory = audit.memory;
    assert_eq!((memory.reserved_peak, memory.reserved_peak_event), (8 * PAGE, 2));
    assert_eq!(memory.device_used_peak, 8 * PAGE);
    assert_eq!(memory.reserved_end, 4 * PAGE);
    assert_eq!(audit.timeline[2].reserved, Band { min: 4 * PAGE, max: 8 * PAGE });
    assert_eq!(audit.timeline[3].reserved, Band { min: 4 * PAGE, max: 4 * PAGE });
}

#[test]
fn a_free_with_a_ticket_is_pending_until_it_is_done() {
    let late = |slot, ticket| Event::Free { slot, ticket: Some(ticket) };
    let done = |ticket| Event::Done { ticket };
    let audit = audited(
        &mut Rogue::new(Mode::Bump),
        &[alloc(0, 1000), alloc(1, 2000), late(0, 0), late(1, 1), done(1), alloc(0, 4000), free(0), done(0)],
    );
    let pending: Vec<u64> = audit.timeline.iter().map(|point| point.pending.max).collect();
    assert_eq!(pending, [0, 0, 1000, 3000, 1000, 1000, 1000, 0]);
    let requested: Vec<u64> = audit.timeline.iter().map(|point| point.requested.max).collect();
    assert_eq!(requested, [1000, 3000, 3000, 3000, 1000, 5000, 1000, 0]);
    assert_eq!(audit.memory.load_peak, 1024 + 4096);
    assert_eq!((audit.memory.requested_peak, audit.memory.pending_peak), (5000, 3000));
}

#[test]
fn a_free_waits_for_the_work_of_other_streams_only() {
    let work = |stream, ns| Event::Work { stream: StreamId(stream), ns };
    let used = |slot, stream| Event::Use { slot, stream: StreamId(stream) };
    let host = |ns| Event::Host { ns };
    let audit = audited(&mut Rogue::new(Mode::Bump), &[alloc(0, 512), work(0, 90_000_000), used(0, 0), free(0)]);
    assert_eq!(audit.memory.pending_peak, 0, "its own stream");
    let events = [
        alloc(0, 512),
        alloc(1, 1024),
        work(1, 1_000_000),
        used(0, 1),
        free(0),
        used(1, 1),
        work(1, 1_000_000),
        free(1),
        host(999_999),
        host(1),
        host(1_000_000),
    ];
    let audit = audited(&mut Rogue::new(Mode::Bump), &events);
    let pending: Vec<u64> = audit.timeline[4..].iter().map(|point| point.pending.max).collect();
    assert_eq!(pending, [512, 512, 512, 1536, 1536, 1024, 0], "each until its point has passed");
}

#[test]
fn the_calls_of_the_workload_are_not_the_strategys() {
    let events = [
        Event::Work { stream: StreamId(0), ns: 5_000 },
        Event::Wait { stream: StreamId(1), on: StreamId(0) },
        Event::Sync { stream: None },
        Event::Host { ns: 7 },
        alloc(0, 512),
    ];
    let audit = audited(&mut Direct::default(), &events);
    assert_eq!(audit.memory.calls.iter().sum::<u64>(), 1);
    let malloc = Profile::default().malloc.base_ns;
    assert_eq!(audit.memory.driver_ns, malloc);
    // The wait for the work hides the two calls that made it; the call that waits comes on top.
    assert_eq!(audit.memory.end_ns, 5_000 + 7 + malloc);
}

#[test]
fn a_clock_that_runs_out_stops() {
    let work = Event::Work { stream: StreamId(0), ns: u64::MAX };
    let used = Event::Use { slot: 0, stream: StreamId(0) };
    let events = [work, alloc(0, 512), used, free(0), Event::Sync { stream: None }, work, alloc(0, 512), free(0)];
    let audit = audited(&mut Direct::default(), &events);
    assert_eq!((audit.finding, audit.memory.end_ns), (None, u64::MAX));
    assert!(audit.memory.driver_ns > u64::MAX / 2, "the free waits for the work");
}

#[test]
fn a_failed_allocation_is_a_result_and_its_slot_stays_empty() {
    let slot = |slot, size| alloc(slot, size);
    let used = Event::Use { slot: 1, stream: StreamId(3) };
    let events = [slot(0, MIB), slot(1, 4 << 30), used, free(1), slot(1, MIB), slot(2, u64::MAX), free(1), free(0)];
    let audit = audited(&mut Direct::default(), &events);
    let finding = audit.finding.unwrap();
    assert_eq!((finding.outcome, finding.event), (Outcome::Oom, Some(1)));
    assert!(finding.text.contains("4294967296 bytes on stream 0: out of memory"), "{}", finding.text);
    assert_eq!((audit.failed_allocs, audit.skipped_events), (2, 2));
    assert_eq!(audit.memory.load_peak, 2 * MIB);
}

#[test]
fn pools_and_controls_that_a_strategy_lacks_are_counted() {
    let pool = PoolId(1);
    let in_pool = |slot| Event::Alloc { slot, size: 512, stream: StreamId(0), pool };
    let events = [
        in_pool(0),
        Event::Pool { op: PoolOp::Create, pool },
        Event::Pool { op: PoolOp::Begin, pool },
        in_pool(1),
        Event::Empty { pool: Some(pool) },
        Event::Limit { bytes: Some(1) },
        alloc(2, 512),
    ];
    let audit = audited(&mut Direct::default(), &events);
    assert_eq!(audit.finding, None);
    assert_eq!((audit.pool_fallbacks, audit.unsupported_controls), (2, 4));
    assert_eq!(audit.memory.requested_peak, 3 * 512);
}

#[test]
fn a_long_timeline_is_thinned_and_loses_no_peak() {
    let mut events = Vec::new();
    for i in 0..5_001 {
        events.extend([alloc(0, if i == 3_333 { 64 * MIB } else { 512 }), free(0)]);
    }
    let audit = audited(&mut Direct::default(), &events);
    assert_eq!(audit.timeline.len(), 1_667, "10,002 events in buckets of 6");
    assert_eq!(audit.timeline.iter().map(|point| point.events).sum::<u64>(), 10_002);
    let peak = audit.timeline.iter().max_by_key(|point| point.load.max).unwrap();
    assert_eq!((peak.load, peak.event), (Band { min: 0, max: 64 * MIB }, 6_666));
    assert_eq!(audit.timeline.last().unwrap().end_ns, audit.memory.end_ns);
}

/// A strategy that refuses what only a broken one refuses.
struct Refusing;

impl Strategy for Refusing {
    fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        Block::new(dev.malloc(req.size)?, 0, 0).ok_or(AllocError::AddressSpace)
    }
    fn free(&mut self, _: &mut dyn Device, block: Block) -> Result<(), FreeError> {
        Err(FreeError { block, reason: allocator_core::FreeFailure::NotLive })
    }
    fn record_stream(&mut self, _: &mut dyn Device, _: &Block, _: StreamId) -> Result<(), AllocError> {
        Err(AllocError::NotLive)
    }
    fn trim(&mut self, _: &mut dyn Device, _: u64) -> Result<u64, AllocError> {
        Ok(0)
    }
    fn control(&mut self, _: &mut dyn Device, _: Control<'_>) -> Result<(), ControlError> {
        Err(ControlError::UnknownPool(PoolId(7)))
    }
    fn inspect(&self, _: &mut dyn FnMut(Span)) {}
}

#[test]
fn refusals_other_than_memory_are_errors() {
    let used = Event::Use { slot: 0, stream: StreamId(1) };
    let limit = Event::Limit { bytes: None };
    for (events, event, text) in [
        (vec![alloc(0, 512), used], 1, "record_stream: not a live block"),
        (vec![alloc(0, 512), free(0)], 1, "not a live block"),
        (vec![alloc(0, 4 << 30), limit], 1, "no limit: unknown pool 7"),
        (vec![Event::Pool { op: PoolOp::Create, pool: PoolId(3) }], 0, "create pool 3: unknown pool 7"),
    ] {
        let finding = audited(&mut Refusing, &events).finding.unwrap();
        assert_eq!((finding.outcome, finding.event), (Outcome::Error, Some(event)));
        assert!(finding.text.contains(text), "{}", finding.text);
    }
}
