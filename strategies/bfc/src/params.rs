//! Parameters, and what they mean on a device.

use crate::bins::SMALLEST;
use allocator_core::{ConfigError, DeviceInfo};
use serde::{Deserialize, Serialize};

/// What can be chosen. The defaults are TensorFlow's with `allow_growth`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Share of the device's memory that may be reserved, above 0 up to 1. JAX takes 0.75.
    pub memory_fraction: f64,
    /// Whether all of that is taken at once, as one region, with the first request. JAX does so, and TensorFlow without
    /// `allow_growth`.
    pub preallocate: bool,
    /// Bytes of the first region where regions grow. Each further one is twice as large.
    pub initial_region: u64,
    /// Whether regions without a live chunk go back to the device when a larger one is needed and there is no room.
    pub garbage_collection: bool,
    /// A chunk that exceeds its request by this many bytes is split, however large the request.
    pub max_slack: u64,
    /// The same as a share of the memory limit, 0 to 1. Above 0 it takes the place of `max_slack`.
    pub fragmentation_fraction: f64,
}

impl Default for Params {
    fn default() -> Params {
        Params {
            memory_fraction: 1.0,
            preallocate: false,
            initial_region: 2 << 20,
            garbage_collection: true,
            max_slack: 128 << 20,
            fragmentation_fraction: 0.0,
        }
    }
}

/// The parameters in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rules {
    /// Sizes and addresses are multiples of it.
    pub unit: u64,
    /// At most this is reserved.
    pub limit: u64,
    /// Size of the first region.
    pub region: u64,
    /// A chunk that is too large by this is split.
    pub slack: u64,
    pub garbage_collection: bool,
}

impl Params {
    pub(crate) fn rules(&self, device: &DeviceInfo) -> Result<Rules, ConfigError> {
        let Params { memory_fraction, initial_region, max_slack, fragmentation_fraction, .. } = *self;
        let unit = SMALLEST.next_multiple_of(device.alignment.max(1));
        if !(memory_fraction > 0.0 && memory_fraction <= 1.0) {
            let text = format!("memory_fraction={memory_fraction}: write a number above 0, up to 1");
            return Err(ConfigError(text));
        }
        if !(0.0..=1.0).contains(&fragmentation_fraction) {
            let text = format!("fragmentation_fraction={fragmentation_fraction}: write a number from 0 to 1");
            return Err(ConfigError(text));
        }
        for (name, value) in [("initial_region", initial_region), ("max_slack", max_slack)] {
            if value == 0 || !value.is_multiple_of(unit) {
                return Err(ConfigError(format!("{name}={value}: write a multiple of {unit} bytes, above 0")));
            }
        }
        let share =
            |fraction: f64| if fraction == 1.0 { device.total } else { (device.total as f64 * fraction) as u64 };
        let limit = share(memory_fraction) / unit * unit;
        let slack = match fragmentation_fraction {
            0.0 => max_slack,
            fraction => ((limit as f64 * fraction) as u64).max(unit),
        };
        let region = if self.preallocate { limit.max(unit) } else { initial_region.min(limit).max(unit) };
        Ok(Rules { unit, limit, region, slack, garbage_collection: self.garbage_collection })
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
            (Params { memory_fraction: 0.0, ..params() }, "memory_fraction=0: write a number above 0, up to 1"),
            (Params { memory_fraction: f64::NAN, ..params() }, "memory_fraction=NaN: write a number above 0, up to 1"),
            (Params { memory_fraction: 1.5, ..params() }, "memory_fraction=1.5: write a number above 0, up to 1"),
            (
                Params { fragmentation_fraction: -1.0, ..params() },
                "fragmentation_fraction=-1: write a number from 0 to 1",
            ),
            (Params { initial_region: 0, ..params() }, "initial_region=0: write a multiple of 512 bytes, above 0"),
            (Params { max_slack: 100, ..params() }, "max_slack=100: write a multiple of 512 bytes, above 0"),
        ] {
            assert_eq!(rules(params), Err(text.to_string()));
        }
    }

    #[test]
    fn shares_are_of_the_device_and_of_the_limit() {
        let default = rules(Params::default()).unwrap();
        assert_eq!((default.limit, default.region, default.slack), (4 * GIB, 2 << 20, 128 << 20));
        let jax = Params { memory_fraction: 0.75, preallocate: true, fragmentation_fraction: 0.5, ..Params::default() };
        let jax = rules(jax).unwrap();
        assert_eq!((jax.limit, jax.region, jax.slack), (3 * GIB, 3 * GIB, 3 * GIB / 2));
    }
}
