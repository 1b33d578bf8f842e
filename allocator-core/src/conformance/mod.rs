//! The rules of [`crate::Strategy`], as tests.
//!
//! A strategy's crate writes one line:
//!
//! ```ignore
//! allocator_core::conformance!(|info| MyStrategy::new(Default::default(), info).unwrap());
//! ```
//!
//! and gets a `#[test]` for each [`Rule`], one of long random runs, and an ignored one for runs of ten million
//! operations by hand. Nothing is taken from the strategy's own word: memory, overlaps and the order of streams are
//! checked on the side of the device, which is the simulated one with a witness before it. A run that fails is made
//! as short as it can be and printed:
//!
//! ```text
//! stream_order is broken: b on stream 0 got memory of a, which stream 1 may still use: nothing waited for stream 1
//! on a device of 1 GiB:
//!    1  a = allocate 512 bytes on stream 0
//!    2  use a on stream 1
//!    3  free a
//!    4  b = allocate 512 bytes on stream 0
//! ```
//!
//! What a strategy cannot do (private pools, a memory limit) it refuses as unsupported; such a test is skipped and
//! says so. Each test judges its own rule: a strategy that breaks one fails the test of that name, not all of them.

mod memory;
mod op;
mod order;
mod random;
pub mod rules;
mod run;
mod session;
mod shrink;
mod spans;
mod witness;

pub use random::Options;

use crate::device::DeviceInfo;
use crate::strategy::Strategy;
use std::fmt;

/// Makes a fresh strategy. The strategy is boxed so that the suite is compiled once, not for each strategy and each set
/// of parameters.
pub type Make<'m> = &'m dyn Fn(&DeviceInfo) -> Box<dyn Strategy>;

/// Boxes what `make` makes, for a call by hand: `Rule::Limit.check(&boxed(|info| MyStrategy::new(info)))`.
pub fn boxed<S: Strategy + 'static>(make: impl Fn(&DeviceInfo) -> S) -> impl Fn(&DeviceInfo) -> Box<dyn Strategy> {
    move |info| Box::new(make(info))
}

/// What a strategy promises. The suite has a test of each rule's name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Rule {
    /// A request for 0 bytes is served.
    ZeroSize,
    /// Addresses are multiples of [`DeviceInfo::alignment`].
    Alignment,
    /// Live blocks never overlap, and lie in memory that the strategy holds.
    NoOverlap,
    /// Decisions depend on calls and on the device's answers only.
    Determinism,
    /// An error leaves the strategy usable, and leaks nothing.
    ErrorRecovery,
    /// With nothing live, `trim(0)` leaves the device empty. `trim` says what it released, and releases nothing that
    /// it was to keep.
    TrimToEmpty,
    /// Memory reaches another stream, or leaves its address, only after fences that cover each stream that used it.
    /// A stream that used a block while a pool's context was open is joined when the last context closes.
    StreamOrder,
    /// A block that is not live here is refused and given back; one that is live is not.
    ForeignBlock,
    /// The reported spans cover live blocks exactly and tile their segments.
    Inspect,
    /// Blocks of one pool never share a segment with those of another.
    Pools,
    /// Want of memory is an error of its kind, after which the strategy works on; a memory limit is kept, up to
    /// the rounding of the last growth.
    Limit,
    /// Every device call makes sense to the device.
    DeviceCalls,
    /// No call panics, whatever it is given.
    NoPanic,
}

impl Rule {
    /// All rules.
    pub const ALL: [Rule; 13] = [
        Rule::ZeroSize,
        Rule::Alignment,
        Rule::NoOverlap,
        Rule::Determinism,
        Rule::ErrorRecovery,
        Rule::TrimToEmpty,
        Rule::StreamOrder,
        Rule::ForeignBlock,
        Rule::Inspect,
        Rule::Pools,
        Rule::Limit,
        Rule::DeviceCalls,
        Rule::NoPanic,
    ];

