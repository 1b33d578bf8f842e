//! Generated workloads: what all have in common, and what makes each what it is.

mod adversaries;
mod megatron;
mod moe;
mod properties;
mod random;
mod run;
mod serve;
