//! Errors, kept to eight bytes where they travel on the hot path.
//!
//! The story of an out-of-memory error (who held what, what would have helped) is told by the harness at the event,
//! not carried in the error: a rich error type costs every successful call.

use crate::device::CallKind;
use crate::request::{Block, PoolId};
use std::fmt;

/// Why a device call failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DeviceError {
    /// The device has no room for the bytes asked for.
    #[error("the device is out of memory")]
    OutOfMemory,
    /// This device cannot do what was asked (see [`crate::DeviceInfo`]).
    #[error("the device does not support {0}")]
    Unsupported(CallKind),
    /// The arguments make no sense to the device: an address it did not hand out, a range that is not mapped.
    #[error("invalid arguments in {0}")]
    Invalid(CallKind),
    /// The driver answered with an error code.
    #[error("{} failed: {}", .call.driver_call(), driver_text(*.code))]
    Driver {
        /// The call that failed.
        call: CallKind,
        /// The driver's `CUresult`.
        code: i32,
    },
}

/// The driver's words for one of its codes.
fn driver_text(code: i32) -> String {
    #[cfg(feature = "cuda")]
    if let Some(text) = crate::cuda::describe(code) {
        return text;
    }
    format!("driver error {code}")
}

/// Why an allocation was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AllocError {
    /// The strategy did all it does to find memory, and there is none.
    #[error("out of memory")]
    OutOfMemory,
    /// No device could ever serve this size.
    #[error("the request is larger than any device")]
    TooLarge,
    /// The request names a pool that the strategy does not know.
    #[error("unknown pool")]
    UnknownPool,
    /// The device's addresses are further apart than the strategy can represent.
    #[error("device addresses are further apart than the strategy can represent")]
    AddressSpace,
    /// The block is not live in this strategy (only [`crate::Strategy::record_stream`] meets this).
    #[error("not a live block of this strategy")]
    NotLive,
    /// A device call failed for another reason than memory.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A free that was refused. The caller still owns the block.
#[derive(PartialEq, Eq, Debug)]
pub struct FreeError {
    /// The block, given back.
    pub block: Block,
    /// Why.
    pub reason: FreeFailure,
}

/// Why a free was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FreeFailure {
    /// The block belongs to another strategy, or is not live any more.
    #[error("not a live block of this strategy")]
    NotLive,
    /// A device call failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "free of {:#x}: {}", self.block.ptr(), self.reason)
    }
}

impl std::error::Error for FreeError {}

/// A parameter value that cannot be used. The text names the parameter, the value and what is allowed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// Why a control call was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ControlError {
    /// The strategy has no such control.
    #[error("not supported by this strategy")]
    Unsupported,
    /// No pool of that number exists.
    #[error("unknown pool {}", .0.0)]
    UnknownPool(PoolId),
    /// The pool is in a state that does not allow this (begun twice, begun after its release, …).
    #[error("pool {}: {why}", .pool.0)]
    PoolState {
        /// The pool.
        pool: PoolId,
        /// What is wrong.
        why: &'static str,
    },
    /// A settings text was refused. Options before the bad one may be in force.
    #[error(transparent)]
    Settings(#[from] ConfigError),
    /// A device call failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
