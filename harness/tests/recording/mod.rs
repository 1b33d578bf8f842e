//! Recordings to check, as they are and with changes.
#![allow(dead_code, reason = "each test uses a part of it")]

use allocator_core::{ConfigError, DeviceInfo};
use harness::fidelity::{Report, check};
use std::path::{Path, PathBuf};
use strategy_caching::{Caching, Rules, Settings, Torch211};
use workload_gen::import::Sidecar;
use workload_gen::snapshot::{Action, Entry, Snapshot};

/// A history with what belongs to it.
#[derive(Clone)]
pub struct Recording {
    pub snapshot: Snapshot,
    pub sidecar: Option<Sidecar>,
    pub device: usize,
}

impl Recording {
    pub fn open(path: &Path) -> Recording {
        let snapshot = Snapshot::open(path).unwrap_or_else(|error| panic!("{error}"));
        let sidecar = Sidecar::beside(path).unwrap_or_else(|error| panic!("{error}"));
        let device = snapshot.devices.iter().position(|history| !history.is_empty()).unwrap_or(0);
        Recording { snapshot, sidecar, device }
    }

    /// One of those that lie beside the tests.
    pub fn shipped(name: &str) -> Recording {
        Recording::open(&shipped(name))
    }

    pub fn entries(&self) -> Vec<Entry> {
        self.snapshot.devices[self.device].iter().copied().collect()
    }

    /// The recording with its entries changed.
    pub fn with(&self, change: impl FnOnce(&mut Vec<Entry>)) -> Recording {
        let mut changed = self.clone();
        let mut entries = self.entries();
        change(&mut entries);
        changed.snapshot.devices[self.device] = entries.into_iter().collect();
        changed
    }

    pub fn check(&self) -> Report {
        self.check_with::<Torch211>()
    }

    /// Checks it against other rules than PyTorch's.
    pub fn check_with<R: Rules>(&self) -> Report {
        check(&self.snapshot, self.device, self.sidecar.as_ref(), fresh::<R>).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Numbers of about `count` of its entries that are decisions of one kind or of any, evenly spread.
    pub fn sample(&self, action: Option<Action>, count: usize) -> Vec<usize> {
        let entries = self.entries().into_iter().enumerate();
        let wanted = entries.filter(|(_, entry)| match action {
            Some(action) => entry.action == action,
            None => !matches!(entry.action, Action::Snapshot | Action::Unknown),
        });
        let numbers: Vec<usize> = wanted.map(|(number, _)| number).collect();
        numbers.iter().copied().step_by(numbers.len() / count + 1).collect()
    }
}

pub fn fresh<R: Rules>(conf: &str, info: &DeviceInfo) -> Result<Caching<R>, ConfigError> {
    let mut settings = Settings::default();
    settings.parse(conf)?;
    Caching::with_settings(settings, info)
}

pub fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/{name}.pickle.zst"))
}
