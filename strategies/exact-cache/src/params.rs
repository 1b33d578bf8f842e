//! What can be chosen.

use allocator_core::{ConfigError, DeviceInfo};
use serde::{Deserialize, Serialize};

/// How a request becomes the size that has to match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rounding {
    /// To a multiple of the page: MXNet's `Naive` pool.
    Page,
    /// To a power of two, above the cutoff to a multiple of the cutoff: MXNet's `Round` pool.
    Power,
}

/// The parameters, with MXNet's defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// `page` or `power`.
    pub rounding: Rounding,
    /// Bytes of the smallest block, a power of two. With `page`, sizes are multiples of it.
    pub page: u64,
    /// With `power`: sizes above it are multiples of it, sizes below it powers of two. A power of two.
    pub cutoff: u64,
    /// When new memory would leave less than this share of the device free, the stream gives its cache back first.
    pub reserve_percent: u64,
}

impl Default for Params {
    fn default() -> Params {
        Params { rounding: Rounding::Page, page: 4096, cutoff: 16 << 20, reserve_percent: 5 }
    }
}

impl Params {
    /// Whether all of them make sense on the device.
    pub(crate) fn check(&self, device: &DeviceInfo) -> Result<(), ConfigError> {
        let Params { page, cutoff, reserve_percent, .. } = *self;
        let refuse = |text: String| Err(ConfigError(text));
        let least = device.alignment.next_power_of_two();
        if !page.is_power_of_two() || page < least || page > MAX_PAGE {
            return refuse(format!("page={page}: write a power of two from {least} to {MAX_PAGE}"));
        }
        if !cutoff.is_power_of_two() || cutoff < page || cutoff > MAX_CUTOFF {
            return refuse(format!("cutoff={cutoff}: write a power of two from page={page} to {MAX_CUTOFF}"));
        }
        if reserve_percent > 100 {
            return refuse(format!("reserve_percent={reserve_percent}: write a number from 0 to 100"));
        }
        Ok(())
    }
}

const MAX_PAGE: u64 = 1 << 30;
const MAX_CUTOFF: u64 = 1 << 40;
