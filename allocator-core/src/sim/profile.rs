//! What device calls cost on the simulated device.
//!
//! A profile is data: it comes from a file that was measured on a card, or is the built-in one, which is such a file
//! too. Figures made with it are *modelled* and never share a column with measured ones.

use crate::device::CallKind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::LazyLock;

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
    pub fn total_ns(self, calls: u64, bytes: u64) -> u64 {
        let sized = u128::from(self.ns_per_mib) * u128::from(bytes) / (1 << 20);
        self.base_ns.saturating_mul(calls).saturating_add(u64::try_from(sized).unwrap_or(u64::MAX))
    }
}

/// Call costs of a device. Each field is the host time of a [`CallKind`] or of a case of it; time spent waiting for streams comes on
/// top where a call waits (`free`, `sync`).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Names the card and the driver in results.
    pub name: String,
    /// [`CallKind::Malloc`]
    pub malloc: Cost,
    /// [`CallKind::Malloc`] of more than there is.
    pub malloc_failed: Cost,
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
    /// [`CallKind::Create`] of more than there is.
    pub create_failed: Cost,
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
    /// Where the costs come from, if a program measured them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
}

/// How a profile was measured, and how well its lines fit.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// The day and time, in UTC.
    pub date: String,
    /// What the driver calls the card.
    pub card: String,
    /// The driver's version.
    pub driver: String,
    /// The program that measured.
    pub program: String,
    /// Rounds, each with a call of every kind and size.
    pub samples: u64,
    /// Bytes that a program loses to the driver's context before it takes any; `None` if no second program could open
    /// the card beside the one that measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_bytes: Option<u64>,
    /// How far the lines are from the means, by the name of the cost.
    pub residuals: BTreeMap<String, Residual>,
    /// How `malloc` on the card compares with the simulated one.
    pub packing: Packing,
}

/// The distance of a cost's line from the means that it was drawn through, in percent of them.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Residual {
    /// How many means there were.
    pub points: u64,
    /// The median of their distances.
    pub typical_percent: f64,
    /// The largest of them.
    pub worst_percent: f64,
    /// The bytes of the call it belongs to.
    pub worst_bytes: u64,
}

/// Random programs of `malloc` and `free` on a card, as against the simulated device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Packing {
    /// Calls, after each of which both were looked at.
    pub calls: u64,
    /// Those after which both had lost the same bytes.
    pub equal_bytes: u64,
    /// The largest difference.
    pub worst_bytes: u64,
    /// Requests among them.
    pub requests: u64,
    /// Those that lie, seen from the first one, at the same place.
    pub equal_places: u64,
}

impl Profile {
    /// One of the given name on which every call costs `cost`.
    pub fn uniform(name: &str, cost: Cost) -> Profile {
        Profile {
            name: name.to_string(),
            malloc: cost,
            malloc_failed: cost,
            free: cost,
            within_page: cost,
            reserve: cost,
            unreserve: cost,
            create: cost,
            create_failed: cost,
            release: cost,
            map: cost,
            unmap: cost,
            fence: cost,
            poll: cost,
            order_after: cost,
            sync: cost,
            memory_info: cost,
            measured: None,
        }
    }

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

/// The costs that come with this crate.
static BUILT_IN: LazyLock<Profile> = LazyLock::new(|| match toml::from_str(include_str!("h200.toml")) {
    Ok(profile) => profile,
    Err(why) => panic!("h200.toml: {why}"),
});

impl Default for Profile {
    /// An NVIDIA H200.
    fn default() -> Profile {
        BUILT_IN.clone()
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

    fn measured() -> Measured {
        Measured {
            date: "2026-01-02T03:04:05Z".into(),
            card: "a card".into(),
            driver: "1.2.3".into(),
            program: "harness".into(),
            samples: 100,
            context_bytes: Some(5 << 20),
            residuals: BTreeMap::from([(
                "malloc".into(),
                Residual { points: 12, typical_percent: 1.5, worst_percent: 10.25, worst_bytes: 1 << 30 },
            )]),
            packing: Packing { calls: 10, equal_bytes: 9, worst_bytes: 2 << 20, requests: 6, equal_places: 5 },
        }
    }

    #[test]
    fn the_built_in_profile_is_a_file_that_can_be_read() {
        let profile = Profile::default();
        assert_eq!(profile.name, "h200");
        assert!(CallKind::ALL[..13].iter().all(|&kind| profile.cost(kind).base_ns > 0));
    }

    #[test]
    fn profile_survives_toml() {
        let mut profile = Profile::default();
        profile.malloc.ns_per_mib = 7;
        for measured in [None, Some(measured())] {
            profile.measured = measured;
            let text = toml::to_string(&profile).unwrap();
            assert_eq!(toml::from_str::<Profile>(&text).unwrap(), profile, "{text}");
            let typo = text.replace("[malloc]", "[maloc]");
            let error = toml::from_str::<Profile>(&typo).unwrap_err().to_string();
            assert!(error.contains("maloc"), "{error}");
        }
    }
}
