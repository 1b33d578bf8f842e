//! A set of addresses, as ranges that neither touch nor overlap.

use std::collections::BTreeMap;

/// See the module. Ranges that would pass the end of the address space end there.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Ranges {
    /// By first address: the address after the last.
    ends: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Adds a range, merging it with its neighbours.
    pub(super) fn add(&mut self, mut start: u64, bytes: u64) {
        let mut end = start.saturating_add(bytes);
        if start == end {
            return;
        }
        while let Some((&other, &other_end)) = self.ends.range(..=end).next_back()
            && other_end >= start
        {
            self.ends.remove(&other);
            (start, end) = (start.min(other), end.max(other_end));
        }
        self.ends.insert(start, end);
    }

    /// Takes a range out.
    pub(super) fn remove(&mut self, start: u64, bytes: u64) {
        let end = start.saturating_add(bytes);
        if start == end {
            return;
        }
        while let Some((&other, &other_end)) = self.ends.range(..end).next_back()
            && other_end > start
        {
            self.ends.remove(&other);
            if other_end > end {
                self.ends.insert(end, other_end);
            }
            if other < start {
                self.ends.insert(other, start);
            }
        }
    }

    /// Whether some address of a range is in the set.
    pub(super) fn overlap(&self, start: u64, bytes: u64) -> bool {
        let below = self.ends.range(..start.saturating_add(bytes)).next_back();
        below.is_some_and(|(_, &end)| end > start)
    }

    /// How many ranges there are.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// How many addresses are in the set.
    pub(super) fn bytes(&self) -> u64 {
        self.ends.iter().map(|(start, end)| end - start).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &[(u64, u64)]) -> Ranges {
        Ranges { ends: ranges.iter().copied().collect() }
    }

    #[test]
    fn ranges_merge_and_split() {
        let mut ranges = Ranges::default();
        ranges.add(10, 10);
        ranges.add(30, 10);
        ranges.add(20, 10);
        assert_eq!(ranges, set(&[(10, 40)]));
        ranges.remove(15, 10);
        assert_eq!(ranges, set(&[(10, 15), (25, 40)]));
        assert_eq!((ranges.len(), ranges.bytes()), (2, 20));
        for (start, bytes, taken) in [(0, 10, false), (0, 11, true), (14, 1, true), (15, 10, false), (24, 2, true)] {
            assert_eq!(ranges.overlap(start, bytes), taken, "{bytes} at {start}");
        }
        ranges.add(50, 0);
        ranges.remove(12, 0);
        assert_eq!(ranges, set(&[(10, 15), (25, 40)]), "ranges of no bytes change nothing");
        ranges.remove(0, 100);
        assert_eq!(ranges, Ranges::default());
    }

    #[test]
    fn the_address_space_ends() {
        let mut ranges = Ranges::default();
        ranges.add(u64::MAX - 1, 512);
        ranges.add(0, u64::MAX);
        assert_eq!(ranges, set(&[(0, u64::MAX)]));
        assert!(ranges.overlap(u64::MAX - 1, 512));
        ranges.remove(512, u64::MAX);
        assert_eq!(ranges.bytes(), 512);
    }
}
