//! Whether an iteration asks for what the one before asked for.

use crate::likeness::align;
use serde::Serialize;
use std::collections::BTreeMap;

/// How much of what iterations allocate the iteration before allocated too. An iteration begins at its marker and ends at
/// the next one, or at the end; the first has none before it and only counts for the second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Regularity {
    /// Iterations that have one before.
    pub iterations: u64,
    /// Bytes that they allocate.
    pub bytes: u64,
    /// Of these, bytes in sizes that the iteration before allocated, each allocation being matched with one of its own.
    pub same_size_bytes: u64,
    /// Of these, bytes that also came in the same order: those that stay when the two sequences of sizes are laid along
    /// each other, from each place at which they part to the nearest at which they go on alike.
    pub same_order_bytes: u64,
}

/// Follows the iterations of a trace.
#[derive(Default)]
pub(super) struct Iterations {
    /// What the iteration allocates, once the first has begun.
    now: Option<Vec<u64>>,
    before: Option<Vec<u64>>,
    so_far: Regularity,
}

impl Iterations {
    pub(super) fn begin(&mut self) {
        self.close();
        self.before = self.now.replace(Vec::new());
    }

    pub(super) fn allocated(&mut self, size: u64) {
        if let Some(now) = &mut self.now {
            now.push(size);
        }
    }

    /// What there is to say, if there are two iterations.
    pub(super) fn end(mut self) -> Option<Regularity> {
        self.close();
        (self.so_far.iterations > 0).then_some(self.so_far)
    }

    fn close(&mut self) {
        let (Some(before), Some(now)) = (&self.before, &self.now) else { return };
        self.so_far.iterations += 1;
        let add = |sum: &mut u64, bytes: u64| *sum = sum.saturating_add(bytes);
        let mut left: BTreeMap<u64, u64> = BTreeMap::new();
        before.iter().for_each(|&size| *left.entry(size).or_default() += 1);
        for &size in now {
            add(&mut self.so_far.bytes, size);
            if let Some(count) = left.get_mut(&size).filter(|count| **count > 0) {
                *count -= 1;
                add(&mut self.so_far.same_size_bytes, size);
            }
        }
        // What lies between the places at which they part is alike.
        let mut from = 0;
        let alignment = align(before, now);
        let ends = alignment.divergences.iter().map(|one| (one.at.generated, one.at.generated + one.len.generated));
        for (until, next) in ends.chain([(now.len(), now.len())]) {
            now[from..until].iter().for_each(|&size| add(&mut self.so_far.same_order_bytes, size));
            from = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regularity(iterations: &[&[u64]]) -> Option<Regularity> {
        let mut all = Iterations::default();
        all.allocated(1 << 40);
        for iteration in iterations {
            all.begin();
            iteration.iter().for_each(|&size| all.allocated(size));
        }
        all.end()
    }

    #[test]
    fn one_iteration_is_not_regular_or_irregular() {
        assert_eq!(regularity(&[]), None);
        assert_eq!(regularity(&[&[1, 2]]), None);
    }

    #[test]
    fn sizes_and_their_order_count_by_bytes() {
        let same = regularity(&[&[5, 6, 7], &[5, 6, 7], &[5, 6, 7]]).unwrap();
        assert_eq!(same, Regularity { iterations: 2, bytes: 36, same_size_bytes: 36, same_order_bytes: 36 });
        let more = regularity(&[&[5, 6, 7], &[5, 100, 6, 6, 7]]).unwrap();
        assert_eq!((more.bytes, more.same_size_bytes), (124, 18));
        let turned = regularity(&[&[1, 2, 3, 4, 5, 6], &[4, 5, 6, 1, 2, 3]]).unwrap();
        assert_eq!((turned.bytes, turned.same_size_bytes), (21, 21));
        assert_eq!(turned.same_order_bytes, 6, "4, 5 and 6 came before 1, 2 and 3");
        assert_eq!(regularity(&[&[1], &[2]]).unwrap().same_size_bytes, 0);
    }
}
