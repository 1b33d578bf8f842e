//! The trace format: text, a line an event, readable in a diff; written
//! compressed with zstd where the name ends in `.zst`, read with whatever the first bytes show.
//!
//! `docs/TRACE-FORMAT.md` describes it. The first line carries the version, so that a later one can be told apart.

mod draft;
mod error;
mod fields;
mod line;
mod read;
mod write;

pub use draft::Draft;
pub use error::TraceError;
pub use read::{open, read, read_input};
pub use write::{Writer, save, save_with_level, write};

/// The first line of every trace.
pub(crate) const FIRST_LINE: &str = "gpu-alloc-trace 1";

#[cfg(test)]
mod tests;
