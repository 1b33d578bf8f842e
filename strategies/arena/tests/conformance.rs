//! The rules every strategy keeps: half of the device, a small arena with size classes, and one as large as the device.

use allocator_core::Configure;
use strategy_arena::{Arena, Params};

allocator_core::conformance!(|info| Arena::new(Params::default(), info).unwrap());

mod small {
    use super::*;
    allocator_core::conformance!(|info| {
        Arena::new(Params { arena_size: Some(24 << 20), size_classes: true }, info).unwrap()
    });
}

mod whole {
    use super::*;
    allocator_core::conformance!(|info| {
        Arena::new(Params { arena_size: Some(info.total), ..Params::default() }, info).unwrap()
    });
}
