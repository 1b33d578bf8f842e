//! The rules every strategy keeps, under default settings and under the options that change the code's path.

use allocator_core::{Configure, DeviceInfo};
use strategy_caching::{Caching, Params};

fn with_conf(conf: &str) -> impl Fn(&DeviceInfo) -> Caching + Copy + '_ {
    move |info| Caching::new(Params { conf: conf.to_owned(), ..Params::default() }, info).unwrap()
}

mod default {
    use super::*;
    allocator_core::conformance!(with_conf(""));
}

mod split_limit_and_rounding {
    use super::*;
    allocator_core::conformance!(with_conf("max_split_size_mb:20,roundup_power2_divisions:4"));
}

mod collection {
    use super::*;
    allocator_core::conformance!(with_conf("per_process_memory_fraction:0.5,garbage_collection_threshold:0.3"));
}
