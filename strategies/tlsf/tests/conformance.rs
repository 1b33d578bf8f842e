//! The rules every strategy keeps, in each order of search and with segments of other sizes.

use allocator_core::{Configure, DeviceInfo};
use strategy_tlsf::{Params, Tlsf};

fn with(params: impl Fn() -> Params + Copy) -> impl Fn(&DeviceInfo) -> Tlsf + Copy {
    move |info| Tlsf::new(params(), info).unwrap()
}

mod default {
    use super::*;
    allocator_core::conformance!(with(Params::default));
}

mod good_fit_and_small_segments {
    use super::*;
    allocator_core::conformance!(with(|| Params {
        search: "good_fit".to_string(),
        segment: 2 << 20,
        gradual: false,
        keep_empty: 0,
        ..Params::default()
    }));
}

mod min_memory_and_all_kept {
    use super::*;
    allocator_core::conformance!(with(|| Params {
        search: "min_memory".to_string(),
        keep_empty: u32::MAX,
        second_level: 1,
        ..Params::default()
    }));
}

mod min_offset_and_large_granules {
    use super::*;
    allocator_core::conformance!(with(|| Params {
        search: "min_offset".to_string(),
        granule: 4096,
        segment: 20 << 20,
        ..Params::default()
    }));
}
