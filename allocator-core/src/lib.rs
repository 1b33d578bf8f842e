//! The vocabulary of GPU memory allocation.
//!
//! A [`Strategy`] decides where tensors go; a [`Device`] gives it memory. Strategies are plain state machines: the
//! device is an argument of each call, addresses are integers, and all metadata is out of band. That makes a
//! strategy scriptable, clonable and testable, and lets the same object run on a simulated device, on a recording
//! and on a real card.

pub mod adapt;
pub mod conformance;
#[cfg(feature = "cuda")]
pub mod cuda;
mod device;
mod error;
mod faults;
mod holdings;
mod page_table;
mod rank;
mod request;
mod script;
mod sim;
mod strategy;
mod stream_numbers;
mod stream_uses;
#[cfg(test)]
mod toy;
mod virtual_range;

pub use device::{AsyncSettings, CallKind, Device, DeviceInfo, Fence, Handle, Machine, MemoryInfo, Sync, Usage};
pub use error::{AllocError, ConfigError, ControlError, DeviceError, FreeError, FreeFailure};
pub use faults::FaultDevice;
pub use rank::rank;
pub use request::{Block, PoolId, Request, StreamId};
pub use script::{Answer, Call, LogDevice, Mismatch, ScriptDevice, Step};
pub use sim::{Cost, Measured, Packing, Profile, Residual, SimDevice};
pub use strategy::{Configure, Control, Span, SpanState, Strategy};
pub use stream_numbers::StreamNumbers;
pub use stream_uses::StreamUses;
pub use virtual_range::VirtualRange;
