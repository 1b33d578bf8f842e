//! The two ways of rounding a request, and the classes that the rounded sizes form.

use crate::params::Rounding;

/// A rounding with its constants as shifts, so that a request costs no division.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounder {
    rounding: Rounding,
    page_shift: u32,
    cutoff_shift: u32,
}

impl Rounder {
    /// `page` and `cutoff` are powers of two, and `page` is not above `cutoff`.
    pub(crate) fn new(rounding: Rounding, page: u64, cutoff: u64) -> Rounder {
        Rounder { rounding, page_shift: page.trailing_zeros(), cutoff_shift: cutoff.trailing_zeros() }
    }

    /// The size of the memory that serves a request of `bytes` (above 0); `None` if it does not fit into 64 bits.
    #[inline]
    pub(crate) fn round(&self, bytes: u64) -> Option<u64> {
        let step = match self.rounding {
            Rounding::Page => self.page_shift,
            Rounding::Power if bytes > 1 << self.cutoff_shift => self.cutoff_shift,
            Rounding::Power => return Some(bytes.next_power_of_two().max(1 << self.page_shift)),
        };
        let mask = (1u64 << step) - 1;
        Some(bytes.checked_add(mask)? & !mask)
    }

    /// The number of a rounded size. Different sizes have different numbers, in their order, and small ones small numbers.
    #[inline]
    pub(crate) fn class(&self, size: u64) -> u64 {
        match self.rounding {
            Rounding::Page => size >> self.page_shift,
            // Up to the cutoff the exponent; above it a number of cutoffs, from 2 on.
            Rounding::Power if size > 1 << self.cutoff_shift => 62 + (size >> self.cutoff_shift),
            Rounding::Power => u64::from(size.trailing_zeros()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn both() -> [Rounder; 2] {
        [Rounding::Page, Rounding::Power].map(|rounding| Rounder::new(rounding, 4096, 16 * MIB))
    }

    #[test]
    fn sizes_are_mxnets() {
        let [page, power] = both();
        let sizes = [1, 4096, 4097, 5 * MIB, 16 * MIB, 16 * MIB + 1, 40 * MIB];
        let at = |rounder: Rounder| sizes.map(|bytes| rounder.round(bytes).unwrap());
        assert_eq!(at(page), [4096, 4096, 8192, 5 * MIB, 16 * MIB, 16 * MIB + 4096, 40 * MIB]);
        assert_eq!(at(power), [4096, 4096, 8192, 8 * MIB, 16 * MIB, 32 * MIB, 48 * MIB]);
    }

    #[test]
    fn a_size_serves_its_request_and_itself_and_has_a_class_of_its_own() {
        for rounder in both() {
            let mut last = (0, 0);
            let mut bytes = 1;
            while bytes < 1 << 50 {
                for bytes in [bytes - 1, bytes, bytes + 1].map(|bytes: u64| bytes.max(1)) {
                    let size = rounder.round(bytes).unwrap();
                    let class = rounder.class(size);
                    assert!(size >= bytes && rounder.round(size) == Some(size), "{bytes} {rounder:?}");
                    assert!(size >= last.0, "{bytes} {rounder:?}");
                    assert_eq!(
                        (size > last.0, size == last.0),
                        (class > last.1, class == last.1),
                        "{bytes} {rounder:?}"
                    );
                    last = (size, class);
                }
                bytes += bytes / 13 + 1;
            }
            assert_eq!(rounder.round(u64::MAX), None);
        }
    }
}
