//! Which private pool an allocation came from.
//!
//! Entries do not say it. The segments that are left at the end do, each for its own address range and for the time
//! since it was made: addresses are reused, so nothing is known about the time before.

use crate::snapshot::{Action, History, Segment};
use allocator_core::PoolId;

/// What the final segments tell about pools.
pub(super) struct PoolHints {
    /// The framework's pair of each private pool, ascending: pool 1 is the first.
    pub(super) pairs: Vec<(u64, u64)>,
    /// By address; they do not overlap in a real file.
    ranges: Vec<Range>,
}

struct Range {
    start: u64,
    end: u64,
    /// The entry that made it, if the history has it: the hint holds from there on.
    made: Option<usize>,
    pool: PoolId,
}

impl PoolHints {
    pub(super) fn new<'a>(segments: impl Iterator<Item = &'a Segment>, history: &History) -> PoolHints {
        let mut private: Vec<&Segment> = segments.filter(|segment| segment.pool != (0, 0)).collect();
        private.sort_by_key(|segment| segment.address);
        let mut pairs: Vec<(u64, u64)> = private.iter().map(|segment| segment.pool).collect();
        pairs.sort_unstable();
        pairs.dedup();
        let mut ranges: Vec<Range> = private
            .iter()
            .map(|segment| Range {
                start: segment.address,
                end: segment.address.saturating_add(segment.total_size),
                made: None,
                pool: PoolId(pairs.partition_point(|pair| *pair <= segment.pool) as u32),
            })
            .collect();
        if !ranges.is_empty() {
            for (index, entry) in history.iter().enumerate() {
                let first = ranges.partition_point(|range| range.start < entry.addr);
                match entry.action {
                    Action::SegmentAlloc => match ranges.get_mut(first) {
                        Some(range) if range.start == entry.addr => range.made = Some(index),
                        _ => {}
                    },
                    // What is left of an expandable segment may start in the midst of what was mapped at once.
                    Action::SegmentMap => {
                        let end = entry.addr.saturating_add(entry.size);
                        for range in ranges[first..].iter_mut().take_while(|range| range.start < end) {
                            range.made.get_or_insert(index);
                        }
                    }
                    _ => {}
                }
            }
        }
        PoolHints { pairs, ranges }
    }

    /// The pool of a block at `address` that entry number `index` hands out.
    pub(super) fn pool(&self, address: u64, index: usize) -> PoolId {
        let at = self.ranges.partition_point(|range| range.start <= address);
        match at.checked_sub(1).map(|at| &self.ranges[at]) {
            Some(range) if address < range.end && range.made.is_none_or(|made| index >= made) => range.pool,
            _ => PoolId::DEFAULT,
        }
    }
}
