//! The rules every strategy keeps.

use allocator_core::Configure;
use strategy_direct::{Direct, Params};

allocator_core::conformance!(|info| Direct::new(Params {}, info).unwrap());
