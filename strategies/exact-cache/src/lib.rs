//! Free lists by exact rounded size, never split, never merged: MXNet's pool.
//!
//! ```text
//! allocate 5 KiB ── rounded to 8 KiB ── list empty ── malloc ──▶ [ a      ]
//! free a         ── nothing goes back ─────────────────────────▶ 8 KiB: a
//! allocate 7 KiB ── rounded to 8 KiB ── list ──────────────────▶ [ a      ]    no driver call
//! allocate 2 KiB ── rounded to 4 KiB ── list empty ── malloc ──▶ [ b  ]        never a part of a larger one
//! ```
//!
//! MXNet's pool knows no streams: [`StreamSafe`] gives each one of its own. `rounding` has the sizes, `heads` the lists,
//! `strategy` the rest.

mod heads;
mod params;
mod rounding;
mod strategy;

pub use params::{Params, Rounding};
pub use strategy::Lists;

use allocator_core::adapt::StreamSafe;

/// The strategy.
pub type ExactCache = StreamSafe<Lists>;
