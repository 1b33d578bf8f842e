//! RMM's arena: one block of the device, cut into superblocks that are lent to the arenas of streams.
//!
//! ```text
//! block                   [                                                            ]   half of the device
//! 300 KiB for stream 0    [ a |  0  ][                                                 ]   a superblock of 1 MiB is lent
//! 200 KiB for stream 1    [ a |  0  ][ b |  1  ][                                      ]
//! 5 MiB for stream 0      [ a |  0  ][ b |  1  ][ c              ][                    ]   from the global arena itself
//! 100 KiB for stream 0    [ a | d |0][ b |  1  ][ c              ][                    ]   first fit by address
//! ```
//!
//! `heap` has superblocks and pieces, `tree` finds the first fit, `strategy` has the rest.

mod classes;
mod heap;
mod params;
mod piece;
mod strategy;
mod tree;

pub use params::Params;
pub use strategy::Arena;
