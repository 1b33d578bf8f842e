//! The rules every strategy keeps.

use allocator_core::Configure;
use strategy_buckets::{Buckets, Params};

allocator_core::conformance!(|info| Buckets::new(Params::default(), info).unwrap());

mod fine_and_returned {
    use super::*;
    allocator_core::conformance!(|info| {
        let params = Params { per_doubling: 8, keep_empty: 0, ..Params::default() };
        Buckets::new(params, info).unwrap()
    });
}

mod coarse_and_large {
    use super::*;
    allocator_core::conformance!(|info| {
        let params = Params {
            per_doubling: 1,
            slab: 32 << 20,
            cutoff: 1 << 20,
            tail: 1 << 20,
            keep_empty: 64 << 20,
            ..Params::default()
        };
        Buckets::new(params, info).unwrap()
    });
}
