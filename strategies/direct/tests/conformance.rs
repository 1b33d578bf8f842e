//! The rules every strategy keeps.

use allocator_core::Configure;
use strategy_direct::Direct;

allocator_core::conformance!(|info| Direct::new(Default::default(), info).unwrap());
