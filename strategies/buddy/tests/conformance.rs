//! The rules every strategy keeps, under default parameters and under those that change the code's path.

use allocator_core::{Configure, DeviceInfo};
use strategy_buddy::{Buddy, Merge, Params};

fn with(params: Params) -> impl Fn(&DeviceInfo) -> Buddy {
    move |info| Buddy::new(params.clone(), info).unwrap()
}

mod default {
    use super::*;
    allocator_core::conformance!(with(Params::default()));
}

mod lazy {
    use super::*;
    allocator_core::conformance!(with(Params { merge: Merge::Lazy, ..Params::default() }));
}

/// Many arenas, and segments for most requests.
mod small {
    use super::*;
    allocator_core::conformance!(with(Params { unit: 4096, arena: 2 << 20, merge: Merge::Eager }));
}

/// The smallest request takes a whole arena.
mod single {
    use super::*;
    allocator_core::conformance!(with(Params { unit: 4 << 20, arena: 4 << 20, merge: Merge::Lazy }));
}
