//! Each adversary does what makes it one.

use crate::run::{Run, run};
use std::collections::BTreeMap;

/// First fit in one region that has no end, with the blocks by their start.
#[derive(Default)]
struct FirstFit {
    ends: BTreeMap<u64, u64>,
    starts: BTreeMap<usize, u64>,
    extent: u64,
}

impl FirstFit {
    fn replay(run: &Run, upto: usize) -> FirstFit {
        let mut heap = FirstFit::default();
        run.walk(|born, block| {
            if born && block.born <= upto {
                heap.allocate(block.born, block.size);
            } else if !born && block.died.is_some_and(|died| died <= upto) {
                heap.ends.remove(&heap.starts[&block.born]);
            }
        });
        heap
    }

    fn allocate(&mut self, key: usize, size: u64) {
        let mut start = 0;
        for (&next, &end) in &self.ends {
            if start + size <= next {
                break;
            }
            start = end;
        }
        self.ends.insert(start, start + size);
        self.starts.insert(key, start);
        self.extent = self.extent.max(start + size);
    }

    /// What is free between blocks, and behind the last up to where one was.
    fn gaps(&self) -> Vec<u64> {
        let mut start = 0;
        let blocks = self.ends.iter().map(|(&start, &end)| (start, end)).chain([(self.extent, self.extent)]);
        blocks.map(|(next, end)| next - std::mem::replace(&mut start, end)).filter(|&gap| gap > 0).collect()
    }
}

/// Robson's bound, which first fit meets: it needs M (log2(n) / 2 + 1) - n + 1 for M units of live blocks of up to n.
#[test]
fn robson_drives_first_fit_to_the_bound() {
    for (live, rounds) in [(64, 4), (1024, 7), (1024, 10), (1000, 6), (4096, 12)] {
        let run = run(&format!("robson:live={live},rounds={rounds},unit=512"));
        assert!(run.peak() <= live * 512);
        let heap = FirstFit::replay(&run, usize::MAX);
        let bound = live as f64 * (rounds as f64 / 2.0 + 1.0) - (1 << rounds) as f64 + 1.0;
        let units = heap.extent as f64 / 512.0;
        assert!(
            units >= 0.98 * bound && units <= bound.ceil(),
            "live={live}, rounds={rounds}: {units} of {bound} units"
        );
    }
}

#[test]
fn robson_frees_everything_between_its_iterations_and_does_the_same_again() {
    let run = run("robson:live=256,rounds=5,iterations=3");
    let starts: Vec<usize> = (1..=3).flat_map(|number| run.marks(&format!("iteration {number}"))).collect();
    assert!(starts.iter().all(|&start| run.live_at(start).next().is_none()));
    let sizes = |from: usize, to: usize| -> Vec<u64> {
        run.blocks.iter().filter(|block| (from..to).contains(&block.born)).map(|block| block.size).collect()
    };
    assert_eq!(sizes(starts[0], starts[1]), sizes(starts[1], starts[2]));
    assert_eq!(sizes(0, starts[1]).iter().max(), Some(&(32 * (2 << 20))));
}

#[test]
fn combs_leave_memory_that_is_in_no_one_piece() {
    let run = run("comb:");
    let freed = run.marks("gaps freed")[0];
    let gaps = FirstFit::replay(&run, freed).gaps();
    assert_eq!(gaps, [64 << 20; 20]);
    let wide: Vec<u64> = run.blocks.iter().filter(|block| block.born > freed).map(|block| block.size).collect();
    assert_eq!(wide, [128 << 20; 10]);
    assert!(gaps.iter().all(|gap| wide.iter().all(|wide| wide > gap)) && gaps.iter().sum::<u64>() >= wide.iter().sum());
    assert_eq!(run.live_at(freed).map(|block| block.size).collect::<Vec<_>>(), [2 << 20; 20]);
}

#[test]
fn a_joined_comb_lies_in_one_block_that_was_there_before() {
    let (joined, apart) = (run("comb:teeth=4,wide=100MiB"), run("comb:teeth=4,wide=100MiB,joined=no"));
    assert_eq!(joined.blocks[0].size, 4 * (66 << 20));
    assert!(joined.blocks[0].died < Some(joined.blocks[1].born));
    let sizes = |run: &Run| run.blocks.iter().map(|block| block.size).collect::<Vec<_>>();
    assert_eq!(sizes(&joined)[1..], sizes(&apart));
}

/// The sizes of each iteration.
fn sizes(run: &Run) -> Vec<u64> {
    let mut sizes: Vec<u64> = run.blocks.iter().map(|block| block.size).collect();
    sizes.dedup();
    sizes
}

#[test]
fn ramps_grow_by_their_step_and_never_fall() {
    let run = run("ramp:from=1MiB,step=1000,iterations=50,blocks=3");
    assert_eq!(sizes(&run), (0..50).map(|iteration| (1 << 20) + iteration * 1000).collect::<Vec<_>>());
    assert_eq!((run.blocks.len(), run.peak()), (150, 3 * ((1 << 20) + 49_000)));
}

#[test]
fn saws_fall_back_after_their_period() {
    let run = run("saw:from=1MiB,step=1MiB,iterations=8,period=3");
    assert_eq!(sizes(&run).iter().map(|size| size >> 20).collect::<Vec<_>>(), [1, 2, 3, 1, 2, 3, 1, 2]);
}

#[test]
fn overlapping_iterations_have_the_new_before_the_old_is_freed() {
    let (apart, overlapping) = (run("ramp:iterations=5"), run("ramp:iterations=5,overlap=yes"));
    assert_eq!(sizes(&apart), sizes(&overlapping));
    assert_eq!(apart.peak(), (64 + 16) << 20);
    assert_eq!(overlapping.peak(), (64 + 12 + 64 + 16) << 20);
}

#[test]
fn sizes_just_above_powers_of_two_are_that() {
    let run = run("pow2:allocations=3000,least=10,most=14,extra=7,live=200KiB");
    let mut of_each = BTreeMap::new();
    for block in &run.blocks {
        *of_each.entry(block.size).or_insert(0) += 1;
        assert_eq!(block.label, format!("buffer 2^{}", (block.size - 7).ilog2()));
    }
    assert_eq!(
        of_each.keys().copied().collect::<Vec<_>>(),
        (10..=14).map(|power| (1 << power) + 7).collect::<Vec<_>>()
    );
    assert!(of_each.values().all(|count| (500..700).contains(count)), "{of_each:?}");
    assert!(run.peak() <= 200 << 10 && run.peak() > 180 << 10);
}
