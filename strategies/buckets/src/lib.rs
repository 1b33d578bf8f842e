//! Size-class slabs: requests are rounded to one of few sizes, and each piece of device memory is cut into blocks of one
//! size.
//!
//! ```text
//! slab of 2 MiB    [ 512 KiB │ 512 KiB │ 512 KiB │ … ]      blocks of one class, linked when free
//! slab of 2 MiB    [ 5 │ 5 │ 5 │ 5 │ … never used …  ]      empty: it may be cut anew for any class, or goes back
//! one block        [ 20 MiB                          ]      above a quarter of a slab: memory of its own
//! ```
//!
//! `classes` has the sizes, `slabs` the blocks, `strategy` the rest.

mod classes;
mod params;
mod slabs;
mod strategy;

pub use params::Params;
pub use strategy::Buckets;