    /// Tests the rule alone.
    pub fn check(self, make: Make<'_>) -> Result<Checked, Violation> {
        match self {
            Rule::ZeroSize => rules::zero_size(make),
            Rule::Alignment => rules::alignment(make),
            Rule::NoOverlap => rules::no_overlap(make),
            Rule::Determinism => rules::determinism(make),
            Rule::ErrorRecovery => rules::error_recovery(make),
            Rule::TrimToEmpty => rules::trim_to_empty(make),
            Rule::StreamOrder => rules::stream_order(make),
            Rule::ForeignBlock => rules::foreign_block(make),
            Rule::Inspect => rules::inspect(make),
            Rule::Pools => rules::pools(make),
            Rule::Limit => rules::limit(make),
            Rule::DeviceCalls => rules::device_calls(make),
            Rule::NoPanic => rules::no_panic(make),
        }
    }

    /// The name of the rule and of its test.
    const fn name(self) -> &'static str {
        match self {
            Rule::ZeroSize => "zero_size",
            Rule::Alignment => "alignment",
            Rule::NoOverlap => "no_overlap",
            Rule::Determinism => "determinism",
            Rule::ErrorRecovery => "error_recovery",
            Rule::TrimToEmpty => "trim_to_empty",
            Rule::StreamOrder => "stream_order",
            Rule::ForeignBlock => "foreign_block",
            Rule::Inspect => "inspect",
            Rule::Pools => "pools",
            Rule::Limit => "limit",
            Rule::DeviceCalls => "device_calls",
            Rule::NoPanic => "no_panic",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A broken rule, with the shortest run found that breaks it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// What happened, and the operations that led there.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is broken: {}", self.rule, self.text)
    }
}

impl std::error::Error for Violation {}

/// A rule was looked at and not found broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checked {
    /// It is kept.
    Kept,
    /// It says nothing about this strategy, for the reason given.
    Skipped(&'static str),
}

/// Ends a test: panics if a rule is broken, prints why if it was skipped.
#[track_caller]
pub fn judge(verdict: Result<Checked, Violation>) {
    match verdict {
        Ok(Checked::Kept) => {}
        Ok(Checked::Skipped(why)) => println!("skipped: {why}"),
        Err(violation) => panic!("{violation}"),
    }
}

/// A random run of `ops` operations. Fast enough for runs of tens of millions by hand.
pub fn random_run(make: Make<'_>, seed: u64, ops: u64, options: &Options) -> Result<(), Violation> {
    run::random(make, seed, ops, options, None)
}

/// The long run that `conformance!` leaves to be started by hand: `CONFORMANCE_OPS` operations (ten million if that
/// is not set) from seed `CONFORMANCE_SEED` (1).
pub fn long_run(make: Make<'_>) -> Result<Checked, Violation> {
    let number = |name: &str, default: u64| match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a whole number, such as {default}")),
        Err(_) => default,
    };
    let options = Options { inspect_every: 10_000, ..Options::default() };
    random_run(make, number("CONFORMANCE_SEED", 1), number("CONFORMANCE_OPS", 10_000_000), &options)?;
    Ok(Checked::Kept)
}

/// Tests that a strategy keeps the rules: one `#[test]` for each.
///
/// The argument makes a fresh strategy from a [`DeviceInfo`](crate::DeviceInfo). To use it twice in a file (for other
/// parameters), put the second into a `mod` of its own: the tests of both have the same names.
#[macro_export]
macro_rules! conformance {
    ($make:expr $(,)?) => {
        $crate::conformance!(@tests $make; zero_size alignment no_overlap determinism error_recovery trim_to_empty
            stream_order foreign_block inspect pools limit device_calls no_panic random_runs);

        #[test]
        #[ignore = "ten million operations; CONFORMANCE_OPS and CONFORMANCE_SEED choose others"]
        fn long_run() {
            $crate::conformance::judge($crate::conformance::long_run(&$crate::conformance::boxed($make)));
        }
    };
    (@tests $make:expr; $($rule:ident)*) => {
        $(#[test]
        fn $rule() {
            $crate::conformance::judge($crate::conformance::rules::$rule(&$crate::conformance::boxed($make)));
        })*
    };
}

/// A broken rule, before it is a [`Violation`].
#[derive(Clone, PartialEq, Eq, Debug)]
struct Broken {
    rule: Rule,
    text: String,
}

impl Broken {
    fn new(rule: Rule, text: impl Into<String>) -> Broken {
        Broken { rule, text: text.into() }
    }
}
