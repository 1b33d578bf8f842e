//! Allocation traces: the format, importers, statistics and (later) seeded generators.

mod trace;

pub use trace::{Event, Header, PoolOp, Trace};
