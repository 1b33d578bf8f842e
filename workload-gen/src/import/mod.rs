//! From a snapshot to a trace: what the workload asked for, without what the allocator made of it.
//!
//! Allocations and frees are recorded. Three things are not, and are inferred; the trace's notes say how often:
//! `empty_cache` leaves only the segments it released, a free that waited for another stream shows by a completion
//! that does not directly follow its request, and private pools are known only from the segments left at the end.

mod addresses;
mod convert;
mod pools;
mod sidecar;
mod slots;
mod start;

pub use sidecar::Sidecar;

use crate::snapshot::{Snapshot, SnapshotError};
use crate::trace::Trace;
use std::path::Path;

/// How to import a snapshot.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// The device whose history is wanted. `None` is the only one that has a history.
    pub device: Option<u32>,
    /// What is known from elsewhere.
    pub sidecar: Option<Sidecar>,
}

/// Why a snapshot gave no trace.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file could not be read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The sidecar could not be read.
    #[error("{file}: {why}; correct it or take it away: it only adds the memory limit and statistics of the snapshot")]
    Sidecar {
        /// The sidecar.
        file: String,
        /// What is wrong with it.
        why: String,
    },
    /// No device has a history.
    #[error(
        "{file}: holds no history, only the state at the end; record one with \
         torch.cuda.memory._record_memory_history(max_entries=...) before the work and dump again"
    )]
    NoHistory {
        /// The snapshot.
        file: String,
    },
    /// More than one device has a history, and none was named.
    #[error("{file}: several devices have a history: {}; name one", list(.devices))]
    SeveralDevices {
        /// The snapshot.
        file: String,
        /// The devices that have a history.
        devices: Vec<u32>,
    },
    /// The device that was named has no history.
    #[error("{file}: device {device} has no history; these have: {}", list(.devices))]
    NoSuchDevice {
        /// The snapshot.
        file: String,
        /// The device that was named.
        device: u32,
        /// The devices that have a history.
        devices: Vec<u32>,
    },
    /// The history contradicts itself.
    #[error(
        "{file}: device {device}, entry {entry} ({action} of {size} bytes at {address:#x}): {why}; entries are missing or \
         changed: record again, without skip_actions"
    )]
    Inconsistent {
        /// The snapshot.
        file: String,
        /// The device.
        device: u32,
        /// The number of the entry, from 0.
        entry: usize,
        /// Its action.
        action: &'static str,
        /// Its address.
        address: u64,
        /// Its size.
        size: u64,
        /// The contradiction.
        why: &'static str,
    },
}

fn list(devices: &[u32]) -> String {
    devices.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// Reads a snapshot with its sidecar, if one lies beside it, and makes a trace of one device's history.
pub fn import_file(path: impl AsRef<Path>, device: Option<u32>) -> Result<Trace, ImportError> {
    let path = path.as_ref();
    let sidecar = Sidecar::beside(path)?;
    import(Snapshot::open(path)?, &ImportOptions { device, sidecar })
}

/// Makes a trace of one device's history. The snapshot's memory is given back on the way.
pub fn import(snapshot: Snapshot, options: &ImportOptions) -> Result<Trace, ImportError> {
    let device = choose_device(&snapshot, options.device)?;
    convert::convert(snapshot, device, options.sidecar.as_ref())
}

/// The device whose history is meant: the one that is named, or the only one that has a history.
pub fn choose_device(snapshot: &Snapshot, wanted: Option<u32>) -> Result<u32, ImportError> {
    let file = || snapshot.name.clone();
    let devices: Vec<u32> = (0..).zip(&snapshot.devices).filter(|(_, h)| !h.is_empty()).map(|(n, _)| n).collect();
    match (wanted, devices.as_slice()) {
        (_, []) => Err(ImportError::NoHistory { file: file() }),
        (Some(device), devices) if devices.contains(&device) => Ok(device),
        (Some(device), _) => Err(ImportError::NoSuchDevice { file: file(), device, devices }),
        (None, &[device]) => Ok(device),
        (None, _) => Err(ImportError::SeveralDevices { file: file(), devices }),
    }
}
