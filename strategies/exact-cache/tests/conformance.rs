//! The rules every strategy keeps, with both roundings.

use allocator_core::Configure;
use strategy_exact_cache::{ExactCache, Params, Rounding};

allocator_core::conformance!(|info| ExactCache::new(Params::default(), info).unwrap());

mod power {
    use super::*;
    allocator_core::conformance!(|info| {
        let params = Params { rounding: Rounding::Power, cutoff: 1 << 20, ..Params::default() };
        ExactCache::new(params, info).unwrap()
    });
}

mod without_reserve {
    use super::*;
    allocator_core::conformance!(|info| {
        let params = Params { page: 2 << 20, reserve_percent: 0, ..Params::default() };
        ExactCache::new(params, info).unwrap()
    });
}
