//! The time pass: how long the strategy's own code takes on this machine.
//!
//! Every repeat replays the whole trace on fresh devices against the clock, once on the strategy and once on the
//! [`Null`] strategy: the harness's own share, measured at the same moment. Single operations are timed in replays of
//! their own, since reading the clock disturbs. Events are decoded and slots allocated beforehand.
//!
//! On the simulated device the times are those of the strategy's own code. On a card they include the driver's, whose
//! calls the device times one by one.

use crate::interrupt::Interrupt;
use crate::null::Null;
use crate::replay::{CHUNK, Finding, Replay, Spent, Tape};
use allocator_core::{CallKind, Machine};
use hdrhistogram::Histogram;
use std::time::Instant;
use workload_gen::{Event, Trace};

/// On average one operation in so many is timed on its own.
pub const SAMPLED_EVERY: u32 = 8;

/// Longer operations are counted as this long.
const LONGEST_NS: u64 = 1_000_000_000;

/// What single operations are told apart by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// An allocation.
    Alloc,
    /// A free.
    Free,
}

/// Latencies of single operations, in nanoseconds. Reading the clock is part of each.
#[derive(Clone, Debug)]
pub struct Latencies {
    /// All allocations.
    pub alloc: Histogram<u64>,
    /// Allocations during which the strategy neither got memory from the driver nor gave any back nor waited.
    pub alloc_hit: Histogram<u64>,
    /// The other allocations.
    pub alloc_miss: Histogram<u64>,
    /// The time of these on the device's clock: inside driver calls, measured on a card and modelled elsewhere.
    pub alloc_driver: Histogram<u64>,
    /// All frees.
    pub free: Histogram<u64>,
}

impl Default for Latencies {
    fn default() -> Latencies {
        // Three digits from 1 ns to a second: these bounds are valid, so this never fails.
        let histogram = || Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("valid bounds");
        Latencies {
            alloc: histogram(),
            alloc_hit: histogram(),
            alloc_miss: histogram(),
            alloc_driver: histogram(),
            free: histogram(),
        }
    }
}

/// Picks operations to time and keeps their latencies.
#[derive(Clone, Debug)]
pub struct Sampler {
    countdown: u32,
    state: u32,
    /// What was measured.
    pub latencies: Latencies,
}

impl Default for Sampler {
    fn default() -> Sampler {
        Sampler { countdown: 1, state: 0x9e37_79b9, latencies: Latencies::default() }
    }
}

impl Sampler {
    /// Whether this event is to be timed. The gaps vary, so that no loop in a workload keeps step with them; they are
    /// the same in each run.
    #[inline]
    pub fn is_due(&mut self, event: &Event) -> Option<Operation> {
        let operation = match event {
            Event::Alloc { .. } => Operation::Alloc,
            Event::Free { .. } => Operation::Free,
            _ => return None,
        };
        self.countdown -= 1;
        if self.countdown > 0 {
            return None;
        }
        self.state ^= self.state << 13;
        self.state ^= self.state >> 17;
        self.state ^= self.state << 5;
        self.countdown = 1 + self.state % (2 * SAMPLED_EVERY - 1);
        Some(operation)
    }

    /// Times `operation`.
    pub fn time(&mut self, operation: Operation, dev: &mut dyn Machine, run: impl FnOnce(&mut dyn Machine)) {
        let before = Spent::of(dev);
        let start = Instant::now();
        run(dev);
        let ns = start.elapsed().as_nanos() as u64;
        match operation {
            Operation::Free => self.latencies.free.saturating_record(ns),
            Operation::Alloc => {
                self.latencies.alloc.saturating_record(ns);
                let spent = Spent::of(dev).since(&before);
                if is_hit(&spent) {
                    self.latencies.alloc_hit.saturating_record(ns);
                } else {
                    self.latencies.alloc_miss.saturating_record(ns);
                    self.latencies.alloc_driver.saturating_record(spent.total_ns());
                }
            }
        }
    }
}

/// Whether there were no calls that move memory or wait, as against those that only look at a stream.
fn is_hit(spent: &Spent) -> bool {
    CallKind::ALL
        .iter()
        .all(|&kind| !(kind.moves_memory() || kind == CallKind::Sync) || spent.calls[kind as usize] == 0)
}

/// The result of a time pass.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// Events that call the strategy.
    pub ops: u64,
    /// Wall-clock nanoseconds of each whole replay, ascending.
    pub total_ns: Vec<u64>,
    /// The same with the null strategy.
    pub null_ns: Vec<u64>,
    /// The strategy's driver calls in each of these replays, by kind, with their time on the device's clock.
    pub driver: Vec<Spent>,
    /// Latencies of single operations.
    pub latencies: Latencies,
    /// Latencies of single operations with the null strategy.
    pub null_latencies: Latencies,
    /// What went wrong, if anything.
    pub finding: Option<Finding>,
}

