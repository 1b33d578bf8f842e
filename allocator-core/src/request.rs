//! What is asked of a strategy and what it hands out.
//!
//! Everything here is a plain number: addresses are integers, streams and pools are dense ids, and a block is a
//! handle that only the strategy that made it can resolve. No strategy dereferences device memory, so none needs
//! `unsafe`.

use std::fmt;
use std::num::NonZeroU64;

/// A CUDA stream, or a *ticket*: a stand-in for work of unknown kind whose end a recording tells us.
///
/// Real streams are numbered densely from 0 (the default stream) in the order of their raw handles, because the
/// order in which frameworks visit streams follows those handles. A strategy may index a table by
/// [`StreamId::index`] of a stream that it was given in a [`Request`]; tickets never appear there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct StreamId(pub u32);

impl StreamId {
    /// The default stream.
    pub const DEFAULT: StreamId = StreamId(0);
    const TICKET: u32 = 1 << 31;

    /// The virtual side stream with ticket number `n` (below 2³¹).
    pub const fn ticket(n: u32) -> StreamId {
        StreamId(n | Self::TICKET)
    }

    /// The ticket's number, or `None` for a real stream.
    pub const fn as_ticket(self) -> Option<u32> {
        if self.0 & Self::TICKET != 0 { Some(self.0 & !Self::TICKET) } else { None }
    }

    /// The stream's number as a table index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_ticket() {
            Some(n) => write!(f, "!{n}"),
            None => write!(f, "{}", self.0),
        }
    }
}

/// A private memory pool (CUDA graphs, user pools). 0 is the default pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct PoolId(pub u32);

impl PoolId {
    /// The pool of every allocation outside graph captures and user pools.
    pub const DEFAULT: PoolId = PoolId(0);
}

/// One allocation request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Request {
    /// Bytes asked for, as the caller wrote them (0 is allowed).
    pub size: u64,
    /// The stream that will use the memory first.
    pub stream: StreamId,
    /// The pool to serve it from.
    pub pool: PoolId,
}

impl Request {
    /// `size` bytes for `stream`, from the default pool.
    pub const fn new(size: u64, stream: StreamId) -> Request {
        Request { size, stream, pool: PoolId::DEFAULT }
    }

    /// The same request, served from `pool`.
    pub const fn in_pool(self, pool: PoolId) -> Request {
        Request { pool, ..self }
    }
}

/// Memory handed out: an address and the strategy's own key for it.
///
/// A block cannot be cloned and freeing consumes it, so a double free does not compile. `slot` and `generation`
/// mean something only to the strategy that made the block; the generation lets it recognise a block that is not
/// its own or not live any more.
#[derive(PartialEq, Eq, Debug)]
pub struct Block {
    ptr: NonZeroU64,
    slot: u32,
    generation: u32,
}

impl Block {
    /// The address of a block of zero bytes: aligned, and never a real device address.
    pub const EMPTY_PTR: u64 = 1 << 62;

    /// A block at `ptr` that its strategy finds again by `slot` and `generation`. `None` if `ptr` is 0.
    #[inline]
    pub const fn new(ptr: u64, slot: u32, generation: u32) -> Option<Block> {
        match NonZeroU64::new(ptr) {
            Some(ptr) => Some(Block { ptr, slot, generation }),
            None => None,
        }
    }

    /// The block that a request for zero bytes gets. It owns no memory; [`Block::is_empty`] recognises it.
    pub const fn empty() -> Block {
        Block { ptr: NonZeroU64::new(Self::EMPTY_PTR).unwrap(), slot: u32::MAX, generation: 0 }
    }

    /// Whether this is a block of zero bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.ptr.get() == Self::EMPTY_PTR
    }

    /// The device address of the first byte.
    #[inline]
    pub const fn ptr(&self) -> u64 {
        self.ptr.get()
    }

    /// The strategy's key.
    #[inline]
    pub const fn slot(&self) -> u32 {
        self.slot
    }

    /// How often the key had been handed out before.
    #[inline]
    pub const fn generation(&self) -> u32 {
        self.generation
    }
}
