//! What can be wrong with a snapshot file.

use crate::input::read_hint;
use std::fmt;
use std::io;

/// A snapshot that could not be read. The text names the file, the byte, what was found, what was expected and what
/// to try.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file could not be opened.
    #[error("{file}: cannot open: {source}")]
    Open {
        /// The file.
        file: String,
        /// The system's answer.
        source: io::Error,
    },
    /// Reading or decompressing stopped with an error.
    #[error("{file}: cannot read beyond byte {offset} of {}: {source}; {}", place(*.compressed), read_hint(*.compressed, .source))]
    Read {
        /// The file.
        file: String,
        /// Bytes of the (decompressed) stream that were read before.
        offset: u64,
        /// Whether the offset counts decompressed bytes.
        compressed: bool,
        /// The answer of the system or of the decompressor.
        source: io::Error,
    },
    /// The bytes are not a snapshot.
    #[error("{0}")]
    Malformed(Box<Malformed>),
}

/// Where a stream of bytes stops being a snapshot, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Malformed {
    /// The file.
    pub file: String,
    /// The byte at which the offending opcode starts.
    pub offset: u64,
    /// Whether the offset counts decompressed bytes.
    pub compressed: bool,
    /// The opcode's name in Python's `pickletools`, if an opcode was being read.
    pub opcode: Option<&'static str>,
    /// The bytes there (at most 16).
    pub bytes: Vec<u8>,
    /// What was found and what was expected.
    pub problem: String,
    /// What to try.
    pub hint: &'static str,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: byte {} of {}", self.file, self.offset, place(self.compressed))?;
        if let Some(opcode) = self.opcode {
            write!(f, ", opcode {opcode}")?;
        }
        if !self.bytes.is_empty() {
            f.write_str(" (")?;
            for (i, byte) in self.bytes.iter().enumerate() {
                write!(f, "{}{byte:02x}", if i == 0 { "" } else { " " })?;
            }
            f.write_str(")")?;
        }
        write!(f, ": {}; {}", self.problem, self.hint)
    }
}

fn place(compressed: bool) -> &'static str {
    if compressed { "the decompressed stream" } else { "the file" }
}

/// A problem that does not know yet where it was met.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) what: String,
    pub(super) hint: &'static str,
}

impl Problem {
    /// The bytes are no snapshot that any known PyTorch writes.
    pub(super) fn layout(what: impl Into<String>) -> Problem {
        Problem {
            what: what.into(),
            hint: "write the file with torch.cuda.memory._dump_snapshot(), unchanged; if it was, its PyTorch is newer \
                   than this reader, which then needs the file to learn from",
        }
    }

    /// The file ends too early.
    pub(super) fn truncated() -> Problem {
        Problem {
            what: "the pickle ends here, before its STOP opcode".into(),
            hint: "the file is cut short: copy it again, or dump it again",
        }
    }
}
