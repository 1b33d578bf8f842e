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
    /// [`CallKind::Malloc`] and [`CallKind::Free`] of less than a driver page, if others live in the same page.
    pub within_page: Cost,
    /// [`CallKind::Reserve`]; sized by the addresses.
    pub reserve: Cost,
    /// [`CallKind::Unreserve`]; sized by the addresses.
    pub unreserve: Cost,
    /// [`CallKind::Create`], of one handle.
    pub create: Cost,
    /// [`CallKind::Release`], of one handle.
    pub release: Cost,
    /// [`CallKind::Map`], of one handle: mapping it and making it accessible.
    pub map: Cost,
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
    /// The cost of a kind of call.
    pub(crate) fn cost(&self, kind: CallKind) -> Cost {
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
            // Not modelled: only tests use them here.
            CallKind::MallocAsync | CallKind::FreeAsync | CallKind::TrimAsync => Cost::flat(0),
        }
    }
}

impl Default for Profile {
    /// An NVIDIA H200 (driver 580.159, one thread, idle device): straight lines through medians of 15 to 60 calls a
    /// size, of 2,000 calls where there is no size. Run to run they move by a tenth.
    fn default() -> Profile {
        Profile {
            name: "h200".into(),
            // 35 µs for 2 MiB, 38 for 64 MiB, 79 for 1 GiB, 179 for 4 GiB.
            malloc: Cost { base_ns: 36_000, ns_per_mib: 35 },
            // 29 µs for 2 MiB, 54 for 64 MiB, 412 for 1 GiB, 1,570 for 4 GiB.
            free: Cost { base_ns: 30_000, ns_per_mib: 375 },
            // Of 512 bytes to 64 KiB: 1.0 to 1.5 µs; of 1 MiB every second call, the others as for 2 MiB.
            within_page: Cost::flat(1_100),
            // 1.5 to 2.5 µs for 180 GiB.
            reserve: Cost::flat(2_000),
            // 1.8 to 4.5 µs for 180 GiB.
            unreserve: Cost::flat(2_500),
            // 8.1 µs for 2 and for 20 MiB, 10.6 for 256 MiB, 26 for 1 GiB.
            create: Cost { base_ns: 8_000, ns_per_mib: 17 },
            // 9.2 µs for 2 MiB, 15 for 20 MiB, 29 for 64 MiB, 336 for 1 GiB.
            release: Cost { base_ns: 8_500, ns_per_mib: 320 },
            // cuMemMap 0.7 µs at any size, cuMemSetAccess 21 µs for 2 to 64 MiB and 56 for 1 GiB; over fifty handles of
            // 20 MiB in one call 1,080 µs, so it is paid by the handle.
            map: Cost { base_ns: 22_000, ns_per_mib: 34 },
            // 14.3 µs for 2 and 20 MiB, 15.7 for 64 MiB, 29 for 1 GiB; fifty handles in one call 734 µs.
            unmap: Cost { base_ns: 14_300, ns_per_mib: 14 },
            fence: Cost::flat(172),
            poll: Cost::flat(164),
            order_after: Cost::flat(138),
            // Of work that is done; 180 to 300 ns for an event, a stream or the device.
            sync: Cost::flat(210),
            memory_info: Cost::flat(4_330),
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
