//! Parameters, and what they mean on a device.

use allocator_core::{ConfigError, DeviceInfo};
use serde::{Deserialize, Serialize};

/// How many times the device's memory the range of addresses is. Memory moves and addresses do not, so blocks that stay
/// cost addresses around them; a card has 128 TiB.
const ADDRESSES: u64 = 16;

/// What can be chosen. The first five are attributes of the driver's pool, with the driver's defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Bytes that the pool may keep when the host waits for a stream or the device; more goes back to the device. PyTorch
    /// sets the maximum and RMM the memory of the card, so that nothing goes back by itself.
    pub release_threshold: u64,
    /// A stream may get memory that was freed on another one that the pool has made it wait for since.
    pub follow_event_dependencies: bool,
    /// A stream may get memory whose free on another stream is over.
    pub opportunistic: bool,
    /// Where there is no more memory, a stream may be made to wait for another one's free.
    pub internal_dependencies: bool,
    /// The most bytes that the pool takes from the device; 0 is no limit.
    pub max_size: u64,
    /// The pool grows by multiples of so many bytes.
    pub chunk: u64,
    /// Whether streams that were never seen at work count as waited for. For traces that name no work, only points at which the
    /// host waits.
    pub release_when_idle: bool,
}

impl Default for Params {
    fn default() -> Params {
        Params {
            release_threshold: 0,
            follow_event_dependencies: true,
            opportunistic: true,
            internal_dependencies: true,
            max_size: 0,
            chunk: 32 << 20,
            release_when_idle: false,
        }
    }
}

/// The parameters on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rules {
    pub threshold: u64,
    pub follows: bool,
    pub is_opportunistic: bool,
    pub inserts_waits: bool,
    pub releases_idle: bool,
    /// The pool may hold this much.
    pub limit: u64,
    pub chunk: u64,
    /// Pieces of memory are multiples of it, at multiples of it.
    pub page: u64,
    /// Sizes are multiples of it.
    pub unit: u64,
    /// Bytes of addresses.
    pub range: u64,
}

impl Params {
    pub(crate) fn rules(&self, device: &DeviceInfo) -> Result<Rules, ConfigError> {
        let Params { chunk, max_size, .. } = *self;
        if !device.virtual_memory {
            return Err(ConfigError("async-pool needs a device with virtual memory".to_string()));
        }
        let page = device.granularity.max(1);
        if chunk == 0 || !chunk.is_multiple_of(page) {
            return Err(ConfigError(format!("chunk={chunk}: write a multiple of {page} bytes, above 0")));
        }
        if max_size != 0 && max_size < page {
            return Err(ConfigError(format!("max_size={max_size}: write at least {page} bytes, or 0 for no limit")));
        }
        let range = device.total.checked_mul(ADDRESSES).and_then(|bytes| bytes.checked_next_multiple_of(page));
        let Some(range) = range.map(|bytes| bytes.max(page)) else {
            return Err(ConfigError(format!("async-pool has no addresses for a device of {} bytes", device.total)));
        };
        Ok(Rules {
            threshold: self.release_threshold,
            follows: self.follow_event_dependencies,
            is_opportunistic: self.opportunistic,
            inserts_waits: self.internal_dependencies,
            releases_idle: self.release_when_idle,
            limit: if max_size == 0 { device.total } else { max_size.min(device.total) },
            chunk,
            page,
            unit: device.alignment.max(1),
            range,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocator_core::{Device, SimDevice};

    const GIB: u64 = 1 << 30;

    fn rules(params: Params) -> Result<Rules, String> {
        params.rules(&SimDevice::new(4 * GIB).info()).map_err(|error| error.to_string())
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let params = Params::default;
        for (params, text) in [
            (Params { chunk: 0, ..params() }, "chunk=0: write a multiple of 2097152 bytes, above 0"),
            (Params { chunk: 3 << 20, ..params() }, "chunk=3145728: write a multiple of 2097152 bytes, above 0"),
            (Params { max_size: 1, ..params() }, "max_size=1: write at least 2097152 bytes, or 0 for no limit"),
        ] {
            assert_eq!(rules(params), Err(text.to_string()));
        }
        let without = DeviceInfo { virtual_memory: false, ..SimDevice::new(GIB).info() };
        let huge = DeviceInfo { total: 1 << 61, ..SimDevice::new(GIB).info() };
        assert!(params().rules(&without).is_err() && params().rules(&huge).is_err());
    }

    #[test]
    fn no_limit_is_the_device() {
        assert_eq!(rules(Params::default()).unwrap().limit, 4 * GIB);
        assert_eq!(rules(Params { max_size: GIB, ..Params::default() }).unwrap().limit, GIB);
        assert_eq!(rules(Params::default()).unwrap().range, 64 * GIB);
    }
}
