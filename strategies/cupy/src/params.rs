//! What can be chosen.

use allocator_core::{ConfigError, DeviceInfo};
use serde::{Deserialize, Serialize};

/// The parameters. As in CuPy there is no limit unless one is set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Bytes that may be reserved at most; 0 is no limit.
    pub limit: u64,
    /// The same as a share of the device's memory, in percent, and at least 1 byte; 0 is no limit.
    pub limit_percent: f64,
}

impl Default for Params {
    fn default() -> Params {
        Params { limit: 0, limit_percent: 0.0 }
    }
}

impl Params {
    /// The limit in bytes, `u64::MAX` for none.
    pub(crate) fn limit(&self, device: &DeviceInfo) -> Result<u64, ConfigError> {
        let Params { limit, limit_percent } = *self;
        if !(0.0..=100.0).contains(&limit_percent) {
            return Err(ConfigError(format!("limit_percent={limit_percent}: write a number from 0 to 100")));
        }
        if limit > 0 && limit_percent > 0.0 {
            let text =
                format!("limit={limit} and limit_percent={limit_percent}: set one of them, leave the other at 0");
            return Err(ConfigError(text));
        }
        if limit_percent > 0.0 {
            return Ok(((limit_percent / 100.0 * device.total as f64) as u64).max(1));
        }
        Ok(if limit > 0 { limit } else { u64::MAX })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocator_core::{Device, SimDevice};

    fn limit(limit: u64, limit_percent: f64) -> Result<u64, String> {
        let params = Params { limit, limit_percent };
        params.limit(&SimDevice::new(4 << 30).info()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_limit_is_bytes_or_a_share_or_none() {
        assert_eq!(limit(0, 0.0), Ok(u64::MAX));
        assert_eq!(limit(1000, 0.0), Ok(1000));
        assert_eq!(limit(0, 37.5), Ok(3 << 29));
        assert_eq!(limit(0, 100.0), Ok(4 << 30));
        assert_eq!(limit(0, 1e-10), Ok(1), "a share of less than a byte is a limit all the same");
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (percent, shown) in [(-1.0, "-1"), (100.5, "100.5"), (f64::NAN, "NaN")] {
            assert_eq!(limit(0, percent), Err(format!("limit_percent={shown}: write a number from 0 to 100")));
        }
        let text = "limit=5 and limit_percent=50: set one of them, leave the other at 0";
        assert_eq!(limit(5, 50.0), Err(text.to_string()));
    }
}
