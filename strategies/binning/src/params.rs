//! What can be chosen.

use allocator_core::{ConfigError, DeviceInfo};
use serde::{Deserialize, Serialize};
use strategy_pool as pool;

/// The parameters, by the names that RMM has for them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The smallest bin has blocks of two to this power, in bytes.
    pub min_size_exponent: u32,
    /// The largest bin has blocks of two to this power, in bytes. Requests above it go to the pool.
    pub max_size_exponent: u32,
    /// Blocks that a bin starts with, and by which it grows.
    pub blocks_to_preallocate: u32,
    /// Bytes that the pool takes with the first request; 0 takes what it is asked for.
    pub initial_pool_size: u64,
    /// Bytes that the pool may hold; none is no limit.
    pub maximum_pool_size: Option<u64>,
}

impl Default for Params {
    fn default() -> Params {
        Params {
            min_size_exponent: 18,
            max_size_exponent: 22,
            blocks_to_preallocate: 128,
            initial_pool_size: 0,
            maximum_pool_size: None,
        }
    }
}

/// With the most blocks of the largest bin, a chunk is far from 2^64 bytes.
const MAX_EXPONENT: u32 = 40;
const MAX_BLOCKS: u32 = 1 << 16;

impl Params {
    /// Those of the pool, which checks them itself.
    pub(crate) fn pool(&self) -> pool::Params {
        let Params { initial_pool_size, maximum_pool_size, .. } = *self;
        pool::Params { initial_pool_size, maximum_pool_size }
    }

    /// Whether those of the bins make sense on the device.
    pub(crate) fn check(&self, device: &DeviceInfo) -> Result<(), ConfigError> {
        let Params { min_size_exponent: min, max_size_exponent: max, blocks_to_preallocate: blocks, .. } = *self;
        let least = device.alignment.max(1).next_power_of_two().ilog2();
        if !(least..=MAX_EXPONENT).contains(&min) {
            let text = format!("min_size_exponent={min}: write a number from {least} to {MAX_EXPONENT}");
            return Err(ConfigError(text));
        }
        if !(min..=MAX_EXPONENT).contains(&max) {
            let text =
                format!("max_size_exponent={max}: write a number from min_size_exponent={min} to {MAX_EXPONENT}");
            return Err(ConfigError(text));
        }
        if !(1..=MAX_BLOCKS).contains(&blocks) {
            return Err(ConfigError(format!("blocks_to_preallocate={blocks}: write a number from 1 to {MAX_BLOCKS}")));
        }
        Ok(())
    }
}
