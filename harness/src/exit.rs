//! How the program ends: one error type, and the exit code of each kind of failure.
//!
//! Scripts branch on these numbers, so they are part of the interface and never change their meaning. That a strategy
//! runs out of memory is a result and ends with [`DONE`].

use std::fmt::Display;
use std::io;
use std::path::Path;
use workload_gen::plain_path;

/// Everything asked for was done.
pub const DONE: u8 = 0;
/// A bug in this program.
pub const INTERNAL: u8 = 1;
/// The command line makes no sense.
pub const USAGE: u8 = 2;
/// The filters leave nothing to do.
pub const NOTHING_SELECTED: u8 = 3;
/// Something that was checked does not hold: an invalid trace, a strategy that hands out memory twice.
pub const CHECK_FAILED: u8 = 4;
/// The device asked for is not there.
pub const NO_DEVICE: u8 = 5;
/// An input cannot be read.
pub const UNREADABLE: u8 = 6;
/// An output cannot be written.
pub const UNWRITABLE: u8 = 7;

/// What a shell adds to the number of the signal that ended a program.
const BY_SIGNAL: i32 = 128;

/// Why a command stopped. The text names the thing, the value and the way out.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// See [`INTERNAL`].
    #[error("internal error: {0}")]
    Internal(String),
    /// See [`USAGE`].
    #[error("{0}")]
    Usage(String),
    /// See [`NOTHING_SELECTED`].
    #[error("{0}")]
    NothingSelected(String),
    /// See [`CHECK_FAILED`].
    #[error("{0}")]
    CheckFailed(String),
    /// See [`NO_DEVICE`].
    #[error("{0}")]
    NoDevice(String),
    /// See [`UNREADABLE`].
    #[error("{0}")]
    Unreadable(String),
    /// See [`UNWRITABLE`].
    #[error("{0}")]
    Unwritable(String),
    /// A signal came while files were written; what was done until then is kept.
    #[error("interrupted; {kept}")]
    Interrupted {
        /// The signal's number.
        signal: i32,
        /// What became of the work.
        kept: String,
    },
    /// Whoever read our output has seen enough (`| head`): a success.
    #[error("the reader of the output is gone")]
    ClosedPipe,
}

impl Error {
    /// The program's exit code.
    pub fn code(&self) -> u8 {
        match self {
            Error::Internal(_) => INTERNAL,
            Error::Usage(_) => USAGE,
            Error::NothingSelected(_) => NOTHING_SELECTED,
            Error::CheckFailed(_) => CHECK_FAILED,
            Error::NoDevice(_) => NO_DEVICE,
            Error::Unreadable(_) => UNREADABLE,
            Error::Unwritable(_) => UNWRITABLE,
            Error::Interrupted { signal, .. } => u8::try_from(BY_SIGNAL + signal).unwrap_or(INTERNAL),
            Error::ClosedPipe => DONE,
        }
    }

    /// `path` cannot be read.
    pub(crate) fn unreadable(path: &Path, why: impl Display) -> Error {
        Error::Unreadable(format!("cannot read {}: {why}", plain_path(path)))
    }

    /// `path` cannot be written.
    pub fn unwritable(path: &Path, why: impl Display) -> Error {
        Error::Unwritable(format!("cannot write {}: {why}", plain_path(path)))
    }

    /// Standard output cannot be written.
    pub fn stdout(why: io::Error) -> Error {
        match why.kind() {
            io::ErrorKind::BrokenPipe => Error::ClosedPipe,
            _ => Error::Unwritable(format!("cannot write to standard output: {why}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_is_a_success_and_a_full_disk_is_not() {
        assert_eq!(Error::stdout(io::ErrorKind::BrokenPipe.into()).code(), DONE);
        assert_eq!(Error::stdout(io::ErrorKind::StorageFull.into()).code(), UNWRITABLE);
    }
}
