//! What can be chosen.

use crate::heap::SUPERBLOCK;
use allocator_core::{ConfigError, DeviceInfo};
use serde::{Deserialize, Serialize};

/// The parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Bytes of the one block that everything lies in; none is half of what the device has free.
    pub arena_size: Option<u64>,
    /// Whether sizes are rounded to four classes for each doubling.
    pub size_classes: bool,
}

impl Params {
    /// Whether all of them make sense on the device.
    pub(crate) fn check(&self, device: &DeviceInfo) -> Result<(), ConfigError> {
        let unit = device.alignment;
        match self.arena_size {
            Some(size) if size < SUPERBLOCK || !size.is_multiple_of(unit) => {
                let text = format!("arena_size={size}: write none or a multiple of {unit} bytes from {SUPERBLOCK} on");
                Err(ConfigError(text))
            }
            _ => Ok(()),
        }
    }
}
