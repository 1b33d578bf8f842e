//! Sizes and their classes: geometric up to a cutoff, linear above it.
//!
//! With 4 classes per doubling, sizes from 4 to 16 KiB are
//!
//! ```text
//! 4      5   6   7   8       10      12      14      16 KiB
//! ├──────┼───┼───┼───┼───────┼───────┼───────┼───────┤
//! ```

/// The rule, with its constants as shifts, so that a request costs no division.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Classes {
    /// Classes per doubling, as a shift.
    per_doubling: u32,
    smallest: u32,
    cutoff: u32,
    tail: u32,
}

/// Numbers of geometric classes are below.
const GEOMETRIC: u64 = 64 * 8;

impl Classes {
    /// The last number that there is room for in tables: sizes up to 2^20 times the tail.
    pub(crate) const LAST: u64 = GEOMETRIC + (1 << 20);

    /// All are powers of two; `per_doubling` is 8 at most, `smallest` and `tail` are not above `cutoff`.
    pub(crate) fn new(per_doubling: u64, smallest: u64, cutoff: u64, tail: u64) -> Classes {
        let [per_doubling, smallest, cutoff, tail] = [per_doubling, smallest, cutoff, tail].map(u64::trailing_zeros);
        Classes { per_doubling, smallest, cutoff, tail }
    }

    /// The size of the class that serves a request of `bytes` (above 0); `None` if it does not fit into 64 bits.
    #[inline]
    pub(crate) fn round(&self, bytes: u64) -> Option<u64> {
        let step = if bytes > 1 << self.cutoff {
            self.tail
        } else {
            octave(bytes).saturating_sub(self.per_doubling).max(self.smallest)
        };
        let mask = (1u64 << step) - 1;
        Some(bytes.checked_add(mask)? & !mask)
    }

    /// The number of the class of this size. Small sizes have small numbers, but not each number has a size.
    #[inline]
    pub(crate) fn number(&self, size: u64) -> u64 {
        if size > 1 << self.cutoff {
            return GEOMETRIC + (size >> self.tail);
        }
        let octave = octave(size);
        let place = (size - 1) >> octave.saturating_sub(self.per_doubling);
        (u64::from(octave) << self.per_doubling) + place - (1 << self.per_doubling.min(octave))
    }
}

/// Sizes above 2ⁿ, up to and with 2ⁿ⁺¹, are in octave n.
#[inline]
fn octave(size: u64) -> u32 {
    ((size - 1) | 1).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    #[test]
    fn sizes_are_those_of_the_picture() {
        let sizes = |per_doubling, from: u64, to: u64| {
            let classes = Classes::new(per_doubling, 512, 16 * MIB, 2 * MIB);
            let mut sizes: Vec<u64> = (from * KIB..=to * KIB).filter_map(|bytes| classes.round(bytes)).collect();
            sizes.dedup();
            sizes.into_iter().map(|size| size as f64 / 1024.0).collect::<Vec<f64>>()
        };
        assert_eq!(sizes(4, 4, 16), [4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 14.0, 16.0]);
        assert_eq!(sizes(1, 4, 16), [4.0, 8.0, 16.0]);
        assert_eq!(sizes(8, 1, 2), [1.0, 1.5, 2.0], "never finer than the smallest");
        assert_eq!(sizes(2, 16 * KIB - 1, 19 * KIB), [16384.0, 18432.0, 20480.0]);
    }

    #[test]
    fn a_class_wastes_little_and_has_one_number() {
        for per_doubling in [1, 2, 4, 8] {
            let classes = Classes::new(per_doubling, 512, 16 * MIB, 2 * MIB);
            let mut last = (0, 0);
            let mut bytes = 1;
            while bytes < 1 << 50 {
                let size = classes.round(bytes).unwrap();
                let number = classes.number(size);
                assert!(size >= bytes && classes.round(size) == Some(size), "{bytes} of {per_doubling}");
                assert_eq!(
                    (size > last.0, size == last.0),
                    (number > last.1, number == last.1),
                    "{bytes} of {per_doubling}"
                );
                let waste = size - bytes;
                assert!(waste < 512 || waste * (per_doubling + 1) <= size, "{waste} of {size} of {per_doubling}");
                last = (size, number);
                bytes = [bytes + bytes / 37 + 1, size, size + 1][(bytes % 3) as usize].max(bytes + 1);
            }
            assert_eq!(classes.round(u64::MAX), None);
        }
    }
}
