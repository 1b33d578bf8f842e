//! What a measurement needs to be understood later: which program ran, when, and on what.
//!
//! It lies in `machine.toml` beside the rows, apart from them, so that exact rows are the same on every machine.

use serde::Serialize;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// The version of the result files. A reader refuses a higher one.
pub(crate) const FORMAT: u32 = 1;

/// The contents of `machine.toml`. Unknown is empty.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct MachineFile {
    /// The version of the result files.
    format: u32,
    /// The version of this program.
    pub(crate) harness: &'static str,
    /// The revision it was built from.
    pub(crate) revision: &'static str,
    /// `release` or `debug`. Times of a debug build say nothing.
    pub(crate) build: &'static str,
    /// The command line.
    command: Vec<String>,
    /// The start, in UTC, as RFC 3339 writes it.
    pub(crate) date: String,
    /// The processor.
    cpu: String,
    /// How many threads it runs at once.
    cpus: usize,
    /// Operating system and architecture.
    platform: String,
    /// The kernel's release.
    kernel: String,
    /// The version of the NVIDIA driver's kernel module.
    pub(crate) driver: String,
}

impl MachineFile {
    /// This program, here and now.
    pub fn here_and_now(command: Vec<String>) -> MachineFile {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        MachineFile {
            format: FORMAT,
            harness: env!("CARGO_PKG_VERSION"),
            revision: env!("HARNESS_REVISION"),
            build: env!("HARNESS_PROFILE"),
            command,
            date: rfc3339(seconds),
            cpu: cpu(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            platform: format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH),
            kernel: line_of("/proc/sys/kernel/osrelease"),
            driver: line_of("/sys/module/nvidia/version"),
        }
    }
}

/// Whether this program was built without optimisation.
pub const fn is_debug_build() -> bool {
    cfg!(debug_assertions)
}

/// What a file says; empty if there is none.
fn line_of(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

fn cpu(cpuinfo: &str) -> String {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split_once(':')).map_or(String::new(), |(_, name)| name.trim().to_string())
}

/// Days are counted from 1 March of year 0, so that a leap day is the last of its year.
fn rfc3339(unix_seconds: u64) -> String {
    let (days, seconds) = (unix_seconds / 86_400 + 719_468, unix_seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_around_leap_days() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(951_868_800), "2000-03-01T00:00:00Z");
        assert_eq!(rfc3339(1_767_225_599), "2025-12-31T23:59:59Z");
        assert_eq!(rfc3339(4_107_542_400), "2100-03-01T00:00:00Z", "2100 has no leap day");
    }

    #[test]
    fn the_cpu_is_found_or_empty() {
        assert_eq!(cpu("processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\n"), "Some CPU @ 2.0GHz");
        assert_eq!(cpu("processor\t: 0\n"), "");
    }
}
