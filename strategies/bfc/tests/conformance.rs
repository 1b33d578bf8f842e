//! The rules every strategy keeps, with TensorFlow's parameters, with JAX's, and with small regions that are never
//! collected.

use allocator_core::Configure;
use strategy_bfc::{Bfc, Params};

allocator_core::conformance!(|info| Bfc::new(Default::default(), info).unwrap());

mod preallocated {
    use super::*;
    allocator_core::conformance!(|info| {
        Bfc::new(Params { memory_fraction: 0.75, preallocate: true, ..Params::default() }, info).unwrap()
    });
}

mod small_regions {
    use super::*;
    allocator_core::conformance!(|info| {
        let params =
            Params { initial_region: 64 << 10, garbage_collection: false, max_slack: 512, ..Params::default() };
        Bfc::new(params, info).unwrap()
    });
}
