//! How alike two workloads are, seen by an allocator: what a generated trace is held against a recording with.
//!
//! Nothing here replays anything; how well strategies use memory on both is the harness's part.

mod align;
mod distance;

pub use align::{Alignment, Divergence, align};
pub use distance::Distance;

use crate::trace::{Event, Trace};
use distance::Weighted;
use std::collections::BTreeMap;

/// Two values of the same kind: of the one trace and of the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair<T> {
    /// That of the trace that is held to be right.
    pub recording: T,
    /// That of the trace that is measured by it.
    pub generated: T,
}

impl<T> Pair<T> {
    /// The same of both.
    pub fn of<U>(self, of: impl Fn(T) -> U) -> Pair<U> {
        Pair { recording: of(self.recording), generated: of(self.generated) }
    }
}

impl Pair<u64> {
    /// How much more the generated one has, as a part of what the recording has: 0.03 is three per cent more. More than
    /// nothing is infinitely more.
    pub fn excess(&self) -> f64 {
        let (recording, generated) = (self.recording as f64, self.generated as f64);
        if recording == generated { 0.0 } else { (generated - recording) / recording }
    }
}

/// See the module.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Likeness {
    /// The most bytes that are requested and not freed at a time. A free counts where it is asked for: when it completes is the device's
    /// matter, of which a recording has tickets and a generated trace has work and waits.
    pub peak_bytes: Pair<u64>,
    /// Allocations.
    pub allocs: Pair<u64>,
    /// How far the sizes of allocations are from each other, each byte counted once.
    pub sizes: Distance,
    /// How far the lifetimes of blocks are from each other, each byte counted once. A lifetime is the number of
    /// allocations and frees from a block's allocation to its free, or to the end; other events are no age.
    pub lifetimes: Distance,
}

/// Compares two traces that [`crate::check()`] accepts.
pub fn likeness(traces: Pair<&Trace>) -> Likeness {
    let peaks = traces.of(peak);
    let blocks = traces.of(blocks);
    let sizes =
        |blocks: &Vec<Weighted>| blocks.iter().map(|block| Weighted { value: block.weight, ..*block }).collect();
    Likeness {
        peak_bytes: peaks,
        allocs: Pair { recording: blocks.recording.len() as u64, generated: blocks.generated.len() as u64 },
        sizes: Distance::new(Pair { recording: sizes(&blocks.recording), generated: sizes(&blocks.generated) }),
        lifetimes: Distance::new(blocks),
    }
}

/// The most bytes that are allocated and not freed at a time.
fn peak(trace: &Trace) -> u64 {
    let mut live: BTreeMap<u32, u64> = BTreeMap::new();
    let (mut now, mut peak) = (0u64, 0);
    for event in &trace.events {
        match *event {
            Event::Alloc { slot, size, .. } => {
                live.insert(slot, size);
                now = now.saturating_add(size);
                peak = peak.max(now);
            }
            Event::Free { slot, .. } => now = now.saturating_sub(live.remove(&slot).unwrap_or(0)),
            _ => {}
        }
    }
    peak
}

/// The lifetime of each block, weighted with its size.
fn blocks(trace: &Trace) -> Vec<Weighted> {
    let mut blocks: Vec<Weighted> = Vec::new();
    let mut live: BTreeMap<u32, (usize, u64)> = BTreeMap::new();
    let mut now = 0;
    for event in &trace.events {
        match *event {
            Event::Alloc { slot, size, .. } => {
                live.insert(slot, (blocks.len(), now));
                blocks.push(Weighted { value: 0, weight: size });
                now += 1;
            }
            Event::Free { slot, .. } => {
                if let Some((block, since)) = live.remove(&slot) {
                    blocks[block].value = now - since;
                }
                now += 1;
            }
            _ => {}
        }
    }
    for (block, since) in live.into_values() {
        blocks[block].value = now - since;
    }
    blocks
}

/// A size of which one trace allocates more than the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SizeCount {
    /// The size.
    pub size: u64,
    /// How often each allocates it.
    pub allocs: Pair<u64>,
}

