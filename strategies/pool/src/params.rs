//! What can be chosen.

use allocator_core::{ConfigError, DeviceInfo};
use serde::{Deserialize, Serialize};

/// The parameters, by the names that RMM has for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Bytes taken with the first request, as the first region; 0 takes what the requests ask for.
    pub initial_pool_size: u64,
    /// Bytes that the pool may hold; none is no limit. It also changes how the pool grows.
    pub maximum_pool_size: Option<u64>,
}

impl Params {
    /// Whether all of them make sense on the device.
    pub(crate) fn check(&self, device: &DeviceInfo) -> Result<(), ConfigError> {
        let unit = device.alignment;
        let Params { initial_pool_size: initial, maximum_pool_size: maximum } = *self;
        if !initial.is_multiple_of(unit) {
            return Err(ConfigError(format!("initial_pool_size={initial}: write 0 or a multiple of {unit} bytes")));
        }
        let Some(maximum) = maximum else { return Ok(()) };
        if maximum == 0 || !maximum.is_multiple_of(unit) {
            let text = format!("maximum_pool_size={maximum}: write none or a multiple of {unit} bytes, above 0");
            return Err(ConfigError(text));
        }
        if initial > maximum {
            let text = format!("initial_pool_size={initial}: write at most maximum_pool_size={maximum}");
            return Err(ConfigError(text));
        }
        Ok(())
    }
}
