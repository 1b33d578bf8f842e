//! Workloads made to show what allocators are bad at. Real programs come near them by accident.

pub(super) mod comb;
pub(super) mod powers;
pub(super) mod ramp;
pub(super) mod robson;
