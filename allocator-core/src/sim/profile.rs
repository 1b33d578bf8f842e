//! What device calls cost on the simulated device.
//!
//! A profile is data: it comes from a file that was measured on a card, or is the built-in one. Figures made with it
//! are *modelled* and never share a column with measured ones.

use crate::device::CallKind;
use serde::{Deserialize, Serialize};

/// The cost of one kind of call: `base_ns` a call, and `ns_per_mib` for each MiB that it is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Nanoseconds of every call, whatever its size.
    pub base_ns: u64,
    /// Nanoseconds for each MiB of memory or addresses that the call is about. A failed call does not pay them.
    #[serde(default)]
    pub ns_per_mib: u64,
}

impl Cost {
    /// A cost that does not depend on the size.
    pub const fn flat(base_ns: u64) -> Cost {
        Cost { base_ns, ns_per_mib: 0 }
    }

    /// Nanoseconds of `calls` calls that are about `bytes` bytes together.
    pub(super) fn total_ns(self, calls: u64, bytes: u64) -> u64 {
        let sized = u128::from(self.ns_per_mib) * u128::from(bytes) / (1 << 20);
        self.base_ns.saturating_mul(calls).saturating_add(u64::try_from(sized).unwrap_or(u64::MAX))
    }
}

/// Call costs of a device. Each field is the host time of one [`CallKind`]; time spent waiting for streams comes on
/// top where a call waits (`free`, `sync`).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Names the card and the driver in results.
    pub name: String,
    /// [`CallKind::Malloc`]
    pub malloc: Cost,
    /// [`CallKind::Free`], without the wait for the device.
    pub free: Cost,
    /// [`CallKind::Reserve`]; sized by the addresses.
    pub reserve: Cost,
    /// [`CallKind::Unreserve`]; sized by the addresses.
    pub unreserve: Cost,
    /// [`CallKind::Create`], of one handle.
    pub create: Cost,
    /// [`CallKind::Release`], of one handle.
    pub release: Cost,
    /// [`CallKind::Map`], of one handle.
    pub map: Cost,
    /// Making a mapped range accessible: once for each [`crate::Device::map`], however many handles it maps.
    pub set_access: Cost,
    /// [`CallKind::Unmap`], of one handle.
    pub unmap: Cost,
    /// [`CallKind::Fence`]
    pub fence: Cost,
    /// [`CallKind::Poll`]
    pub poll: Cost,
    /// [`CallKind::OrderAfter`]
    pub order_after: Cost,
    /// [`CallKind::Sync`], without the wait.
    pub sync: Cost,
    /// [`CallKind::MemoryInfo`]
    pub memory_info: Cost,
}

impl Profile {
    /// The cost of a kind of call. That of [`CallKind::Map`] is without [`Profile::set_access`].
    pub fn cost(&self, kind: CallKind) -> Cost {
        match kind {
            CallKind::Malloc => self.malloc,
            CallKind::Free => self.free,
            CallKind::Reserve => self.reserve,
            CallKind::Unreserve => self.unreserve,
            CallKind::Create => self.create,
            CallKind::Release => self.release,
            CallKind::Map => self.map,
            CallKind::Unmap => self.unmap,
            CallKind::Fence => self.fence,
            CallKind::Poll => self.poll,
            CallKind::OrderAfter => self.order_after,
            CallKind::Sync => self.sync,
            CallKind::MemoryInfo => self.memory_info,
        }
    }
}

impl Default for Profile {
    /// Start values until a card has been measured. Those marked "A100" are means of kvcached's `bench_vmm` (2 MiB
    /// pages, one thread); the others are assumptions of the right order of magnitude, not measurements.
    fn default() -> Profile {
        Profile {
            name: "default".into(),
            // Assumption: the low end of the 10² µs to ms that cudaMalloc and cudaFree are known to take.
            malloc: Cost::flat(100_000),
            free: Cost::flat(100_000),
            // A100: 19 µs for 8 GB.
            reserve: Cost::flat(19_000),
            // Assumption: what the reservation cost.
            unreserve: Cost::flat(19_000),
            // A100: 193 µs (median 195, 99th percentile 381).
            create: Cost::flat(193_000),
            // Assumption: what the unmapping costs.
            release: Cost::flat(26_000),
            // A100: 1.5 µs.
            map: Cost::flat(1_500),
            // A100: 36 µs (median 35).
            set_access: Cost::flat(36_000),
            // A100: 26 µs.
            unmap: Cost::flat(26_000),
            // Assumption: a call that touches a queue but not the page tables takes about a microsecond.
            fence: Cost::flat(1_000),
            poll: Cost::flat(1_000),
            order_after: Cost::flat(1_000),
            sync: Cost::flat(1_000),
            // Assumption: cudaMemGetInfo asks the kernel driver.
            memory_info: Cost::flat(10_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_grows_with_calls_and_bytes() {
        let cost = Cost { base_ns: 100, ns_per_mib: 10 };
        assert_eq!(cost.total_ns(1, 0), 100);
        assert_eq!(cost.total_ns(3, 5 << 20), 350);
        assert_eq!(cost.total_ns(1, 3 << 19), 115);
        assert_eq!(Cost { base_ns: 1, ns_per_mib: u64::MAX }.total_ns(1, u64::MAX), u64::MAX);
    }

    #[test]
    fn profile_survives_toml() {
        let mut profile = Profile::default();
        profile.malloc.ns_per_mib = 7;
        let text = toml::to_string(&profile).unwrap();
        assert_eq!(toml::from_str::<Profile>(&text).unwrap(), profile);
        let typo = text.replace("[malloc]", "[maloc]");
        let error = toml::from_str::<Profile>(&typo).unwrap_err().to_string();
        assert!(error.contains("maloc"), "{error}");
    }
}
