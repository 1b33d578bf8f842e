//! What each event of a trace does to a strategy. The passes (audit, time) differ only in what they look at around it.
//!
//! A strategy is called through `dyn` once per chunk of 64 Ki events; inside a chunk the loop is compiled for the
//! strategy's own type, so that its fast path can be inlined and the harness adds next to nothing to a measurement.

use crate::timing::Sampler;
use allocator_core::{
    AllocError, Block, CallKind, Control, ControlError, DeviceError, Machine, PoolId, Request, Strategy,
};
use allocator_core::{StreamId, Sync};
use workload_gen::{Event, PoolOp, plain};

/// Events per virtual call.
pub(crate) const CHUNK: usize = 1 << 16;

/// How a replay ended, from good to bad: a run has the worst that happened in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Outcome {
    /// Everything was served.
    Ok,
    /// An allocation was refused for want of memory.
    Oom,
    /// The strategy refused something else.
    Error,
    /// The strategy handed out memory that it must not hand out.
    Invalid,
    /// The strategy panicked.
    Panic,
}

impl Outcome {
    /// The word in results.
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Oom => "oom",
            Outcome::Error => "error",
            Outcome::Invalid => "invalid",
            Outcome::Panic => "panic",
        }
    }

    /// Whether this is a fault of the strategy, not a result.
    pub const fn is_fault(self) -> bool {
        !matches!(self, Outcome::Ok | Outcome::Oom)
    }
}

/// The first of the worst things that happened in a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What kind of thing.
    pub outcome: Outcome,
    /// The event, counted from 0; unknown if it cannot be pinned to one.
    pub event: Option<u64>,
    /// What happened, in words.
    pub text: String,
}

/// What a replay keeps between events: where the blocks are, and what did not go to plan.
#[derive(Debug)]
pub(crate) struct Tape<'t> {
    texts: &'t [String],
    slots: Vec<Option<Block>>,
    next: u64,
    pools: bool,
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
    /// Device calls of the workload itself and their time: no doing of the strategy.
    pub workload: Spent,
}

/// Device calls and their time, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spent {
    /// How many.
    pub calls: [u64; CallKind::ALL.len()],
    /// Nanoseconds on the device's clock.
    pub ns: [u64; CallKind::ALL.len()],
}

impl Spent {
    /// All that a device has counted.
    pub fn of(machine: &dyn Machine) -> Spent {
        let usage = machine.usage();
        Spent { calls: usage.calls, ns: usage.call_ns }
    }

    /// What was spent since.
    pub fn since(self, before: &Spent) -> Spent {
        let mut spent = self;
        for kind in 0..CallKind::ALL.len() {
            spent.calls[kind] -= before.calls[kind];
            spent.ns[kind] = spent.ns[kind].saturating_sub(before.ns[kind]);
        }
        spent
    }

    /// Nanoseconds of all kinds. A trace may keep the host waiting for centuries, so they stop at the largest number.
    pub fn total_ns(&self) -> u64 {
        self.ns.iter().fold(0, |sum: u64, &ns| sum.saturating_add(ns))
    }

    fn add(&mut self, more: &Spent) {
        for kind in 0..CallKind::ALL.len() {
            self.calls[kind] += more.calls[kind];
            self.ns[kind] = self.ns[kind].saturating_add(more.ns[kind]);
        }
    }
}

