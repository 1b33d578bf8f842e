//! The rules every strategy keeps.

use allocator_core::Configure;
use strategy_expandable::{Expandable, Params};

allocator_core::conformance!(|info| Expandable::new(Params::default(), info).unwrap());
