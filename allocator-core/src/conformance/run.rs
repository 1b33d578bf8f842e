//! Carries runs out and makes failures readable.

use super::op::{self, Op};
use super::random::{Generator, Options};
use super::session::{Session, Setup};
use super::shrink::{self, Failing};
use super::{Broken, Make, Rule, Violation};
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
pub(super) fn run(make: Make<'_>, setup: Setup, ops: impl IntoIterator<Item = Op>) -> Result<(), (usize, Broken)> {
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

/// Judges one rule (all rules for `None`) on one run.
pub(super) fn check(make: Make<'_>, setup: Setup, ops: &[Op], only: Option<Rule>) -> Result<(), Violation> {
    match run(make, setup, ops.iter().copied()) {
        Err((after, broken)) => judge(make, setup, ops[..after].to_vec(), broken, only),
        Ok(()) => Ok(()),
    }
}

/// A random run, judged like [`check`].
pub(super) fn random(
    make: Make<'_>,
    seed: u64,
    ops: u64,
    options: &Options,
    only: Option<Rule>,
) -> Result<(), Violation> {
    let setup = Setup { capacity: options.capacity, inspect_every: options.inspect_every };
    let pools = options.pools && Session::new(make, setup).has_pools();
    let run_of = |ops| Generator::new(seed, Options { pools, ..*options }).take(ops);
    match run(make, setup, run_of(usize::try_from(ops).unwrap_or(usize::MAX))) {
        Err((after, broken)) => judge(make, setup, run_of(after).collect(), broken, only).map_err(|mut violation| {
            violation.text +=
                &format!("\n(out of {after} operations of a random run with seed {seed} and {options:?})");
            violation
        }),
        Ok(()) => Ok(()),
    }
}

/// Makes a failure short and decides whose it is: any rule that breaks only because a device call failed is
/// [`Rule::ErrorRecovery`]'s. A panic is never passed over.
fn judge(make: Make<'_>, setup: Setup, ops: Vec<Op>, broken: Broken, only: Option<Rule>) -> Result<(), Violation> {
    let is_looked_at = |rule| only.is_none_or(|only| only == rule) || rule == Rule::NoPanic;
    let may_be_of_recovery = only == Some(Rule::ErrorRecovery) && has_fault(&ops);
    if !may_be_of_recovery && !is_looked_at(broken.rule) {
        return Ok(());
    }
    // Looked at after each operation, spans that are wrong are so earlier.
    let inspect_every = if broken.rule == Rule::Inspect { 1 } else { setup.inspect_every };
    let setup = Setup { inspect_every, ..setup };
    let rerun = |ops: &[Op]| quietly(|| run(make, setup, ops.iter().copied()).err());
    let mut failing = shrink::shrink(Failing { ops, broken }, rerun);
    if has_fault(&failing.ops) && !matches!(failing.broken.rule, Rule::ErrorRecovery | Rule::NoPanic) {
        let Broken { rule, text } = failing.broken;
        failing.broken = Broken::new(Rule::ErrorRecovery, format!("after a failed device call, {rule} is: {text}"));
    }
    if is_looked_at(failing.broken.rule) { Err(describe(setup, failing)) } else { Ok(()) }
}

fn has_fault(ops: &[Op]) -> bool {
    ops.iter().any(|op| matches!(op, Op::Fail { .. }))
}

/// What a failing run is told as.
pub(super) fn describe(setup: Setup, failing: Failing) -> Violation {
    let Broken { rule, text } = failing.broken;
    let listing = if failing.ops.is_empty() { "\n(by what ends every run)".into() } else { op::listing(&failing.ops) };
    Violation { rule, text: format!("{text}\non a device of {}:{listing}", op::Bytes(setup.capacity)) }
}
