//! What can be wrong with a trace file.

use crate::input::read_hint;
use std::io;

/// A trace that could not be read or written. The text names the file, the line and what to do.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be opened.
    #[error("{file}: cannot open: {source}")]
    Open {
        /// The file.
        file: String,
        /// The system's answer.
        source: io::Error,
    },
    /// Reading or decompressing stopped with an error.
    #[error("{file}: cannot read beyond line {line}: {source}; {}", read_hint(*.compressed, .source))]
    Read {
        /// The file.
        file: String,
        /// Lines that were read before.
        line: u64,
        /// Whether it was decompressed.
        compressed: bool,
        /// The answer of the system or of the decompressor.
        source: io::Error,
    },
    /// A line that is not in the format or makes no sense where it stands.
    #[error("{file}: line {line} (`{text}`): {problem}")]
    Line {
        /// The file.
        file: String,
        /// The line's number, from 1.
        line: u64,
        /// The line, cut after 80 characters.
        text: String,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// The file could not be written.
    #[error("{file}: cannot write: {source}")]
    Write {
        /// The file.
        file: String,
        /// The system's answer.
        source: io::Error,
    },
}
