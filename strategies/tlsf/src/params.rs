//! What can be chosen, and which choices make sense.

use allocator_core::{ConfigError, DeviceInfo};
use serde::{Deserialize, Serialize};

/// Devices up to this size get segments of an eighth of it.
const SMALL_DEVICE: u64 = 1 << 30;
/// Segments may be halved this often: while there are only smaller ones, and while the device refuses larger ones.
const HALVINGS: u32 = 3;
/// Granules above this would be pages.
const LARGEST_GRANULE: u64 = 2 << 20;

/// What can be chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Bytes of a segment. Devices of 1 GiB and less have smaller ones: an eighth of the device at most.
    pub segment: u64,
    /// A stream's first segments are an eighth, a quarter and a half of that.
    pub gradual: bool,
    /// Where a block is looked for, in which order: `good_fit`, `min_time`, `min_memory` or `min_offset`.
    pub search: String,
    /// Sizes are rounded up to a multiple of this many bytes.
    pub granule: u64,
    /// log2 of the lists that a doubling of sizes is cut into.
    pub second_level: u32,
    /// Empty segments that a stream keeps; one that becomes empty beyond them goes back to the device.
    pub keep_empty: u32,
}

impl Default for Params {
    fn default() -> Params {
        Params {
            segment: 256 << 20,
            gradual: true,
            search: "min_time".to_string(),
            granule: 512,
            second_level: 5,
            keep_empty: 1,
        }
    }
}

/// The orders of search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Search {
    /// Lists whose blocks all fit, and nothing else.
    GoodFit,
    /// Those lists, the segments' tails, the list of the very size.
    MinTime,
    /// The nearest list, the tails, lists whose blocks all fit.
    MinMemory,
    /// The lowest address.
    MinOffset,
}

/// [`Params`], checked and in granules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// log2 of the bytes of a granule.
    pub granule_log: u32,
    /// log2 of the lists in an octave.
    pub second_level: u32,
    /// The order of search.
    pub search: Search,
    /// Empty segments that a stream keeps.
    pub keep_empty: u32,
    segment: u64,
    gradual: bool,
}

impl Params {
    /// The rules for a device, or the parameter that makes no sense.
    pub(crate) fn rules(&self, device: &DeviceInfo) -> Result<Rules, ConfigError> {
        let &Params { segment, gradual, ref search, granule, second_level, keep_empty } = self;
        let refuse = |text: String| Err(ConfigError(text));
        let step = device.alignment;
        if !granule.is_power_of_two() || !granule.is_multiple_of(step) || granule > LARGEST_GRANULE {
            return refuse(format!("granule={granule}: write a power of two from {step} to {LARGEST_GRANULE}"));
        }
        let least = granule << HALVINGS;
        if segment < least || !segment.is_multiple_of(granule) {
            return refuse(format!("segment={segment}: write a multiple of the granule, {granule}, from {least} on"));
        }
        if !(1..=5).contains(&second_level) {
            return refuse(format!("second_level={second_level}: write a number from 1 to 5"));
        }
        let search = match search.as_str() {
            "good_fit" => Search::GoodFit,
            "min_time" => Search::MinTime,
            "min_memory" => Search::MinMemory,
            "min_offset" => Search::MinOffset,
            other => return refuse(format!("search={other}: write good_fit, min_time, min_memory or min_offset")),
        };
        let segment = if device.total <= SMALL_DEVICE { segment.min(device.total / 8) } else { segment };
        Ok(Rules {
            granule_log: granule.ilog2(),
            second_level,
            search,
            keep_empty,
            segment: segment / granule,
            gradual,
        })
    }
}

impl Rules {
    /// Sizes to ask the device for, one after another, when `need` granules fit nowhere and the largest segment so far
    /// has `largest`.
    pub(crate) fn segments(&self, need: u64, largest: u64) -> impl Iterator<Item = u64> + use<> {
        let mut size = self.segment.max(need);
        let mut left = HALVINGS;
        if self.gradual {
            while left > 0 && size / 2 > largest && size / 2 >= need.saturating_mul(2) {
                size /= 2;
                left -= 1;
            }
        }
        let halved = std::iter::successors(Some((size, left)), move |&(size, left)| {
            (left > 0 && size / 2 >= need).then(|| (size / 2, left - 1))
        });
        let last = halved.clone().last().map(|(size, _)| size);
        halved.map(|(size, _)| size).chain((last != Some(need)).then_some(need))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocator_core::{Device, SimDevice};

    const MIB: u64 = 1 << 20;

    fn rules(params: Params, total: u64) -> Result<Rules, ConfigError> {
        params.rules(&SimDevice::new(total).info())
    }

    /// In MiB.
    fn segments(params: Params, total: u64, need: u64, largest: u64) -> Vec<u64> {
        let rules = rules(Params { granule: MIB, ..params }, total << 20).unwrap();
        rules.segments(need, largest).collect()
    }

    #[test]
    fn segments_grow_gradually_and_shrink_where_the_device_has_less() {
        let of = |need, largest| segments(Params::default(), 4096, need, largest);
        assert_eq!(of(1, 0), [32, 1], "nothing is left of the three halvings");
        assert_eq!(of(1, 32), [64, 32, 1]);
        assert_eq!(of(1, 64), [128, 64, 32, 1]);
        assert_eq!(of(1, 128), [256, 128, 64, 32, 1]);
        assert_eq!(of(1, 256), [256, 128, 64, 32, 1]);
        assert_eq!(of(17, 0), [64, 32, 17], "room for two");
        assert_eq!(of(64, 0), [128, 64]);
        assert_eq!(of(129, 0), [256, 129]);
        assert_eq!(of(256, 0), [256]);
        assert_eq!(of(257, 0), [257], "a segment of its own");
        assert_eq!(segments(Params { gradual: false, ..Params::default() }, 4096, 1, 0), [256, 128, 64, 32, 1]);
        assert_eq!(segments(Params { gradual: false, ..Params::default() }, 1024, 1, 0), [128, 64, 32, 16, 1]);
        assert_eq!(segments(Params { gradual: false, ..Params::default() }, 96, 1, 0), [12, 6, 3, 1]);
    }

    #[test]
    fn what_makes_no_sense_is_named_with_what_is_allowed() {
        let granule = |granule| Params { granule, ..Params::default() };
        let cases = [
            (granule(0), "granule=0: write a power of two from 512 to 2097152"),
            (granule(256), "granule=256: write a power of two from 512 to 2097152"),
            (granule(1536), "granule=1536: write a power of two from 512 to 2097152"),
            (granule(1 << 63), "granule=9223372036854775808: write a power of two from 512 to 2097152"),
            (
                Params { segment: 2048, ..Params::default() },
                "segment=2048: write a multiple of the granule, 512, from 4096 on",
            ),
            (
                Params { segment: u64::MAX, ..Params::default() },
                "segment=18446744073709551615: write a multiple of the granule, 512, from 4096 on",
            ),
            (Params { second_level: 0, ..Params::default() }, "second_level=0: write a number from 1 to 5"),
            (Params { second_level: 6, ..Params::default() }, "second_level=6: write a number from 1 to 5"),
            (
                Params { search: "best".to_string(), ..Params::default() },
                "search=best: write good_fit, min_time, min_memory or min_offset",
            ),
        ];
        for (params, text) in cases {
            assert_eq!(rules(params, 1 << 32).unwrap_err().to_string(), text);
        }
    }
}
