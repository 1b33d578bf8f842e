//! Measures what driver calls cost, and makes a profile of it.

mod fit;
mod measure;
mod packing;
mod report;

use crate::machine::MachineFile;
use allocator_core::cuda::{Card, CudaDevice};
use allocator_core::{Cost, DeviceError, Measured, Profile, Residual, SimDevice};
use fit::Point;
use measure::Samples;
use packing::{Difference, Run};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A place in a profile.
type Place = fn(&mut Profile) -> &mut Cost;

/// The costs of a profile: name, place, and the measured calls whose means each is drawn through.
const COSTS: [(&str, Place, &[&str]); 16] = [
    ("malloc", |profile| &mut profile.malloc, &["malloc"]),
    ("malloc_failed", |profile| &mut profile.malloc_failed, &["malloc_failed"]),
    ("free", |profile| &mut profile.free, &["free"]),
    ("within_page", |profile| &mut profile.within_page, &["malloc_within_page", "free_within_page"]),
    ("reserve", |profile| &mut profile.reserve, &["reserve"]),
    ("unreserve", |profile| &mut profile.unreserve, &["unreserve"]),
    ("create", |profile| &mut profile.create, &["create"]),
    ("create_failed", |profile| &mut profile.create_failed, &["create_failed"]),
    ("release", |profile| &mut profile.release, &["release"]),
    ("map", |profile| &mut profile.map, &["map"]),
    ("unmap", |profile| &mut profile.unmap, &["unmap"]),
    ("fence", |profile| &mut profile.fence, &["fence"]),
    ("poll", |profile| &mut profile.poll, &["poll"]),
    ("order_after", |profile| &mut profile.order_after, &["order_after"]),
    ("sync", |profile| &mut profile.sync, &["sync_event", "sync_stream", "sync_device"]),
    ("memory_info", |profile| &mut profile.memory_info, &["memory_info"]),
];

/// Everything that was measured on a card.
#[derive(Clone, Debug)]
pub struct Calibration {
    profile: Profile,
    /// The times it was made from.
    samples: Samples,
    /// Programs of the packing check, as they ran on the card.
    runs: Vec<Run>,
    /// The first call after which card and simulation differ.
    difference: Option<Difference>,
}

/// Measures a card that nothing else uses; each call `rounds` times in each size. The profile gets this `name`, and
/// says that the driver's context takes `context_bytes`.
pub fn calibrate(
    card: &Arc<Card>,
    name: &str,
    context_bytes: Option<u64>,
    rounds: u64,
) -> Result<Calibration, DeviceError> {
    // First, as long as the context is fresh and the addresses are.
    let mut watched = CudaDevice::new(card.clone(), None)?;
    watched.watch_memory()?;
    let runs = packing::record(&mut watched)?;
    drop(watched);
    let (packing, difference) = packing::compare(&runs, &mut SimDevice::new(card.total))?;
    let samples = measure::measure(&mut CudaDevice::new(card.clone(), None)?, rounds)?;
    let program = MachineFile::here_and_now(Vec::new());
    let (costs, residuals) = fitted(name, &samples);
    let measured = Measured {
        date: program.date,
        card: card.name.clone(),
        driver: driver(&program.driver, card.driver_version),
        program: format!("harness {} ({}, {})", program.harness, program.revision, program.build),
        samples: rounds,
        context_bytes,
        residuals,
        packing,
    };
    let profile = Profile { measured: Some(measured), ..costs };
    Ok(Calibration { profile, samples, runs, difference })
}

/// The driver's version, and what CUDA it supports.
fn driver(version: &str, cuda: i32) -> String {
    let cuda = format!("CUDA {}.{}", cuda / 1000, cuda % 1000 / 10);
    if version.is_empty() { cuda } else { format!("{version} ({cuda})") }
}

/// Lines through the means of `samples`, and how far off they are. Calls that were not measured, because the device
/// does not have them, cost nothing.
fn fitted(name: &str, samples: &Samples) -> (Profile, BTreeMap<String, Residual>) {
    let mut profile = Profile::uniform(name, Cost::flat(0));
    let mut residuals = BTreeMap::new();
    for (name, place, calls) in COSTS {
        let points = points(samples, calls);
        if let Some((cost, residual)) = fit::line(&points) {
            *place(&mut profile) = cost;
            residuals.insert(name.to_string(), residual);
        }
    }
    (profile, residuals)
}

