//! An ordered set of small numbers: a bitmap with a summary above each level.
//!
//! ```text
//! root      [ 0 1 0 1 ]                 bit i: word i below is not 0
//! level 0   [ 0 ][ 0010 ][ 0 ][ 1001 ]  the numbers; the lowest is two steps from the root
//! ```
//!
//! Every operation is a handful of shifts, and none takes memory. The root lies in the set itself: up to 64 numbers need
//! nothing else, and most sets of an arena hold no more.

/// Levels below the root that [`Bits::MAX`] numbers need.
const LEVELS: usize = 4;

/// See the module. It holds numbers below the size it was made with.
#[derive(Clone, Debug)]
pub(crate) struct Bits {
    root: u64,
    words: Vec<u64>,
    /// Where each level starts in `words`, the numbers themselves first.
    starts: [u32; LEVELS],
    /// How many levels there are below the root.
    depth: usize,
}

impl Bits {
    /// The most numbers a set can be made for.
    pub(crate) const MAX: usize = 1 << 26;

    /// An empty set for numbers below `size`, which is at most [`Bits::MAX`].
    pub(crate) fn new(size: usize) -> Bits {
        let mut starts = [0; LEVELS];
        let (mut count, mut words, mut depth) = (size, 0, 0);
        while count > 64 && depth < LEVELS {
            count = count.div_ceil(64);
            starts[depth] = words as u32;
            words += count;
            depth += 1;
        }
        Bits { root: 0, words: vec![0; words], starts, depth }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.root == 0
    }

    #[inline]
    pub(crate) fn contains(&self, number: u32) -> bool {
        let word = if self.depth == 0 { self.root } else { self.words[number as usize / 64] };
        word & 1 << (number % 64) != 0
    }

    #[inline]
    pub(crate) fn insert(&mut self, number: u32) {
        let mut at = number;
        for start in &self.starts[..self.depth] {
            let word = &mut self.words[(start + at / 64) as usize];
            let was = *word;
            *word |= 1 << (at % 64);
            if was != 0 {
                return;
            }
            at /= 64;
        }
        self.root |= 1 << (at % 64);
    }

    /// Takes a number out; whether it was in.
    #[inline]
    pub(crate) fn remove(&mut self, number: u32) -> bool {
        if !self.contains(number) {
            return false;
        }
        let mut at = number;
        for start in &self.starts[..self.depth] {
            let word = &mut self.words[(start + at / 64) as usize];
            *word &= !(1 << (at % 64));
            if *word != 0 {
                return true;
            }
            at /= 64;
        }
        self.root &= !(1 << (at % 64));
        true
    }

    /// The lowest number.
    #[inline]
    pub(crate) fn first(&self) -> Option<u32> {
        if self.root == 0 { None } else { Some(self.lowest(self.depth, self.root.trailing_zeros())) }
    }

    /// The lowest number that is at least `from`.
    pub(crate) fn at_or_after(&self, from: u32) -> Option<u32> {
        let mut at = from;
        for level in 0..=self.depth {
            let word = *self.level(level).get(at as usize / 64)?;
            let rest = word >> (at % 64);
            if rest != 0 {
                return Some(self.lowest(level, at + rest.trailing_zeros()));
            }
            at = at / 64 + 1;
        }
        None
    }

    /// All numbers, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        std::iter::successors(self.at_or_after(0), |last| self.at_or_after(last + 1))
    }

    fn level(&self, level: usize) -> &[u64] {
        if level == self.depth {
            return std::slice::from_ref(&self.root);
        }
        let end = if level + 1 < self.depth { self.starts[level + 1] as usize } else { self.words.len() };
        &self.words[self.starts[level] as usize..end]
    }

    /// The lowest number under the set bit `at` of a level.
    #[inline]
    fn lowest(&self, level: usize, at: u32) -> u32 {
        self.starts[..level].iter().rev().fold(at, |at, start| {
            let word = self.words[(start + at) as usize];
            at * 64 + word.trailing_zeros()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn it_is_an_ordered_set() {
        for size in [1, 2, 63, 64, 65, 4096, 4097, 300_000] {
            let (mut bits, mut model) = (Bits::new(size), BTreeSet::new());
            let mut state = size as u64;
            for round in 0..4000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let number = ((state >> 33) as usize % size) as u32;
                // Few numbers at first, then many, then few again.
                if state >> 62 < if (1000..2500).contains(&round) { 3 } else { 1 } {
                    bits.insert(number);
                    model.insert(number);
                } else {
                    assert_eq!(bits.remove(number), model.remove(&number));
                }
                assert_eq!((bits.first(), bits.is_empty()), (model.first().copied(), model.is_empty()));
                assert_eq!(bits.contains(number), model.contains(&number));
                assert_eq!(bits.at_or_after(number), model.range(number..).next().copied());
            }
            assert!(bits.iter().eq(model.iter().copied()));
            model.iter().for_each(|&number| assert!(bits.remove(number)));
            assert!(bits.is_empty() && bits.words.iter().all(|&word| word == 0));
        }
    }

    #[test]
    fn the_largest_set_holds_its_last_number() {
        let mut bits = Bits::new(Bits::MAX);
        bits.insert(Bits::MAX as u32 - 1);
        assert_eq!((bits.first(), bits.at_or_after(5)), (Some(Bits::MAX as u32 - 1), Some(Bits::MAX as u32 - 1)));
    }
}