impl<'t> Tape<'t> {
    /// For a trace with `slots` slots and these texts.
    pub fn new(slots: u32, texts: &'t [String]) -> Tape<'t> {
        let mut empty = Vec::new();
        empty.resize_with(slots as usize, || None);
        Tape {
            texts,
            slots: empty,
            next: 0,
            pools: true,
            finding: None,
            failed_allocs: 0,
            skipped_events: 0,
            pool_fallbacks: 0,
            unsupported_controls: 0,
            workload: Spent::default(),
        }
    }

    /// The block in a slot.
    pub fn block(&self, slot: u32) -> Option<&Block> {
        self.slots[slot as usize].as_ref()
    }

    /// Keeps the first of the worst.
    #[cold]
    pub fn note(&mut self, outcome: Outcome, event: u64, text: String) {
        if self.finding.as_ref().is_none_or(|known| known.outcome < outcome) {
            self.finding = Some(Finding { outcome, event: Some(event), text });
        }
    }

    #[cold]
    fn note_now(&mut self, outcome: Outcome, text: String) {
        self.note(outcome, self.next, text);
    }

    #[cold]
    fn refused(&mut self, what: &str, why: AllocError) {
        match why {
            AllocError::OutOfMemory | AllocError::TooLarge | AllocError::Device(DeviceError::OutOfMemory) => {
                self.failed_allocs += 1;
                self.note_now(Outcome::Oom, format!("{what}: {why}"));
            }
            _ => self.note_now(Outcome::Error, format!("{what}: {why}")),
        }
    }

    #[cold]
    fn in_default_pool<S: Strategy + ?Sized>(
        &mut self,
        strategy: &mut S,
        dev: &mut dyn Machine,
        request: Request,
    ) -> Result<Block, AllocError> {
        self.pool_fallbacks += 1;
        strategy.allocate(dev, request.in_pool(PoolId::DEFAULT))
    }

    fn control<S: Strategy + ?Sized>(&mut self, strategy: &mut S, dev: &mut dyn Machine, what: Control<'_>) {
        match strategy.control(dev, what) {
            Ok(()) => {}
            Err(ControlError::Unsupported) => {
                self.unsupported_controls += 1;
                if let Control::PoolCreate(_) | Control::PoolBegin(_) = what {
                    self.pools = false;
                }
            }
            Err(why) => self.note_now(Outcome::Error, format!("{}: {why}", words(what))),
        }
    }

    fn device(&mut self, what: &str, result: Result<(), DeviceError>) {
        if let Err(why) = result {
            self.note_now(Outcome::Error, format!("{what}: {why}"));
        }
    }
}

/// A control call in words.
fn words(what: Control<'_>) -> String {
    match what {
        Control::PoolCreate(pool) => format!("create pool {}", pool.0),
        Control::PoolBegin(pool) => format!("begin pool {}", pool.0),
        Control::PoolEnd(pool) => format!("end pool {}", pool.0),
        Control::PoolRelease(pool) => format!("release pool {}", pool.0),
        Control::PoolEmpty(pool) => format!("empty pool {}", pool.0),
        Control::PoolNoSplit(pool) => format!("no splits in pool {}", pool.0),
        Control::PoolUseOnOom(pool) => format!("use pool {} when out of memory", pool.0),
        Control::Limit(Some(bytes)) => format!("limit of {bytes} bytes"),
        Control::Limit(None) => "no limit".to_string(),
        Control::Settings(text) => format!("settings '{}'", plain(text)),
    }
}

/// Plays one event.
#[inline(always)]
pub(crate) fn step<S: Strategy + ?Sized>(strategy: &mut S, dev: &mut dyn Machine, event: &Event, tape: &mut Tape<'_>) {
    match *event {
        Event::Alloc { slot, size, stream, pool } => {
            let request = Request::new(size, stream).in_pool(pool);
            let served = if pool == PoolId::DEFAULT || tape.pools {
                match strategy.allocate(dev, request) {
                    Err(AllocError::UnknownPool) if pool != PoolId::DEFAULT => {
                        tape.in_default_pool(strategy, dev, request)
                    }
                    served => served,
                }
            } else {
                tape.in_default_pool(strategy, dev, request)
            };
            match served {
                Ok(block) => tape.slots[slot as usize] = Some(block),
                Err(why) => tape.refused(&format!("{size} bytes on stream {stream}"), why),
            }
        }
        Event::Free { slot, ticket } => match tape.slots[slot as usize].take() {
            Some(block) => {
                if let Some(ticket) = ticket
                    && let Err(why) = strategy.record_stream(dev, &block, StreamId::ticket(ticket))
                {
                    tape.note_now(Outcome::Error, format!("record_stream: {why}"));
                }
                if let Err(why) = strategy.free(dev, block) {
                    tape.note_now(Outcome::Error, why.to_string());
                }
            }
            None => tape.skipped_events += 1,
        },
        Event::Use { slot, stream } => match &tape.slots[slot as usize] {
            Some(block) => {
                if let Err(why) = strategy.record_stream(dev, block, stream) {
                    tape.note_now(Outcome::Error, format!("record_stream: {why}"));
                }
            }
            None => tape.skipped_events += 1,
        },
        _ => rare(strategy, dev, event, tape),
    }
    tape.next += 1;
}

/// The events that are few in any trace, kept out of the loop's code.
#[inline(never)]
fn rare<S: Strategy + ?Sized>(strategy: &mut S, dev: &mut dyn Machine, event: &Event, tape: &mut Tape<'_>) {
    match *event {
        Event::Alloc { .. } | Event::Free { .. } | Event::Use { .. } | Event::Mark { .. } => {}
        Event::Done { ticket } => dev.complete(ticket),
        Event::Work { stream, ns } => {
            let result = dev.work(stream, ns);
            tape.device("work", result);
        }
        Event::Wait { stream, on } => {
            let before = Spent::of(dev);
            let result = dev.fence(on).and_then(|fence| dev.order_after(stream, fence));
            tape.workload.add(&Spent::of(dev).since(&before));
            tape.device("wait", result);
        }
        Event::Sync { stream } => {
            let before = Spent::of(dev);
            let result = dev.sync(stream.map_or(Sync::Device, Sync::Stream));
            tape.workload.add(&Spent::of(dev).since(&before));
            tape.device("sync", result);
        }
        Event::Host { ns } => dev.host_work(ns),
        Event::Empty { pool: None } => {
            if let Err(why) = strategy.trim(dev, 0) {
                tape.note_now(Outcome::Error, format!("trim: {why}"));
            }
        }
        Event::Empty { pool: Some(pool) } => tape.control(strategy, dev, Control::PoolEmpty(pool)),
        Event::Pool { op, pool } => {
            let what = match op {
                PoolOp::Create => Control::PoolCreate(pool),
                PoolOp::Begin => Control::PoolBegin(pool),
                PoolOp::End => Control::PoolEnd(pool),
                PoolOp::Release => Control::PoolRelease(pool),
                PoolOp::NoSplit => Control::PoolNoSplit(pool),
                PoolOp::UseOnOom => Control::PoolUseOnOom(pool),
            };
            tape.control(strategy, dev, what);
        }
        Event::Limit { bytes } => tape.control(strategy, dev, Control::Limit(bytes)),
        Event::Settings { text } => {
            let texts = tape.texts;
            tape.control(strategy, dev, Control::Settings(&texts[text as usize]));
        }
    }
}

/// The replay loop of one strategy type, behind a virtual call. Every [`Strategy`] has it.
pub(crate) trait Replay: Strategy {
    /// Plays events and looks at nothing.
    fn play(&mut self, dev: &mut dyn Machine, events: &[Event], tape: &mut Tape<'_>);

    /// Plays events and times some of them.
    fn play_sampled(&mut self, dev: &mut dyn Machine, events: &[Event], tape: &mut Tape<'_>, sampler: &mut Sampler);
}

impl<S: Strategy> Replay for S {
    fn play(&mut self, dev: &mut dyn Machine, events: &[Event], tape: &mut Tape<'_>) {
        for event in events {
            step(self, dev, event, tape);
        }
    }

    fn play_sampled(&mut self, dev: &mut dyn Machine, events: &[Event], tape: &mut Tape<'_>, sampler: &mut Sampler) {
        for event in events {
            match sampler.is_due(event) {
                None => step(self, dev, event, tape),
                Some(kind) => sampler.time(kind, dev, |dev| step(self, dev, event, tape)),
            }
        }
    }
}
