//! The rules every strategy keeps: the pool as it comes, with a first region, and with a maximum.

use allocator_core::Configure;
use strategy_pool::{Params, Pool};

allocator_core::conformance!(|info| Pool::new(Params::default(), info).unwrap());

mod initial {
    use super::*;
    allocator_core::conformance!(|info| {
        Pool::new(Params { initial_pool_size: 48 << 20, maximum_pool_size: None }, info).unwrap()
    });
}

mod maximum {
    use super::*;
    allocator_core::conformance!(|info| {
        let params = Params { initial_pool_size: 1 << 20, maximum_pool_size: Some(40 << 20) };
        Pool::new(params, info).unwrap()
    });
}
