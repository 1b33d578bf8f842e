//! A workload as the replay sees it: a list of events over dense slots.
//!
//! A slot stands for one live allocation; slots are numbered densely and reused lowest first, so that a replay needs
//! an array and no map.

use allocator_core::{PoolId, StreamId};

/// One thing that the workload does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Allocate `size` bytes into an empty slot.
    Alloc {
        /// Where the block is kept.
        slot: u32,
        /// Bytes asked for.
        size: u64,
        /// The stream that uses it first.
        stream: StreamId,
        /// The pool it comes from.
        pool: PoolId,
    },
    /// The block in `slot` is also used on `stream`.
    Use {
        /// The block.
        slot: u32,
        /// The other stream.
        stream: StreamId,
    },
    /// Free the block in `slot`. With a ticket, the free waits for work of unknown kind until [`Event::Done`].
    Free {
        /// The block.
        slot: u32,
        /// The ticket it waits for.
        ticket: Option<u32>,
    },
    /// The work behind a ticket is seen to be done.
    Done {
        /// The ticket.
        ticket: u32,
    },
    /// Work is queued on a stream.
    Work {
        /// The stream.
        stream: StreamId,
        /// Its length in nanoseconds.
        ns: u64,
    },
    /// `stream` waits for all that `on` has queued.
    Wait {
        /// The stream that waits.
        stream: StreamId,
        /// The stream that is waited for.
        on: StreamId,
    },
    /// The host waits for a stream, or for the whole device.
    Sync {
        /// The stream; `None` is the device.
        stream: Option<StreamId>,
    },
    /// `empty_cache`, of everything or of one pool.
    Empty {
        /// The pool; `None` is everything.
        pool: Option<PoolId>,
    },
    /// A call on a private pool.
    Pool {
        /// The call.
        op: PoolOp,
        /// The pool.
        pool: PoolId,
    },
    /// The memory limit changes; `None` lifts it.
    Limit {
        /// Bytes that may be reserved.
        bytes: Option<u64>,
    },
    /// Allocator settings change.
    Settings {
        /// Index into [`Trace::texts`].
        text: u32,
    },
    /// The host does something else.
    Host {
        /// Nanoseconds.
        ns: u64,
    },
    /// A marker (iteration, phase, layer).
    Mark {
        /// Index into [`Trace::texts`].
        text: u32,
    },
}

/// What a trace can ask of a private pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolOp {
    /// It comes into being.
    Create,
    /// A capture or context opens.
    Begin,
    /// It closes.
    End,
    /// A user is gone.
    Release,
    /// Its blocks are never split.
    NoSplit,
    /// It serves the default pool when the device has no memory left.
    UseOnOom,
}

/// What is known of a workload beside its events.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// Where it comes from: a recording's name, or a generator with its parameters and seed.
    pub source: String,
    /// Slots in use at most, so that a replay can make its table beforehand.
    pub slots: u32,
    /// Tickets in use at most.
    pub tickets: u32,
    /// The raw handle of each stream, by stream number, ascending.
    pub streams: Vec<u64>,
    /// The framework's pair of each private pool, by pool number less one.
    pub pools: Vec<(u64, u64)>,
    /// Total bytes of the device it ran on, if known.
    pub device_bytes: Option<u64>,
    /// The memory limit it ran under, if any.
    pub limit_bytes: Option<u64>,
    /// The allocator settings it ran under, as the framework writes them.
    pub settings: String,
    /// What the importer had to suppose or make up, in words (a start state that was rebuilt, flushes that were
    /// inferred). Empty when nothing.
    pub notes: Vec<String>,
    /// Header lines of other versions and tools, kept as they are: key and value.
    pub extra: Vec<(String, String)>,
}

/// A workload.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Trace {
    /// What is known of it.
    pub header: Header,
    /// What it does, in order.
    pub events: Vec<Event>,
    /// Texts that events refer to.
    pub texts: Vec<String>,
    /// What each allocation is for: an index into [`Trace::label_texts`] for each [`Event::Alloc`], in order. Empty if
    /// that is not known, as in recordings. They stand beside the events and not in them, so that a replay, which has
    /// no use for them, does not carry them through its caches.
    pub labels: Vec<u32>,
    /// The labels, each a role and a name: `activation h.3.mlp.gelu`.
    pub label_texts: Vec<String>,
}