/// The sizes of which the traces allocate unlike numbers, those first that make the most bytes of difference.
pub fn unlike_sizes(traces: Pair<&Trace>) -> Vec<SizeCount> {
    let mut counts: BTreeMap<u64, Pair<u64>> = BTreeMap::new();
    for size in sizes(traces.recording) {
        counts.entry(size).or_insert(Pair { recording: 0, generated: 0 }).recording += 1;
    }
    for size in sizes(traces.generated) {
        counts.entry(size).or_insert(Pair { recording: 0, generated: 0 }).generated += 1;
    }
    let unlike = counts.into_iter().filter(|(_, allocs)| allocs.recording != allocs.generated);
    let mut unlike: Vec<SizeCount> = unlike.map(|(size, allocs)| SizeCount { size, allocs }).collect();
    unlike.sort_by_key(|one| {
        let more = one.allocs.recording.abs_diff(one.allocs.generated);
        std::cmp::Reverse(u128::from(one.size) * u128::from(more))
    });
    unlike
}

/// The sizes of a trace's allocations, in order.
pub fn sizes(trace: &Trace) -> impl Iterator<Item = u64> + '_ {
    trace.events.iter().filter_map(|event| match *event {
        Event::Alloc { size, .. } => Some(size),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(lines: &str) -> Trace {
        crate::format::read(format!("gpu-alloc-trace 1\n{lines}").as_bytes(), "x").unwrap()
    }

    #[test]
    fn lifetimes_count_allocations_and_frees_and_go_on_to_the_end() {
        let trace = parse("a 0 100 0\nm x\na 1 50 0\nt 7\nf 1\na 1 7 0\nf 0\n");
        let lives: Vec<(u64, u64)> = blocks(&trace).iter().map(|block| (block.weight, block.value)).collect();
        assert_eq!(lives, [(100, 4), (50, 1), (7, 2)]);
    }

    #[test]
    fn a_free_counts_where_it_is_asked_for() {
        assert_eq!(peak(&parse("a 0 100 0\nf 0 !0\na 0 60 0\na 1 50 0\nc 0\n")), 110);
    }

    #[test]
    fn a_trace_is_like_itself_whatever_its_markers() {
        let one = parse("a 0 100 0\na 1 50 0\nf 1\nf 0\n");
        let other = parse("m iteration 1\na 0 100 0\nt 5\na 1 50 0\nf 1\nm end\nf 0\n");
        let alike = likeness(Pair { recording: &one, generated: &other });
        assert_eq!((alike.sizes.distance, alike.lifetimes.distance), (0.0, 0.0));
        assert_eq!((alike.peak_bytes.excess(), alike.allocs.excess()), (0.0, 0.0));
        assert_eq!(unlike_sizes(Pair { recording: &one, generated: &other }), []);
    }

    #[test]
    fn what_differs_is_measured() {
        let one = parse("a 0 100 0\na 1 300 0\nf 0\nf 1\n");
        let other = parse("a 0 100 0\nf 0\na 0 300 0\na 1 110 0\nf 0\n");
        let alike = likeness(Pair { recording: &one, generated: &other });
        assert_eq!(alike.peak_bytes, Pair { recording: 400, generated: 410 });
        assert!((alike.peak_bytes.excess() - 0.025).abs() < 1e-12);
        assert_eq!(alike.allocs.excess(), 0.5);
        // Of 400 bytes 100 are in blocks up to 100, of 510 bytes 210 in blocks up to 110.
        let gap = 210.0 / 510.0 - 100.0 / 400.0;
        assert_eq!((alike.sizes.distance, alike.sizes.at), (gap, 110));
        // All of the one's blocks live for 2; the other's for 1, 2 and 2.
        assert_eq!((alike.lifetimes.distance, alike.lifetimes.at), (100.0 / 510.0, 1));
        let unlike = unlike_sizes(Pair { recording: &one, generated: &other });
        assert_eq!(unlike, [SizeCount { size: 110, allocs: Pair { recording: 0, generated: 1 } }]);
    }
}
