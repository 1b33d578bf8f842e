//! The rules every strategy keeps: with the driver's parameters; as PyTorch sets them, with nothing moved between streams
//! but by the host's waiting; and with small steps and a limit.

use allocator_core::Configure;
use strategy_async_pool::{AsyncPool, Params};

allocator_core::conformance!(|info| AsyncPool::new(Default::default(), info).unwrap());

mod keeps_all {
    use super::*;
    allocator_core::conformance!(|info| {
        AsyncPool::new(Params { release_threshold: u64::MAX, ..Params::default() }, info).unwrap()
    });
}

mod no_reuse_rules {
    use super::*;
    allocator_core::conformance!(|info| {
        let params = Params {
            follow_event_dependencies: false,
            opportunistic: false,
            internal_dependencies: false,
            ..Params::default()
        };
        AsyncPool::new(params, info).unwrap()
    });
}

mod waits_without_asking {
    use super::*;
    allocator_core::conformance!(|info| {
        let params = Params { opportunistic: false, chunk: 2 << 20, release_when_idle: true, ..Params::default() };
        AsyncPool::new(params, info).unwrap()
    });
}

mod small_and_limited {
    use super::*;
    allocator_core::conformance!(|info| {
        let params = Params { chunk: 8 << 20, max_size: 64 << 20, ..Params::default() };
        AsyncPool::new(params, info).unwrap()
    });
}
