//! Wrappers around any strategy, for needs that not every caller has.

mod address_index;
mod address_table;
mod limit;
mod locked;
mod stream_safe;
#[cfg(test)]
mod tests;

pub use address_index::AddressIndex;
pub use limit::Limit;
pub use locked::Locked;
pub use stream_safe::{Place, SingleStream, StreamSafe};
