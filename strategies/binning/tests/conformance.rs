//! The rules every strategy keeps: the bins as they come, and small chunks under a maximum.

use allocator_core::Configure;
use strategy_binning::{Binning, Params};

allocator_core::conformance!(|info| Binning::new(Params::default(), info).unwrap());

mod small_chunks {
    use super::*;
    allocator_core::conformance!(|info| {
        let params = Params {
            min_size_exponent: 12,
            max_size_exponent: 20,
            blocks_to_preallocate: 4,
            initial_pool_size: 8 << 20,
            maximum_pool_size: None,
        };
        Binning::new(params, info).unwrap()
    });
}

mod maximum {
    use super::*;
    allocator_core::conformance!(|info| {
        let params = Params {
            min_size_exponent: 10,
            max_size_exponent: 22,
            blocks_to_preallocate: 3,
            maximum_pool_size: Some(40 << 20),
            ..Params::default()
        };
        Binning::new(params, info).unwrap()
    });
}
