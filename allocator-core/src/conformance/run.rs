//! Carries runs out and makes failures readable.

use super::op::{self, Op};
use super::random::{Generator, Options};
use super::session::{Session, Setup};
use super::shrink::{self, Failing};
use super::{Broken, Rule, Violation};
use crate::device::DeviceInfo;
use crate::strategy::Strategy;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// Whether panics of this thread go unreported.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs what may panic over and over without a report each time. The first panic of a run has been reported already.
fn quietly<T>(what: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                report(info);
            }
        }));
    });
    QUIET.set(true);
    let answer = what();
    QUIET.set(false);
    answer
}

/// Makes a panic a broken rule. What `what` works on is not looked at again afterwards.
pub(super) fn without_panic(what: impl FnOnce() -> Result<(), Broken>) -> Result<(), Broken> {
    panic::catch_unwind(AssertUnwindSafe(what)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(Broken::new(Rule::NoPanic, format!("the strategy panicked: {text}")))
    })
}

/// Carries operations out on a fresh strategy and ends everything. A failure comes with the number of operations up
/// to it.
pub(super) fn run<S: Strategy>(
    make: &impl Fn(&DeviceInfo) -> S,
    setup: Setup,
    ops: impl IntoIterator<Item = Op>,
) -> Result<(), (usize, Broken)> {
    let done = Cell::new(0);
    let verdict = without_panic(|| {
        let mut session = Session::new(make, setup);
        for op in ops {
            done.set(done.get() + 1);
            session.step(op)?;
        }
        session.finish()
    });
    verdict.map_err(|broken| (done.get(), broken))
}

/// Judges one rule (all rules for `None`) on one run. A panic is never passed over.
pub(super) fn check<S: Strategy>(
    make: &impl Fn(&DeviceInfo) -> S,
    setup: Setup,
    ops: &[Op],
    only: Option<Rule>,
) -> Result<(), Violation> {
    match run(make, setup, ops.iter().copied()) {
        Err((after, broken)) => report(make, setup, ops[..after].to_vec(), broken, only),
        Ok(()) => Ok(()),
    }
}

/// Makes a failure readable, if it is one of the rule that is looked at.
fn report<S: Strategy>(
    make: &impl Fn(&DeviceInfo) -> S,
    setup: Setup,
    ops: Vec<Op>,
    broken: Broken,
    only: Option<Rule>,
) -> Result<(), Violation> {
    if only.is_some_and(|rule| rule != broken.rule) && broken.rule != Rule::NoPanic {
        return Ok(());
    }
    let failing = shrink::shrink(Failing { ops, broken }, |ops| quietly(|| run(make, setup, ops.iter().copied()).err()));
    let plan = match setup.plan {
        Some((kind, nth, error)) => format!(", call {nth} of {kind} fails: {error}"),
        None => String::new(),
    };
    let Broken { rule, text } = failing.broken;
    let text = format!("{text}\n(device of {}{plan})\n{}", op::Bytes(setup.capacity), op::listing(&failing.ops));
    Err(Violation { rule, text })
}

/// A random run, judged like [`check`].
pub(super) fn random<S: Strategy>(
    make: &impl Fn(&DeviceInfo) -> S,
    seed: u64,
    ops: u64,
    options: &Options,
    only: Option<Rule>,
) -> Result<(), Violation> {
    let setup = Setup { inspect_every: options.inspect_every, ..Setup::new(options.capacity) };
    let pools = options.pools && Session::new(make, setup).has_pools();
    let run_of = |ops| Generator::new(seed, Options { pools, ..*options }).take(ops);
    let ops = usize::try_from(ops).unwrap_or(usize::MAX);
    match run(make, setup, run_of(ops)) {
        Ok(()) => Ok(()),
        Err((after, broken)) => {
            report(make, setup, run_of(after).collect(), broken, only).map_err(|Violation { rule, text }| Violation {
                rule,
                text: format!("{text}(from random_run with seed {seed}, {ops} operations and {options:?})"),
            })
        }
    }
}
