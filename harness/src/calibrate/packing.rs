//! Whether the simulated `malloc` puts requests where a card does, and packs them into driver pages as it does.
//!
//! Random programs of `malloc` and `free` run on both; what the device has lost is compared after every call, and every
//! address. The placements on the card are kept: a rule that fits better can be found from them without a card.

use allocator_core::{DeviceError, Machine, Packing};

/// Programs, each beginning and ending with nothing allocated.
const PROGRAMS: u64 = 16;
/// Calls of a program before it frees what is left.
const CALLS: usize = 600;
/// Requests that are live at a time at most.
const SLOTS: usize = 96;
/// The largest request.
const MAX_BYTES: u64 = 8 << 20;

/// A call of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Call {
    /// Whose memory.
    pub(super) slot: usize,
    /// The bytes asked for; 0 is a `free`.
    pub(super) bytes: u64,
}

/// What a call did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Outcome {
    /// The address, given out or given back.
    pub(super) ptr: u64,
    /// Bytes that the device has lost after it.
    pub(super) device_used: u64,
}

impl Outcome {
    /// With the address counted from another one. It may lie below it.
    fn seen_from(self, base: u64) -> Outcome {
        Outcome { ptr: self.ptr.wrapping_sub(base), ..self }
    }
}

/// A call after which the two devices were not alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Difference {
    /// The program.
    pub(super) seed: u64,
    /// The call, counted from 0.
    pub(super) step: usize,
    /// What it was.
    pub(super) call: Call,
    /// What it did on the card; the address seen from the first one.
    pub(super) card: Outcome,
    /// What it did on the other device.
    pub(super) simulated: Outcome,
}

/// A program and what it did on the card.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// Which program.
    pub(super) seed: u64,
    /// Its calls, and what they did.
    pub(super) steps: Vec<(Call, Outcome)>,
}

/// Runs every program on `card`, which watches its memory.
pub(super) fn record(card: &mut impl Machine) -> Result<Vec<Run>, DeviceError> {
    let record = |seed| {
        let calls = program(seed);
        let outcomes = run(&calls, card)?;
        Ok(Run { seed, steps: calls.into_iter().zip(outcomes).collect() })
    };
    (0..PROGRAMS).map(record).collect()
}

/// Holds recorded runs against another device that has served nothing yet; the first difference too.
pub(super) fn compare(runs: &[Run], dev: &mut impl Machine) -> Result<(Packing, Option<Difference>), DeviceError> {
    let (mut packing, mut first, mut bases) = (Packing::default(), None, None);
    for Run { seed, steps } in runs {
        let calls: Vec<Call> = steps.iter().map(|(call, _)| *call).collect();
        for (step, (&(call, card), simulated)) in steps.iter().zip(run(&calls, dev)?).enumerate() {
            let (card_base, base) = *bases.get_or_insert((card.ptr, simulated.ptr));
            let [card, simulated] = [card.seen_from(card_base), simulated.seen_from(base)];
            packing.calls += 1;
            packing.equal_bytes += u64::from(card.device_used == simulated.device_used);
            packing.worst_bytes = packing.worst_bytes.max(card.device_used.abs_diff(simulated.device_used));
            packing.requests += u64::from(call.bytes > 0);
            packing.equal_places += u64::from(call.bytes > 0 && card.ptr == simulated.ptr);
            if card != simulated && first.is_none() {
                first = Some(Difference { seed: *seed, step, call, card, simulated });
            }
        }
    }
    Ok((packing, first))
}

/// Runs a program. What the device has lost counts from its beginning.
fn run(calls: &[Call], dev: &mut impl Machine) -> Result<Vec<Outcome>, DeviceError> {
    let start = dev.usage().device_used;
    let mut slots = [0; SLOTS];
    let step = |call: &Call| {
        let slot = &mut slots[call.slot];
        if call.bytes > 0 {
            *slot = dev.malloc(call.bytes)?;
        } else {
            dev.free(*slot)?;
        }
        Ok(Outcome { ptr: *slot, device_used: dev.usage().device_used.saturating_sub(start) })
    };
    calls.iter().map(step).collect()
}

