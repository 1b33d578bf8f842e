//! Sizes: rounding, pools and segments. All in PyTorch's terms; tables of values stand in the tests.

use crate::settings::Settings;

const MIB: u64 = 1 << 20;
/// Blocks are multiples of this.
pub(crate) const GRANULE: u64 = 512;
/// Segments of the small pool, and its expandable page.
pub(crate) const SMALL_SEGMENT: u64 = 2 * MIB;
/// Rounded sizes from here on get a segment of their own.
const OWN_SEGMENT: u64 = 10 * MIB;
/// Such segments are multiples of this.
const OWN_SEGMENT_ROUNDING: u64 = 2 * MIB;

impl Settings {
    /// The block size, in bytes, for a request of `size` bytes. `size` is above 0 and below 2⁶³.
    pub fn round(&self, size: u64) -> u64 {
        if size < GRANULE {
            return GRANULE;
        }
        let interval = (size.ilog2() as usize).clamp(20, 35) - 20;
        let divisions = self.roundup_power2_divisions[interval];
        if divisions > 1 && size > GRANULE.saturating_mul(divisions) {
            return round_up_to_division(size, divisions);
        }
        size.next_multiple_of(GRANULE)
    }

    /// The bytes asked from the device for a rounded size.
    pub(crate) fn segment_size(&self, rounded: u64, small: bool) -> u64 {
        if small {
            SMALL_SEGMENT
        } else if rounded < OWN_SEGMENT {
            self.large_segment_size
        } else {
            rounded.next_multiple_of(OWN_SEGMENT_ROUNDING)
        }
    }
}

/// Up to the next of `divisions` equal steps between two powers of two.
fn round_up_to_division(size: u64, divisions: u64) -> u64 {
    if size.is_power_of_two() {
        return size;
    }
    let floor = 1 << size.ilog2();
    match floor >> divisions.ilog2() {
        0 => floor << 1,
        step => size.next_multiple_of(step),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding() {
        let rounded =
            |size, divisions| Settings { roundup_power2_divisions: [divisions; 16], ..Settings::default() }.round(size);
        let table = [
            (1, 0, 512),
            (513, 0, 1024),
            (1200, 4, 1536),
            (2048, 4, 2048),
            (2049, 4, 2560),
            (3000, 4, 3072),
            (900_000, 4, 917_504),
            (1_048_577, 4, 1_310_720),
            (5_000_000, 4, 5_242_880),
            (70_000_000, 4, 83_886_080),
            (1_048_577, 0, 1_049_088),
        ];
        for (size, divisions, want) in table {
            assert_eq!(rounded(size, divisions), want, "{size} with {divisions} divisions");
        }
    }

    #[test]
    fn segments() {
        let settings = Settings::default();
        let table = [
            (1 << 20, true, 2 << 20),
            (1_049_088, false, 20 << 20),
            (10_485_248, false, 20 << 20),
            (10_485_760, false, 10 << 20),
            (10_486_272, false, 12 << 20),
        ];
        for (rounded, small, want) in table {
            assert_eq!(settings.segment_size(rounded, small), want, "{rounded}");
        }
    }
}
