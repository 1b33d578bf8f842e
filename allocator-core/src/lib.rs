//! The vocabulary of GPU memory allocation.
//!
//! A [`Strategy`] decides where tensors go; a [`Device`] gives it memory. Strategies are plain state machines: the
//! device is an argument of each call, addresses are integers, and all metadata is out of band. That makes a
//! strategy scriptable, clonable and testable, and lets the same object run on a simulated device, on a recording
//! and on a real card.

mod device;
mod error;
mod request;
mod strategy;

pub use device::{CallKind, Device, DeviceInfo, Fence, Handle, Machine, MemoryInfo, Sync, Usage};
pub use error::{AllocError, ConfigError, ControlError, DeviceError, FreeError, FreeFailure};
pub use request::{Block, PoolId, Request, StreamId};
pub use strategy::{Configure, Control, Span, SpanState, Strategy};
