//! The verbs, one file each.

pub mod calibrate;
pub mod compare;
pub mod fidelity;
pub mod list;
pub mod pages;
pub mod plot;
pub mod run;
pub mod trace;