/// A program: the same for the same seed. Sizes are spread over their logarithm, with steps and pages hit exactly more often
/// than by chance. Seeds that are odd ask for less than a page only.
fn program(seed: u64) -> Vec<Call> {
    let mut random = Random(seed);
    let highest = if seed.is_multiple_of(2) { MAX_BYTES } else { (2 << 20) - 1 };
    let mut live = Vec::new();
    let mut idle: Vec<usize> = (0..SLOTS).rev().collect();
    let mut calls = Vec::with_capacity(CALLS + SLOTS);
    for at in 0..CALLS {
        // The number of live requests swells and ebbs, so that holes come and go.
        let swelling = (at / 100).is_multiple_of(2);
        let takes = random.below(10) < if swelling { 7 } else { 3 };
        if live.is_empty() || (takes && !idle.is_empty()) {
            let slot = idle.swap_remove(idle.len() - 1);
            live.push(slot);
            calls.push(Call { slot, bytes: random.size(highest) });
        } else {
            let slot = live.swap_remove(random.below(live.len() as u64) as usize);
            idle.push(slot);
            calls.push(Call { slot, bytes: 0 });
        }
    }
    calls.extend(live.into_iter().map(|slot| Call { slot, bytes: 0 }));
    calls
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn size(&mut self, highest: u64) -> u64 {
        let bits = self.below(23).max(self.below(23));
        let spread = 1 + self.below(2 << bits);
        let step = [1, 1, 512, 64 << 10][self.below(4) as usize];
        spread.next_multiple_of(step).min(highest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocator_core::SimDevice;

    fn device() -> SimDevice {
        SimDevice::new(80 << 30)
    }

    #[test]
    fn a_device_is_like_itself_wherever_it_begins() {
        let mut runs = record(&mut device()).unwrap();
        for (_, outcome) in runs.iter_mut().flat_map(|run| &mut run.steps) {
            outcome.ptr += 5 << 30;
        }
        let (packing, first) = compare(&runs, &mut device()).unwrap();
        let calls: usize = runs.iter().map(|run| run.steps.len()).sum();
        let calls = calls as u64;
        assert_eq!((packing.calls, packing.equal_bytes, packing.worst_bytes, first), (calls, calls, 0, None));
        assert_eq!((packing.requests, packing.equal_places), (calls / 2, calls / 2), "half of the calls are frees");
        assert!(calls >= PROGRAMS * CALLS as u64);
        let last = runs.iter().map(|run| run.steps[run.steps.len() - 1].1.device_used);
        assert!(last.into_iter().all(|used| used == 0), "programs free everything");
    }

    #[test]
    fn a_device_that_does_otherwise_is_found_out() {
        let all = record(&mut device()).unwrap();
        let is_request = |(_, (call, _)): &(usize, &(Call, Outcome))| call.bytes > 0;
        let (step, _) = all[3].steps.iter().enumerate().skip(40).find(is_request).unwrap();
        for (ptr, lost) in [(0, 4 << 20), (512, 0)] {
            let mut runs = all.clone();
            let outcome = &mut runs[3].steps[step].1;
            outcome.device_used += lost;
            outcome.ptr += ptr;
            let (packing, first) = compare(&runs, &mut device()).unwrap();
            assert_eq!(packing.calls - packing.equal_bytes, u64::from(lost > 0));
            assert_eq!(packing.requests - packing.equal_places, u64::from(ptr > 0));
            assert_eq!(packing.worst_bytes, lost);
            let first = first.unwrap();
            assert_eq!((first.seed, first.step, first.call), (3, step, runs[3].steps[step].0));
            assert_eq!(first.card.device_used - first.simulated.device_used, lost);
            assert_eq!(first.card.ptr.wrapping_sub(first.simulated.ptr), ptr);
        }
    }

    #[test]
    fn programs_have_requests_of_all_sizes_and_holes() {
        for seed in 0..PROGRAMS {
            let calls = program(seed);
            let count = |from: u64, to: u64| calls.iter().filter(|call| (from..to).contains(&call.bytes)).count();
            assert!(count(1, 4 << 10) > 10 && count(64 << 10, 2 << 20) > 50, "{seed}");
            assert_eq!(count(2 << 20, u64::MAX) > 20, seed.is_multiple_of(2), "{seed}");
            assert!(calls.iter().map(|call| call.bytes).max().unwrap() <= MAX_BYTES);
        }
    }
}
