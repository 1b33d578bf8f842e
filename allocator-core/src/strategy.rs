//! The one trait every allocator implements.
//!
//! # Rules
//!
//! The conformance suite ([`crate::conformance!`]) checks each of them under the name given here.
//!
//! - `zero_size`: a request for 0 bytes is served.
//! - `alignment`: addresses are multiples of [`crate::DeviceInfo::alignment`].
//! - `no_overlap`: live blocks never overlap, and lie in memory that the strategy holds.
//! - `determinism`: decisions depend on calls and on the device's answers only: no clock, no unseeded randomness, no
//!   hash-map order.
//! - `error_recovery`: an error leaves the strategy usable, and leaks nothing.
//! - `trim_to_empty`: with nothing live, `trim(0)` leaves the device empty.
//! - `stream_order`: memory used on several streams reaches another request only after fences that cover each of
//!   those streams; memory freed on one stream may reach another stream only after such a fence too.
//! - `foreign_block`: a block that is not live here is refused and given back.
//! - `inspect`: the reported spans cover live blocks exactly and tile their segments.
//! - `limit`: where there is no memory the answer is [`AllocError::OutOfMemory`], a limit set by [`Control::Limit`]
//!   holds, and later requests that fit are served.
//! - `pools`: blocks of one pool never share a segment with those of another.
//! - `device_calls`: what the device is called with makes sense to it: no address twice, no unknown handle.
//! - `no_panic`: no sequence of calls panics.

use crate::device::{Device, DeviceInfo};
use crate::error::{AllocError, ConfigError, ControlError, FreeError};
use crate::request::{Block, PoolId, Request, StreamId};
use serde::{Serialize, de::DeserializeOwned};

/// A memory allocator for one device.
///
/// Methods take `&mut self`: who locks is the caller's choice ([`crate::adapt::Locked`]), and so is finding a block
/// by its address ([`crate::adapt::AddressIndex`]).
pub trait Strategy: Send {
    /// Serves a request.
    fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError>;

    /// Takes a block back. If it was used on other streams ([`Strategy::record_stream`]), its memory is reused only
    /// when those have passed the points they had reached at this call.
    fn free(&mut self, dev: &mut dyn Device, block: Block) -> Result<(), FreeError>;

    /// Tells that `stream`, too, uses the block. No effect if it is the block's own stream.
    fn record_stream(&mut self, dev: &mut dyn Device, block: &Block, stream: StreamId) -> Result<(), AllocError>;

    /// Gives cached memory back to the device until at most `keep` bytes are reserved, as far as it can be given
    /// back; returns the bytes released. `empty_cache` is `trim(0)`.
    fn trim(&mut self, dev: &mut dyn Device, keep: u64) -> Result<u64, AllocError>;

    /// Pools, the memory limit and settings at run time.
    fn control(&mut self, dev: &mut dyn Device, what: Control<'_>) -> Result<(), ControlError> {
        let _ = (dev, what);
        Err(ControlError::Unsupported)
    }

    /// Visits every span of every segment, by segment and address. Slow; for pictures and checks.
    fn inspect(&self, visit: &mut dyn FnMut(Span));

    /// Visits the strategy's own counters under the names of the framework it follows. They are shown and compared,
    /// never used as measurements.
    fn counters(&self, visit: &mut dyn FnMut(&str, i64)) {
        let _ = visit;
    }
}

/// What [`Strategy::control`] can be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control<'a> {
    /// A private pool comes into being (or gets one more user).
    PoolCreate(PoolId),
    /// A context of the pool opens (a graph capture, `use_mem_pool`) and stays open until [`Control::PoolEnd`]. A pool
    /// that does not exist comes into being; either way it has one more user. Contexts have side effects beyond their
    /// own requests: while any is open, frees that would have to wait for other streams are put off.
    PoolBegin(PoolId),
    /// Closes the pool's context.
    PoolEnd(PoolId),
    /// A user of the pool is gone. Without users its cached memory may go back to the device.
    PoolRelease(PoolId),
    /// `empty_cache` of one pool.
    PoolEmpty(PoolId),
    /// Blocks of the pool are never split.
    PoolNoSplit(PoolId),
    /// The pool's free memory may serve the default pool when the device has none left.
    PoolUseOnOom(PoolId),
    /// At most this many bytes may be reserved (`set_per_process_memory_fraction`); `None` lifts the limit.
    Limit(Option<u64>),
    /// Settings as the framework writes them (`max_split_size_mb:128`).
    Settings(&'a str),
}

/// The state of a [`Span`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpanState {
    /// Handed out.
    Live,
    /// Freed by its owner, waiting for other streams.
    Pending,
    /// Reserved and free.
    Cached,
    /// Addresses without memory.
    Unmapped,
}

impl SpanState {
    /// All states.
    pub const ALL: [SpanState; 4] = [SpanState::Live, SpanState::Pending, SpanState::Cached, SpanState::Unmapped];

    /// The word in files and figures.
    pub const fn name(self) -> &'static str {
        match self {
            SpanState::Live => "live",
            SpanState::Pending => "pending",
            SpanState::Cached => "cached",
            SpanState::Unmapped => "unmapped",
        }
    }
}

/// A contiguous piece of a segment in one state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Address of the segment's first byte.
    pub segment: u64,
    /// Address of the span's first byte.
    pub ptr: u64,
    /// Bytes.
    pub size: u64,
    /// What it is.
    pub state: SpanState,
    /// The stream it belongs to.
    pub stream: StreamId,
    /// The pool it belongs to.
    pub pool: PoolId,
}

/// How the harness makes a strategy from a name and parameters.
pub trait Configure: Strategy + Sized {
    /// The name on the command line and in results.
    const NAME: &'static str;
    /// One line for lists.
    const ABOUT: &'static str;
    /// Whether it needs the stream-ordered calls ([`crate::DeviceInfo::stream_ordered`]); the harness leaves it out where
    /// a device has none.
    const STREAM_ORDERED: bool = false;
    /// Every parameter with its default. Field names are the parameters' names.
    type Params: Default + Serialize + DeserializeOwned;

    /// A fresh strategy for a device, or the parameter that makes no sense.
    fn new(params: Self::Params, device: &DeviceInfo) -> Result<Self, ConfigError>;
}
