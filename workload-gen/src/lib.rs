//! Allocation traces: what a workload asks of a GPU memory allocator, without what the allocator made of it.
//!
//! A [`Trace`] comes from a file in the project's format ([`format`](mod@format)), from a snapshot that PyTorch wrote ([`import`],
//! which reads it with [`snapshot`]), or from the recordings that are part of the crate ([`embedded`]). [`check()`] says
//! whether a trace that was made otherwise makes sense, [`stats`] what it is like, and [`likeness`] how like another. What
//! generated jobs take from chance, they take from [`lengths`].

pub mod check;
mod embedded;
pub mod format;
pub mod import;
mod input;
pub mod jobs;
pub mod lengths;
pub mod likeness;
pub mod models;
pub mod ops;
mod plain;
pub mod snapshot;
pub mod spec;
mod stats;
pub mod tensor;
mod trace;

pub use check::check;
pub use embedded::{Embedded, embedded};
pub use input::{Content, Input};
pub use plain::{plain, plain_path};
pub use stats::{Percentiles, PoolStats, Regularity, RoleStats, SizeClass, StreamStats, TraceStats, stats};
pub use trace::{Event, Header, PoolOp, Trace};
