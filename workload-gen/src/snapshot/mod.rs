//! Memory snapshots as PyTorch writes them (`torch.cuda.memory._dump_snapshot()`), read as a stream.
//!
//! A snapshot is a pickle of nested dictionaries with a dictionary of seven keys for each event of the allocator.
//! Building those objects, as `pickle.load` must, takes ten times the memory and the time that the events need; a
//! general pickle reader also carries out what the file tells it. This reader knows the few opcodes that plain data
//! needs, refuses all others, keeps only what a replay uses, and never holds more than one buffer of the file.
//!
//! It takes protocols 2 to 5, plain, gzip or zstd, of any PyTorch since histories exist: unknown keys are skipped,
//! keys that old versions do not write are optional, and a bare list of segments is a snapshot without a history.

mod build;
mod error;
mod fast;
mod history;
mod machine;
mod memo;
mod opcode;
mod source;
mod words;

pub use error::{Malformed, SnapshotError};
pub use history::History;

use crate::input::Input;
use crate::plain_path;
use std::io::Read;
use std::path::Path;

/// A snapshot: what the allocator did on each device, and what was there at the end.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Snapshot {
    /// The file's name, as it was given.
    pub name: String,
    /// The raw handle of every stream that an entry names, in the order they appear.
    pub streams: Vec<u64>,
    /// One history per device; empty histories are of devices that were not used.
    pub devices: Vec<History>,
    /// The segments of all devices at the end.
    pub segments: Vec<Segment>,
    /// The allocator's settings.
    pub settings: AllocatorSettings,
    /// Actions of entries that the reader does not know ([`Action::Unknown`]), each once, at most 16.
    pub unknown_actions: Vec<String>,
}

impl Snapshot {
    /// Reads a file.
    pub fn open(path: impl AsRef<Path>) -> Result<Snapshot, SnapshotError> {
        let path = path.as_ref();
        match Input::open(path) {
            Ok(input) => Snapshot::read_input(input),
            Err(source) => Err(SnapshotError::Open { file: plain_path(path), source }),
        }
    }

    /// Reads a stream; `name` is what errors call it. No buffer is needed around it.
    pub fn read(reader: impl Read, name: &str) -> Result<Snapshot, SnapshotError> {
        Snapshot::read_input(Input::new(reader, name))
    }

    /// Reads an input.
    pub fn read_input(input: Input<'_>) -> Result<Snapshot, SnapshotError> {
        machine::read(source::Source::new(input))
    }

    /// The raw handle of an entry's stream.
    pub fn stream(&self, entry: &Entry) -> u64 {
        self.streams.get(entry.stream as usize).copied().unwrap_or(0)
    }
}

/// What an entry of a history tells.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Action {
    /// A block was handed out.
    Alloc,
    /// Its user freed it.
    FreeRequested,
    /// Its memory became reusable.
    FreeCompleted,
    /// The driver gave a segment.
    SegmentAlloc,
    /// A segment goes back to the driver.
    SegmentFree,
    /// Memory was mapped into an expandable segment.
    SegmentMap,
    /// Memory was unmapped.
    SegmentUnmap,
    /// A request failed for lack of memory.
    Oom,
    /// A snapshot was taken.
    Snapshot,
    /// An action that this version does not know. Such entries are kept, so that entry numbers are the file's.
    Unknown,
}

impl Action {
    /// All actions, in the order of their numbers.
    pub const ALL: [Action; 10] = [
        Action::Alloc,
        Action::FreeRequested,
        Action::FreeCompleted,
        Action::SegmentAlloc,
        Action::SegmentFree,
        Action::SegmentMap,
        Action::SegmentUnmap,
        Action::Oom,
        Action::Snapshot,
        Action::Unknown,
    ];

    /// PyTorch's name.
    pub const fn name(self) -> &'static str {
        match self {
            Action::Alloc => "alloc",
            Action::FreeRequested => "free_requested",
            Action::FreeCompleted => "free_completed",
            Action::SegmentAlloc => "segment_alloc",
            Action::SegmentFree => "segment_free",
            Action::SegmentMap => "segment_map",
            Action::SegmentUnmap => "segment_unmap",
            Action::Oom => "oom",
            Action::Snapshot => "snapshot",
            Action::Unknown => "unknown",
        }
    }
}

/// One event that the allocator recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The address of the block, segment or range; the device's free bytes if the action is [`Action::Oom`].
    pub addr: u64,
    /// Requested bytes of a block (unrounded), rounded bytes of a failed request, bytes of a segment or range.
    pub size: u64,
    /// Microseconds since 1970; 0 in files that have no times.
    pub time_us: u64,
    /// The stream, as an index into [`Snapshot::streams`].
    pub stream: u32,
    /// What happened.
    pub action: Action,
}

/// A segment that existed when the snapshot was taken. Of an expandable segment, each contiguous mapped part is one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The device's number.
    pub device: u32,
    /// Its first byte.
    pub address: u64,
    /// Its bytes.
    pub total_size: u64,
    /// The raw handle of its stream.
    pub stream: u64,
    /// Whether it belongs to the large pool.
    pub large: bool,
    /// The id of its private pool; (0, 0) is the default pool.
    pub pool: (u64, u64),
    /// Whether it is part of an expandable segment.
    pub expandable: bool,
    /// Its blocks, by address. They tile it.
    pub blocks: Vec<SnapshotBlock>,
}

/// A block of a [`Segment`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotBlock {
    /// Its first byte.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// The bytes that its user asked for. PyTorch does not clear it when the block is freed.
    pub requested_size: u64,
    /// What it is used for.
    pub state: BlockState,
}

/// The state of a [`SnapshotBlock`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockState {
    /// Handed out.
    Allocated,
    /// Freed by its user, waiting for other streams.
    PendingFree,
    /// Free.
    Inactive,
}

/// The allocator's settings as far as the file has them. Old files have none.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct AllocatorSettings {
    /// The last settings string, as the user wrote it; empty if there was none.
    pub conf: String,
    /// The largest block that is split, in bytes; -1 is no limit.
    pub max_split_size: Option<i64>,
    /// The share of the memory limit above which unused segments are collected; 0 is off.
    pub garbage_collection_threshold: Option<f64>,
    /// Whether segments grow by mapping.
    pub expandable_segments: Option<bool>,
}
