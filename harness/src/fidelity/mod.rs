//! Whether a strategy makes the decisions that PyTorch recorded, entry by entry.
//!
//! A memory snapshot holds what PyTorch's allocator did; it does not hold what was asked of it. The calls are read
//! off the entries (an `alloc` entry is an allocation of that size, a `free_requested` entry a free), and made on a
//! strategy whose device answers from the recording. What the strategy then does has to be the next entry, every
//! time. Three things are taken from the recording, since no model could know them: the addresses that the driver
//! returned, whether it had memory, and when other streams were done. Two more are inferred, and counted: that
//! `empty_cache` was called, which leaves no entry, and the private pool of an allocation, which its entry does not
//! name.

mod changes;
mod end;
mod guess;
mod lives;
mod pairs;
mod plan;
mod playback;
mod ranges;
mod replay;

use allocator_core::{ConfigError, Control, Device, DeviceInfo, Strategy};
use std::fmt;
use workload_gen::import::Sidecar;
use workload_gen::snapshot::{Action, Snapshot};

/// What came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Every entry, and the end state and statistics as far as they are recorded.
    Exact,
    /// The strategy does something else than the recording at the first divergence.
    Diverged,
    /// The history lost its beginning, or there is none: the state it starts from is not known. Or it is in more streams
    /// and pools than are followed.
    Incomplete,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Exact => "exact",
            Verdict::Diverged => "diverged",
            Verdict::Incomplete => "incomplete",
        })
    }
}

/// The result for one history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// Entries that are decisions: all but `snapshot` entries.
    pub events: u64,
    /// Entries that the strategy reproduced before the first divergence.
    pub matched: u64,
    /// Inferences: flushes, and segments placed in private pools.
    pub inferred: u64,
    /// Number of the first entry (from 0, in the file's order) that is not what the strategy does; the number of
    /// entries if only the end differs.
    pub first_divergence: Option<usize>,
    /// Highest reserved bytes of the replay.
    pub reserved_peak_bytes: u64,
    /// Highest reserved bytes of the recording.
    pub recorded_reserved_peak_bytes: u64,
    /// The verdict.
    pub verdict: Verdict,
    /// Why, in words. Empty if exact.
    pub why: String,
    /// Statistics that were compared at the end; 0 if none are recorded.
    pub statistics: usize,
}

/// The settings that a recording was made under, as a text in PyTorch's grammar, and the memory limit in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Conditions {
    /// Allocator settings.
    pub conf: String,
    /// Bytes that PyTorch was allowed to reserve.
    pub limit: Option<u64>,
    /// Bytes of the device.
    pub device_bytes: u64,
}

/// Device size that is supposed when nothing tells it: 80 GiB. It takes no part in a decision unless memory runs out.
const DEVICE_BYTES: u64 = 80 << 30;

impl Conditions {
    /// From a snapshot and what is known beside it.
    pub fn of(snapshot: &Snapshot, sidecar: Option<&Sidecar>) -> Conditions {
        let settings = &snapshot.settings;
        let mut conf = match sidecar {
            Some(sidecar) if !sidecar.conf.is_empty() => sidecar.conf.clone(),
            _ => settings.conf.clone(),
        };
        let mut add = |key: &str, value: String| {
            if !conf.contains(key) {
                conf = if conf.is_empty() { format!("{key}:{value}") } else { format!("{conf},{key}:{value}") };
            }
        };
        // Settings made by other calls than a settings text are in the file's fields only.
        if settings.expandable_segments == Some(true) {
            add("expandable_segments", "True".to_owned());
        }
        if let Some(bytes) = settings.max_split_size.filter(|&bytes| bytes > 0) {
            add("max_split_size_mb", (bytes >> 20).to_string());
        }
        if let Some(share) = settings.garbage_collection_threshold.filter(|&share| share > 0.0) {
            add("garbage_collection_threshold", share.to_string());
        }
        Conditions {
            conf,
            limit: sidecar.and_then(Sidecar::limit_bytes),
            device_bytes: sidecar.and_then(|sidecar| sidecar.total).filter(|&total| total > 0).unwrap_or(DEVICE_BYTES),
        }
    }
}

/// Checks the history of one device. `make` makes the strategy from the settings it was recorded under, in PyTorch's
/// grammar; a memory limit is set through [`Strategy::control`].
pub fn check<S: Strategy + Clone>(
    snapshot: &Snapshot,
    device: usize,
    sidecar: Option<&Sidecar>,
    make: impl FnOnce(&str, &DeviceInfo) -> Result<S, ConfigError>,
) -> Result<Report, ConfigError> {
    let conditions = Conditions::of(snapshot, sidecar);
    let plan = plan::Plan::new(snapshot, device);
    let mut report = Report {
        events: plan.entries.iter().filter(|entry| plan::is_decision(entry.action)).count() as u64,
        matched: 0,
        inferred: 0,
        first_divergence: None,
        reserved_peak_bytes: 0,
        recorded_reserved_peak_bytes: recorded_peak(&plan),
        verdict: Verdict::Exact,
        why: String::new(),
        statistics: 0,
    };
    if let Some(why) = &plan.incomplete {
        report.verdict = Verdict::Incomplete;
        report.why.clone_from(why);
        return Ok(report);
    }
    let mut dev = playback::Playback::new(&plan, conditions.device_bytes);
    let mut start = make(&conditions.conf, &dev.info())?;
    if let Some(limit) = conditions.limit {
        let told = start.control(&mut dev, Control::Limit(Some(limit)));
        told.map_err(|error| ConfigError(format!("a limit of {limit} bytes: {error}")))?;
    }
    let retries = sidecar.and_then(|sidecar| sidecar.stats.get("num_alloc_retries")).copied();
    let recording = replay::Recording {
        plan: &plan,
        start,
        device_bytes: conditions.device_bytes,
        capped: conditions.limit.is_some() || plan.has_ooms || retries.is_some_and(|count| count > 0),
        retries,
    };
    let trial = guess::replay(&recording, sidecar);
    report.inferred = trial.inferred;
    report.reserved_peak_bytes = trial.reserved_peak;
    report.statistics = trial.statistics;
    if let Some(playback::Divergence { at, why, .. }) = trial.divergence {
        report.verdict = Verdict::Diverged;
        report.first_divergence = Some(at);
        report.why = why;
        if conditions.limit.is_none() && conditions.conf.contains("garbage_collection_threshold") {
            report.why += "; its settings collect garbage under a memory limit, which a NAME.json beside it would tell";
        }
    }
    let reached = report.first_divergence.unwrap_or(plan.entries.len());
    report.matched = plan.entries[..reached].iter().filter(|entry| plan::is_decision(entry.action)).count() as u64;
    Ok(report)
}

/// Highest sum of the recorded segments.
fn recorded_peak(plan: &plan::Plan) -> u64 {
    let (mut reserved, mut peak) = (plan.reserved_at_start, 0);
    for entry in &plan.entries {
        match entry.action {
            Action::SegmentAlloc | Action::SegmentMap => reserved = u64::saturating_add(reserved, entry.size),
            Action::SegmentFree | Action::SegmentUnmap => reserved = reserved.saturating_sub(entry.size),
            _ => {}
        }
        peak = peak.max(reserved);
    }
    peak
}
