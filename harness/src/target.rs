//! What runs take place on: the simulated device, with the call costs of a profile, or a real card.
//!
//! Both are a `Machine` to everything else, so every pass is the same code on both.

use crate::exit::Error;
use allocator_core::cuda::{Card, CudaDevice};
use allocator_core::{DeviceError, Machine, Profile, SimDevice};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A device as the command line names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeviceName {
    /// `sim`: the built-in call costs.
    Sim,
    /// `sim:FILE`: call costs from a file.
    Profile(PathBuf),
    /// `cuda` or `cuda:N`: the card of that number.
    Cuda(u32),
}

impl DeviceName {
    /// Reads a name.
    pub fn parse(text: &str) -> Result<DeviceName, String> {
        match text.split_once(':') {
            None if text == "sim" => Ok(DeviceName::Sim),
            None if text == "cuda" => Ok(DeviceName::Cuda(0)),
            Some(("sim", profile)) if profile == Profile::default().name => Ok(DeviceName::Sim),
            Some(("sim", file)) if !file.is_empty() => Ok(DeviceName::Profile(file.into())),
            Some(("cuda", number)) => number
                .parse()
                .map(DeviceName::Cuda)
                .map_err(|_| format!("'{number}' is no number of a card; write cuda:0 for the first")),
            _ => Err("write sim, sim:PROFILE.toml, cuda or cuda:N".to_string()),
        }
    }
}

/// A device that runs take place on.
#[derive(Clone, Debug)]
pub enum Target {
    /// The simulated device.
    Sim(Box<Profile>),
    /// A card.
    Card {
        /// The card.
        card: Arc<Card>,
        /// `cuda`, or `cuda:N` if it is not the first.
        name: String,
        /// Held by whoever uses it: two runs at once would see each other's memory.
        turn: Arc<Mutex<()>>,
    },
}

impl Target {
    /// Reads the profile, or opens the card.
    pub fn open(name: &DeviceName) -> Result<Target, Error> {
        match name {
            DeviceName::Sim => Ok(Target::default()),
            DeviceName::Profile(path) => Ok(Target::Sim(Box::new(profile(path)?))),
            DeviceName::Cuda(number) => {
                let card = Card::open(*number)
                    .map_err(|why| Error::NoDevice(format!("{why}; -d sim needs no card and is the default")))?;
                let name = if *number == 0 { "cuda".to_string() } else { format!("cuda:{number}") };
                Ok(Target::Card { card, name, turn: Arc::default() })
            }
        }
    }

    /// The name in results.
    pub fn name(&self) -> &str {
        match self {
            Target::Sim(_) => "sim",
            Target::Card { name, .. } => name,
        }
    }

    /// What else there is to know about it in results: the profile, or the card with the driver's CUDA version.
    pub fn profile(&self) -> String {
        match self {
            Target::Sim(profile) => profile.name.clone(),
            Target::Card { card, .. } => {
                format!("{}, CUDA {}.{}", card.name, card.driver_version / 1000, card.driver_version % 1000 / 10)
            }
        }
    }

    /// Whether it has the driver's stream-ordered pool.
    pub fn is_stream_ordered(&self) -> bool {
        self.card().is_some_and(|card| card.stream_ordered)
    }

    /// The card, if it is one.
    pub fn card(&self) -> Option<&Arc<Card>> {
        match self {
            Target::Sim(_) => None,
            Target::Card { card, .. } => Some(card),
        }
    }

    /// Waits until nobody else uses the card. The simulated device is made afresh for each user.
    pub fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        match self {
            Target::Sim(_) => None,
            Target::Card { turn, .. } => Some(turn.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// A fresh device of `capacity` bytes. On a card, `is_watched` has the driver asked for the memory it lost after
    /// every call that moves any, which takes time.
    pub fn machine(&self, capacity: u64, is_watched: bool) -> Result<Box<dyn Machine>, DeviceError> {
        match self {
            Target::Sim(profile) => Ok(Box::new(SimDevice::with_profile(capacity, Profile::clone(profile)))),
            Target::Card { card, .. } => {
                let mut device = CudaDevice::new(card.clone(), Some(capacity))?;
                if is_watched {
                    device.watch_memory()?;
                }
                Ok(Box::new(device))
            }
        }
    }
}

impl Default for Target {
    fn default() -> Target {
        Target::Sim(Box::default())
    }
}

fn profile(path: &Path) -> Result<Profile, Error> {
    let text = fs::read_to_string(path).map_err(|why| Error::unreadable(path, why))?;
    toml::from_str(&text).map_err(|why| {
        let why = format!("it is no profile as `harness calibrate` writes it: {}", why.message());
        Error::unreadable(path, why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_or_refused() {
        assert_eq!(DeviceName::parse("sim"), Ok(DeviceName::Sim));
        assert_eq!(DeviceName::parse("sim:h200"), Ok(DeviceName::Sim));
        assert_eq!(DeviceName::parse("sim:a100.toml"), Ok(DeviceName::Profile("a100.toml".into())));
        assert_eq!(DeviceName::parse("cuda"), Ok(DeviceName::Cuda(0)));
        assert_eq!(DeviceName::parse("cuda:3"), Ok(DeviceName::Cuda(3)));
        for bad in ["", "sim:", "cuda:", "cuda:-1", "cuda:x", "gpu", "cpu:0"] {
            assert!(DeviceName::parse(bad).is_err(), "{bad}");
        }
    }
}
