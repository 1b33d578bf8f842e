//! RMM's binning: blocks of equal sizes for requests up to a limit, RMM's pool for the rest and for the bins.
//!
//! ```text
//! request ≤ 256 KiB ─▶ queue of 256 KiB blocks ─┐ a chunk of 128 blocks when it is empty
//!         ≤ 512 KiB ─▶ queue of 512 KiB blocks ─┤
//!         …                                     ├─▶ pool ─▶ device
//!         ≤   4 MiB ─▶ queue of 4 MiB blocks ───┤
//!         larger ───────────────────────────────┘
//! ```
//!
//! `bins` has the chunks and queues, `strategy` the rest.

mod bins;
mod params;
mod strategy;

pub use params::Params;
pub use strategy::Binning;