/// Replays `trace` `repeats` times on devices and strategies made afresh each time; fewer times if there is an interrupt.
/// Between replays is soon enough to ask for one: within a replay, the question would be timed.
pub fn time<M: Machine>(
    trace: &Trace,
    repeats: u32,
    device: impl Fn() -> Result<M, Finding>,
    strategy: impl Fn(&mut M) -> Result<Box<dyn Replay>, Finding>,
    interrupt: &Interrupt,
) -> Result<Times, Finding> {
    let ops = trace.events.iter().filter(|event| calls_strategy(event)).count() as u64;
    let mut times = Times { ops, ..Times::default() };
    let (mut sampler, mut null_sampler) = (Sampler::default(), Sampler::default());
    for _ in 0..repeats {
        if interrupt.came() {
            break;
        }
        let mut machine = device()?;
        let mut subject = strategy(&mut machine)?;
        let timed = against_the_clock(trace, subject.as_mut(), &mut machine);
        drop(machine);
        times.total_ns.push(timed.ns);
        times.driver.push(timed.driver);
        times.finding = times.finding.or(timed.finding);
        times.null_ns.push(against_the_clock(trace, &mut Null, &mut device()?).ns);

        let mut machine = device()?;
        let mut subject = strategy(&mut machine)?;
        sampled(trace, subject.as_mut(), &mut machine, &mut sampler);
        drop(machine);
        sampled(trace, &mut Null, &mut device()?, &mut null_sampler);
    }
    times.total_ns.sort_unstable();
    times.null_ns.sort_unstable();
    times.latencies = sampler.latencies;
    times.null_latencies = null_sampler.latencies;
    Ok(times)
}

struct Timed {
    ns: u64,
    driver: Spent,
    finding: Option<Finding>,
}

fn against_the_clock(trace: &Trace, strategy: &mut dyn Replay, machine: &mut dyn Machine) -> Timed {
    let mut tape = Tape::new(trace.header.slots, &trace.texts);
    let before = Spent::of(machine);
    let start = Instant::now();
    for chunk in trace.events.chunks(CHUNK) {
        strategy.play(machine, chunk, &mut tape);
    }
    let ns = start.elapsed().as_nanos() as u64;
    let driver = Spent::of(machine).since(&before).since(&tape.workload);
    Timed { ns, driver, finding: tape.finding }
}

fn sampled(trace: &Trace, strategy: &mut dyn Replay, machine: &mut dyn Machine, sampler: &mut Sampler) {
    let mut tape = Tape::new(trace.header.slots, &trace.texts);
    for chunk in trace.events.chunks(CHUNK) {
        strategy.play_sampled(machine, chunk, &mut tape, sampler);
    }
}

fn calls_strategy(event: &Event) -> bool {
    match event {
        Event::Alloc { .. } | Event::Use { .. } | Event::Free { .. } => true,
        Event::Empty { .. } | Event::Pool { .. } | Event::Limit { .. } | Event::Settings { .. } => true,
        Event::Done { .. } | Event::Work { .. } | Event::Wait { .. } | Event::Sync { .. } => false,
        Event::Host { .. } | Event::Mark { .. } => false,
    }
}

/// The middle of ascending values: the mean of the two middle ones if their number is even.
pub fn median(ascending: &[u64]) -> Option<u64> {
    let middle = ascending.len() / 2;
    let upper = *ascending.get(middle)?;
    if ascending.len() % 2 == 1 { Some(upper) } else { Some(ascending[middle - 1].midpoint(upper)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocator_core::SimDevice;

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3]), Some(3));
        assert_eq!(median(&[1, 2, 30]), Some(2));
        assert_eq!(median(&[1, 2, 4, 30]), Some(3));
        assert_eq!(median(&[u64::MAX, u64::MAX]), Some(u64::MAX));
    }

    #[test]
    fn samples_are_spread_at_the_stated_rate_and_repeat() {
        let event = Event::Free { slot: 0, ticket: None };
        let picks =
            |mut sampler: Sampler| -> Vec<u32> { (0..100_000).filter(|_| sampler.is_due(&event).is_some()).collect() };
        let first = picks(Sampler::default());
        assert_eq!(first, picks(Sampler::default()));
        let expected = 100_000 / SAMPLED_EVERY as usize;
        assert!(first.len().abs_diff(expected) < expected / 20, "{} samples, {expected} expected", first.len());
        assert_eq!(Sampler::default().is_due(&Event::Host { ns: 1 }), None);
    }

    #[test]
    fn a_hit_is_an_allocation_without_memory_calls() {
        let mut dev = SimDevice::new(1 << 30);
        let mut sampler = Sampler::default();
        sampler.time(Operation::Alloc, &mut dev, |dev| assert!(dev.fence(allocator_core::StreamId(0)).is_ok()));
        sampler.time(Operation::Alloc, &mut dev, |dev| assert!(dev.malloc(512).is_ok()));
        sampler.time(Operation::Free, &mut dev, |_| {});
        let Latencies { alloc, alloc_hit, alloc_miss, alloc_driver, free } = sampler.latencies;
        assert_eq!((alloc.len(), alloc_hit.len(), alloc_miss.len(), free.len()), (2, 1, 1, 1));
        let modelled = dev.usage().call_ns[CallKind::Malloc as usize];
        assert!(alloc_driver.max().abs_diff(modelled) < modelled / 500, "{modelled}");
    }
}
