//! PyTorch 2.11's CUDA caching allocator, decision for decision.
//!
//! Memory comes from the device in segments, is cut into blocks, and stays cached when freed:
//!
//! ```text
//! small pool, <= 1 MiB       [512|512|...free...........]                    2 MiB segments
//! large pool, 1 to 10 MiB    [ 3 MiB | 6 MiB |   ...free...   ]              20 MiB segments
//! large pool, >= 10 MiB      [ 52 MiB                                     ]  a segment of its own
//! ```
//!
//! A request takes the smallest cached block that is large enough, on its own stream, the one at the lowest address
//! among equals; the block is split if enough is left over. A freed block merges with its free neighbours. When the
//! cache has nothing, the device is asked, then cached segments are given back, and then it is out of memory.
//! [`Settings`] lists what changes these rules, `README.md` says when they win and lose.
//!
//! The data structures are made for speed: see `slab.rs` and `index.rs`.

mod address;
mod arena;
mod blocks;
mod engine;
mod events;
mod expandable;
mod grow;
mod index;
mod params;
mod pools;
mod rules;
mod settings;
mod size;
mod slab;
mod stats;
mod strategy;
mod summary;

pub use engine::Caching;
pub use params::Params;
pub use rules::{Rules, Torch211};
pub use settings::Settings;
pub use stats::Stats;
