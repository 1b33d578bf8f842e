//! Whether the simulated `malloc` packs requests into driver pages as a card does.
//!
//! Random programs of `malloc` and `free` run on both, and what the device has lost is compared after every call. The
//! placements on the card are kept: a rule that fits better can be found from them without a card.

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

/// A call after which the two devices had not lost the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Difference {
    /// The program.
    pub(super) seed: u64,
    /// The call, counted from 0.
    pub(super) step: usize,
    /// What it was.
    pub(super) call: Call,
    /// What one device had lost.
    pub(super) card: u64,
    /// What the other had.
    pub(super) simulated: u64,
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

/// Holds recorded runs against another device of the same kind, made anew for each; the first difference too.
pub(super) fn compare<M: Machine>(
    runs: &[Run],
    mut make: impl FnMut() -> M,
) -> Result<(Packing, Option<Difference>), DeviceError> {
    let (mut packing, mut first) = (Packing::default(), None);
    for recorded in runs {
        let calls: Vec<Call> = recorded.steps.iter().map(|(call, _)| *call).collect();
        let outcomes = run(&calls, &mut make())?;
        for (step, ((call, on_card), simulated)) in recorded.steps.iter().zip(outcomes).enumerate() {
            let (card, simulated) = (on_card.device_used, simulated.device_used);
            packing.steps += 1;
            packing.equal += u64::from(card == simulated);
            packing.worst_bytes = packing.worst_bytes.max(card.abs_diff(simulated));
            if card != simulated && first.is_none() {
                first = Some(Difference { seed: recorded.seed, step, call: *call, card, simulated });
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
    fn a_device_packs_like_itself() {
        let runs = record(&mut device()).unwrap();
        let (packing, first) = compare(&runs, device).unwrap();
        let steps: usize = runs.iter().map(|run| run.steps.len()).sum();
        assert_eq!((packing, first), (Packing { steps: steps as u64, equal: steps as u64, worst_bytes: 0 }, None));
        assert!(steps as u64 >= PROGRAMS * CALLS as u64);
        let last = runs.iter().map(|run| run.steps[run.steps.len() - 1].1.device_used);
        assert!(last.into_iter().all(|used| used == 0), "programs free everything");
    }

    #[test]
    fn a_device_that_packs_otherwise_is_found_out() {
        let mut runs = record(&mut device()).unwrap();
        let (call, outcome) = &mut runs[3].steps[40];
        outcome.device_used += 4 << 20;
        let expected = Difference {
            seed: 3,
            step: 40,
            call: *call,
            card: outcome.device_used,
            simulated: outcome.device_used - (4 << 20),
        };
        let (packing, first) = compare(&runs, device).unwrap();
        assert_eq!((packing.steps - packing.equal, packing.worst_bytes, first), (1, 4 << 20, Some(expected)));
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
