//! What can be chosen.

use allocator_core::{ConfigError, DeviceInfo};
use serde::{Deserialize, Serialize};

/// The parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Classes per doubling of the size: 1, 2, 4 or 8. With n, at most one part in n + 1 of a block is waste.
    pub per_doubling: u64,
    /// Bytes of the smallest class, and the least distance of two; a power of two.
    pub smallest: u64,
    /// Above this size classes are multiples of `tail`; a power of two.
    pub cutoff: u64,
    /// The distance of classes above the cutoff; a power of two.
    pub tail: u64,
    /// Bytes of a slab, a power of two. Blocks up to a quarter of it share slabs, larger ones have one each, of their size.
    pub slab: u64,
    /// So many bytes of empty slabs stay; a slab that falls empty beyond that goes back to the device.
    pub keep_empty: u64,
}

const TAIL: u64 = 2 << 20;

impl Default for Params {
    fn default() -> Params {
        Params { per_doubling: 4, smallest: 512, cutoff: 16 << 20, tail: TAIL, slab: 2 << 20, keep_empty: 1 << 30 }
    }
}

impl Params {
    /// Whether all of them make sense on the device.
    pub(crate) fn check(&self, device: &DeviceInfo) -> Result<(), ConfigError> {
        let Params { per_doubling, smallest, cutoff, tail, slab, .. } = *self;
        if ![1, 2, 4, 8].contains(&per_doubling) {
            return Err(ConfigError(format!("per_doubling={per_doubling}: write 1, 2, 4 or 8")));
        }
        let power = |name: &str, value: u64, least: u64, most: u64| {
            if value.is_power_of_two() && (least..=most).contains(&value) {
                return Ok(());
            }
            Err(ConfigError(format!("{name}={value}: write a power of two from {least} to {most}")))
        };
        power("smallest", smallest, device.alignment.next_power_of_two(), 1 << 30)?;
        power("cutoff", cutoff, smallest, 1 << 40)?;
        // There are 2^20 classes above the cutoff at most, which have to reach the device's size.
        let least_tail = (device.total >> 20).checked_next_power_of_two().unwrap_or(TAIL).min(TAIL);
        power("tail", tail, least_tail.max(smallest).min(cutoff), cutoff)?;
        power("slab", slab, smallest, 1 << 40)
    }
}
