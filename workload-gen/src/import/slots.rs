//! Numbers handed out lowest first.

/// Hands out the lowest number that is not in use: dense numbers let a replay use arrays.
#[derive(Default)]
pub(crate) struct LowestFree {
    /// A bit for each number that was ever in use: set if it is free.
    free: Vec<u64>,
    /// No word before this one has a free number.
    first: usize,
    /// Numbers that were ever in use.
    count: u32,
}

impl LowestFree {
    /// The lowest free number, in use from now on.
    pub(crate) fn take(&mut self) -> u32 {
        while let Some(word) = self.free.get_mut(self.first) {
            if *word != 0 {
                let bit = word.trailing_zeros();
                *word &= *word - 1;
                return self.first as u32 * 64 + bit;
            }
            self.first += 1;
        }
        let number = self.count;
        self.count += 1;
        if number.is_multiple_of(64) {
            self.free.push(0);
        }
        self.first = self.free.len();
        number
    }

    /// Gives a number back that is in use.
    pub(crate) fn give_back(&mut self, number: u32) {
        let word = number as usize / 64;
        self.free[word] |= 1 << (number % 64);
        self.first = self.first.min(word);
    }

    /// One more than the highest number ever in use.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn always_the_lowest() {
        let mut slots = LowestFree::default();
        let mut used = BTreeSet::new();
        let mut state = 1u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            if (state >> 33) % 5 < 3 || used.is_empty() {
                let lowest = (0..).find(|n| !used.contains(n)).unwrap();
                assert_eq!(slots.take(), lowest);
                used.insert(lowest);
            } else {
                let nth = (state >> 40) as usize % used.len();
                let number = *used.iter().nth(nth).unwrap();
                used.remove(&number);
                slots.give_back(number);
            }
            if used.len() > 300 {
                for number in std::mem::take(&mut used) {
                    slots.give_back(number);
                }
            }
        }
        assert_eq!(slots.count(), 301);
    }
}
