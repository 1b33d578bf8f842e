//! The rules every strategy keeps: without a limit, and under two that random programs meet.

use allocator_core::Configure;
use strategy_cupy::{Cupy, Params};

allocator_core::conformance!(|info| Cupy::new(Default::default(), info).unwrap());

mod small_limit {
    use super::*;
    allocator_core::conformance!(|info| Cupy::new(Params { limit: 48 << 20, ..Params::default() }, info).unwrap());
}

mod half_the_device {
    use super::*;
    allocator_core::conformance!(|info| Cupy::new(Params { limit_percent: 50.0, ..Params::default() }, info).unwrap());
}