/// The means of the named calls, of calls with several handles for each handle.
fn points(samples: &Samples, calls: &[&str]) -> Vec<Point> {
    let of_these = samples.iter().filter(|(what, _)| calls.contains(&what.call));
    of_these
        .map(|(what, times)| {
            // A clock that ticks too slowly for a call shows 0.
            Point { bytes: what.bytes / what.pieces, ns: (mean(times) / what.pieces as f64).max(1.0) }
        })
        .collect()
}

/// The mean of all but the highest twentieth, where the machine did something else. Means, because the costs of a run's
/// calls add up, and there are more slow ones than the median knows.
fn mean(times: &[u64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.truncate((sorted.len() * 19).div_ceil(20));
    let sum: u128 = sorted.iter().copied().map(u128::from).sum();
    if sorted.is_empty() { 0.0 } else { sum as f64 / sorted.len() as f64 }
}

/// Lowest value, quartiles and highest value, each one that was measured; zeros without any.
fn quartiles(times: &[u64]) -> [u64; 5] {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    [0, 1, 2, 3, 4].map(|quarter| sorted.get(sorted.len().saturating_sub(1) * quarter / 4).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocator_core::SimDevice;

    /// The whole way, on a device whose costs are known.
    #[test]
    fn the_simulated_device_gets_its_own_profile() {
        let known = SimDevice::new(140 << 30).profile().clone();
        let mut device = SimDevice::with_profile(140 << 30, known.clone());
        let samples = measure::measure(&mut device, 3).unwrap();
        let runs = packing::record(&mut SimDevice::new(140 << 30)).unwrap();
        let (packing, difference) = packing::compare(&runs, &mut SimDevice::new(80 << 30)).unwrap();
        let (costs, residuals) = fitted("a card", &samples);
        assert_eq!(costs, Profile { name: "a card".into(), measured: None, ..known });
        assert_eq!(residuals.len(), COSTS.len());
        for (name, residual) in &residuals {
            assert!(residual.worst_percent < 0.1, "{name}: {residual:?}");
        }
        let measured = Measured {
            date: "2026-01-02T03:04:05Z".into(),
            card: "NVIDIA Test".into(),
            driver: "1.2.3 (CUDA 12.0)".into(),
            program: "harness".into(),
            samples: 3,
            context_bytes: Some(1 << 20),
            residuals,
            packing,
        };
        let calibration =
            Calibration { profile: Profile { measured: Some(measured), ..costs }, samples, runs, difference };
        let text = calibration.toml().unwrap();
        assert_eq!(toml::from_str::<Profile>(&text).unwrap(), calibration.profile, "{text}");
        let csv = calibration.samples_csv().unwrap();
        assert!(csv.contains("\nmap,1073741824,512,3,"), "{csv}");
        assert_eq!(csv.lines().count(), calibration.samples.len() + 1);
        assert_eq!(calibration.packing_csv().unwrap().lines().count() as u64, packing.calls + 1);
        let summary = calibration.summary();
        let free = calibration.profile.free;
        let line = summary.lines().find(|line| line.starts_with("free ")).unwrap();
        for figure in [free.base_ns, free.ns_per_mib].map(crate::size::nanoseconds) {
            assert!(line.contains(&figure), "{figure}: {line}");
        }
        assert!(summary.lines().all(|line| line.chars().count() <= 80), "{summary}");
    }

    #[test]
    fn a_small_card_is_measured_with_what_fits() {
        let mut device = SimDevice::new(1 << 30);
        let samples = measure::measure(&mut device, 1).unwrap();
        let largest = samples.keys().filter(|what| what.call == "malloc").map(|what| what.bytes).max();
        assert_eq!(largest, Some(256 << 20));
        assert!(samples.keys().any(|what| what.call == "malloc_failed"));
        assert_eq!(samples.values().map(Vec::len).min(), Some(1));
    }

    #[test]
    fn means_leave_out_the_highest_twentieth() {
        assert_eq!((mean(&[]), mean(&[4]), mean(&[4, 1])), (0.0, 4.0, 2.5));
        let mut times = vec![10; 19];
        times.push(1_000_000);
        assert_eq!(mean(&times), 10.0);
        times.push(1_000);
        assert_eq!(mean(&times), (19.0 * 10.0 + 1_000.0) / 20.0);
    }

    #[test]
    fn quartiles_are_values_that_were_measured() {
        assert_eq!(quartiles(&[5, 1, 4, 2, 3]), [1, 2, 3, 4, 5]);
        assert_eq!(quartiles(&[7]), [7; 5]);
        assert_eq!(quartiles(&[1, 9]), [1, 1, 1, 1, 9]);
        assert_eq!(quartiles(&[]), [0; 5]);
    }
}
