//! Replays allocation traces on strategies and makes figures of it.
//!
//! A run takes a [workload](load) and a [strategy](registry), [replays](replay) one on the other, once to
//! [audit](mod@audit) what memory it took and whether every address was right, and some more times to see how
//! long the strategy's own code takes, and [records](record) the result. What was recorded is [read](results)
//! again to be [compared](compare) and [ranked](rank) by a [metric].

pub mod audit;
mod backing;
pub mod calibrate;
pub mod compare;
mod decisions;
pub mod exit;
pub mod fidelity;
pub mod file;
pub mod filter;
pub mod forms;
pub mod grid;
mod hash;
pub mod integrity;
pub mod interrupt;
mod job;
pub mod load;
pub mod machine;
pub mod metric;
mod null;
pub mod output;
mod peak;
pub mod plot;
pub mod progress;
pub mod rank;
pub mod record;
pub mod registry;
pub mod replay;
pub mod results;
pub mod run;
mod shadow;
pub mod size;
mod streams;
pub mod table;
pub mod target;
mod timing;
mod watch;
pub mod wrap;
