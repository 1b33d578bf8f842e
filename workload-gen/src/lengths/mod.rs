//! How long sequences are, how they come in batches and when requests arrive: all that a job takes from chance.
//!
//! [`Lengths`] is a distribution of lengths in tokens, [`Shaping`] what a data loader makes of them, [`Batches`] the shapes
//! that a training step sees in the end; [`Pairs`] and [`Arrivals`] are the requests of a server. Each is written as a short
//! text (`lognormal(6.2,0.7)`, `bucket(64)`, `poisson(0.5)`) that its `Display` gives back, and each draws from an [`Rng`]
//! alone.

mod arrivals;
mod batches;
mod call;
mod distribution;
mod parse;
pub mod rng;
mod sampler;
mod shaping;
pub mod tables;
#[cfg(test)]
mod tests;
mod zipf;

pub use arrivals::{Arrivals, Counts};
pub use batches::{BatchShape, Batches, WINDOW};
pub use call::Form;
pub use distribution::{LONGEST, Lengths};
pub use rng::Rng;
pub use sampler::{Pair, Pairs, Sampler};
pub use shaping::{Order, Shaping};
