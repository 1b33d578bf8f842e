//! The operations that test runs are made of, and how they are written down.

use crate::device::CallKind;
use crate::request::StreamId;
use std::fmt;

/// One step of a run. Steps about a block that is not live (its allocation failed, or was left out by the shrinker)
/// do nothing, so every part of a run is a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Op {
    /// Allocates block `id`, whose stream starts to use it.
    Allocate { id: u32, size: u64, stream: u32, pool: u32 },
    /// A further stream uses the block.
    Use { id: u32, stream: u32 },
    /// Frees the block, after a use by a ticket if there is one.
    Free { id: u32, ticket: Option<u32> },
    /// Frees a block that was freed before.
    FreeAgain { id: u32 },
    /// More work on a stream.
    Work { stream: u32, us: u32 },
    /// The host does something else.
    Host { us: u32 },
    /// A ticket's work is done.
    Complete { ticket: u32 },
    /// Gives cached memory back.
    Trim { keep: u64 },
    /// The `nth` device call of a kind from here on fails: for want of memory, or (`broken`) with a driver error.
    Fail { kind: CallKind, nth: u32, broken: bool },
    /// The memory limit changes.
    Limit { bytes: Option<u64> },
    /// A pool's context is opened; the pool comes into being.
    PoolBegin { pool: u32 },
    /// The pool's context is closed.
    PoolEnd { pool: u32 },
    /// The pool's only user is gone.
    PoolRelease { pool: u32 },
}

impl Op {
    /// The same about the block that `new` says.
    pub(super) fn with_block(self, mut new: impl FnMut(u32) -> u32) -> Op {
        match self {
            Op::Allocate { id, size, stream, pool } => Op::Allocate { id: new(id), size, stream, pool },
            Op::Use { id, stream } => Op::Use { id: new(id), stream },
            Op::Free { id, ticket } => Op::Free { id: new(id), ticket },
            Op::FreeAgain { id } => Op::FreeAgain { id: new(id) },
            other => other,
        }
    }

    /// The same on the stream that `new` says.
    pub(super) fn with_stream(self, mut new: impl FnMut(u32) -> u32) -> Op {
        match self {
            Op::Allocate { id, size, stream, pool } => Op::Allocate { id, size, stream: new(stream), pool },
            Op::Use { id, stream } => Op::Use { id, stream: new(stream) },
            Op::Work { stream, us } => Op::Work { stream: new(stream), us },
            other => other,
        }
    }

    /// The same with the ticket that `new` says.
    pub(super) fn with_ticket(self, mut new: impl FnMut(u32) -> u32) -> Op {
        match self {
            Op::Free { id, ticket } => Op::Free { id, ticket: ticket.map(new) },
            Op::Complete { ticket } => Op::Complete { ticket: new(ticket) },
            other => other,
        }
    }
}

/// Writes a block's number as a name: `a` to `z`, then `b26` and so on.
#[derive(Clone, Copy)]
pub(super) struct Name(u32);

/// The name of block `id`.
pub(super) const fn name(id: u32) -> Name {
    Name(id)
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            u32::MAX => f.write_str("the last block"),
            id @ 0..26 => write!(f, "{}", (b'a' + id as u8) as char),
            id => write!(f, "b{id}"),
        }
    }
}

/// Writes a stream or ticket with the word for it.
#[derive(Clone, Copy)]
pub(super) struct Lane(pub StreamId);

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_ticket() {
            Some(ticket) => write!(f, "ticket {ticket}"),
            None => write!(f, "stream {}", self.0),
        }
    }
}

/// Writes a size in the largest unit that divides it.
#[derive(Clone, Copy)]
pub(super) struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("0 bytes"),
            n if n.is_multiple_of(1 << 30) => write!(f, "{} GiB", n >> 30),
            n if n.is_multiple_of(1 << 20) => write!(f, "{} MiB", n >> 20),
            n if n.is_multiple_of(1 << 10) => write!(f, "{} KiB", n >> 10),
            n => write!(f, "{n} bytes"),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Op::Allocate { id, size, stream, pool } => {
                write!(f, "{} = allocate {} on stream {stream}", name(id), Bytes(size))?;
                if pool != 0 { write!(f, " in pool {pool}") } else { Ok(()) }
            }
            Op::Use { id, stream } => write!(f, "use {} on stream {stream}", name(id)),
            Op::Free { id, ticket: None } => write!(f, "free {}", name(id)),
            Op::Free { id, ticket: Some(ticket) } => write!(f, "free {}, in use until ticket {ticket}", name(id)),
            Op::FreeAgain { id } => write!(f, "free {} again", name(id)),
            Op::Work { stream, us } => write!(f, "queue {us} us of work on stream {stream}"),
            Op::Host { us } => write!(f, "let {us} us pass"),
            Op::Complete { ticket } => write!(f, "complete ticket {ticket}"),
            Op::Trim { keep } => write!(f, "trim to {}", Bytes(keep)),
            Op::Fail { kind, nth: 1, broken } => write!(f, "the next {kind} will fail{}", because(broken)),
            Op::Fail { kind, nth, broken } => write!(f, "{kind} number {nth} from here will fail{}", because(broken)),
            Op::Limit { bytes: Some(bytes) } => write!(f, "limit to {}", Bytes(bytes)),
            Op::Limit { bytes: None } => f.write_str("lift the limit"),
            Op::PoolBegin { pool } => write!(f, "begin pool {pool}"),
            Op::PoolEnd { pool } => write!(f, "end pool {pool}"),
            Op::PoolRelease { pool } => write!(f, "release pool {pool}"),
        }
    }
}

fn because(broken: bool) -> &'static str {
    if broken { " with a driver error" } else { " for want of memory" }
}

/// The last operations, a numbered line each.
pub(super) fn listing(ops: &[Op]) -> String {
    const SHOWN: usize = 100;
    let hidden = ops.len().saturating_sub(SHOWN);
    let first = if hidden > 0 { format!("\n   …  {hidden} operations before these") } else { String::new() };
    let lines = ops.iter().enumerate().skip(hidden).map(|(at, op)| format!("\n{:>4}  {op}", at + 1));
    std::iter::once(first).chain(lines).collect()
}
