//! What can be chosen, and what makes no sense.

use crate::arena::MAX_ORDER;
use allocator_core::{ConfigError, DeviceInfo};
use serde::{Deserialize, Serialize};

/// Parameters of [`crate::Buddy`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Bytes of the smallest block: a power of two.
    pub unit: u64,
    /// Bytes of an arena, which is also the largest block: a power of two. Requests above it get a segment of their own.
    pub arena: u64,
    /// When free buddies become one block.
    pub merge: Merge,
}

/// When free buddies become one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Merge {
    /// At each free.
    Eager,
    /// When no free block serves a request, all at once.
    Lazy,
}

impl Default for Params {
    fn default() -> Params {
        Params { unit: 512, arena: 64 << 20, merge: Merge::Eager }
    }
}

impl Params {
    /// The logarithms of the unit's bytes and of the arena's units.
    pub(crate) fn orders(&self, device: &DeviceInfo) -> Result<(u32, u32), ConfigError> {
        let Params { unit, arena, merge: _ } = *self;
        let least = device.alignment.max(1).next_power_of_two();
        if !unit.is_power_of_two() || unit < least {
            return Err(ConfigError(format!("unit={unit}: write a power of two, {least} or more")));
        }
        let most = 1_u64 << (unit.ilog2() + MAX_ORDER).min(u64::BITS - 1);
        if !arena.is_power_of_two() || arena < unit || arena > most {
            return Err(ConfigError(format!(
                "arena={arena}: write a power of two from {unit} (the unit) to {most} (2^{MAX_ORDER} units)"
            )));
        }
        Ok((unit.ilog2(), arena.ilog2() - unit.ilog2()))
    }
}
