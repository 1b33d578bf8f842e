//! The rules that decide where a block goes, as compile-time switches.
//!
//! PyTorch 2.11's rules are [`Torch211`]. Others exist to show that a rule matters: a check that compares decisions
//! with a recording must fail when one of them is changed.

/// The decisions of the allocator that can be exchanged.
pub trait Rules: Clone + Send + 'static {
    /// Rounded sizes up to this many bytes go to the small pool.
    const SMALL_LIMIT: u64 = 1 << 20;
    /// A large block is split if the remainder is larger than this many bytes.
    const LARGE_REMAINDER: u64 = 1 << 20;
    /// Of free blocks of one size the one at the lowest address is taken (otherwise the highest).
    const LOWEST_ADDRESS: bool = true;
    /// A freed block merges with the free block above it.
    const MERGE_UPWARDS: bool = true;
    /// The device is asked for a new segment before cached segments are given back (otherwise after).
    const DEVICE_BEFORE_FLUSH: bool = true;
}

/// PyTorch 2.11.
#[derive(Clone, Copy, Debug)]
pub struct Torch211;

impl Rules for Torch211 {}
