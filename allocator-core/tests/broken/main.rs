//! Every rule of the conformance suite can fail, and fails under its own name.
//!
//! The toy allocator keeps all rules. Each of its switches breaks one line, and so one rule, which that rule's own
//! test must find. The random runs must find it too, though they may meet another symptom first, and tell it briefly.

mod ordered;
mod paged;
mod toy;

use allocator_core::conformance::{Checked, Options, Rule, boxed, random_run, rules};
use ordered::Ordered;
use paged::Paged;
use toy::{Bug, Toy};

allocator_core::conformance!(|_| Toy::new(None));

mod pages {
    allocator_core::conformance!(|_| super::Paged::new(None));
}

mod pool {
    allocator_core::conformance!(|_| super::Ordered::new(None));
}

/// A bug, the rule it breaks, and the rule that random runs find broken, if they look for such a thing at all.
const BUGS: [(Bug, Rule, Option<Rule>); 31] = [
    (Bug::RefusesZero, Rule::ZeroSize, Some(Rule::ZeroSize)),
    (Bug::RoundsTo256, Rule::Alignment, Some(Rule::Alignment)),
    (Bug::CutsOffTooLittle, Rule::NoOverlap, Some(Rule::NoOverlap)),
    (Bug::JoinsLiveNeighbours, Rule::NoOverlap, Some(Rule::Inspect)),
    (Bug::TakesAnyPiece, Rule::Determinism, None),
    (Bug::LosesBlockOnFailedFence, Rule::ErrorRecovery, Some(Rule::ErrorRecovery)),
    (Bug::LosesSegmentOnFailedFree, Rule::ErrorRecovery, Some(Rule::ErrorRecovery)),
    (Bug::GivesAnotherBlockBack, Rule::ErrorRecovery, Some(Rule::ErrorRecovery)),
    (Bug::StaysOutOfMemory, Rule::Limit, Some(Rule::Limit)),
    (Bug::KeepsLastSegment, Rule::TrimToEmpty, Some(Rule::TrimToEmpty)),
    (Bug::TrimsTooMuch, Rule::TrimToEmpty, Some(Rule::TrimToEmpty)),
    (Bug::TrimSaysNothing, Rule::TrimToEmpty, Some(Rule::TrimToEmpty)),
    (Bug::TrimLeavesWaiting, Rule::TrimToEmpty, Some(Rule::TrimToEmpty)),
    (Bug::IgnoresUses, Rule::StreamOrder, Some(Rule::StreamOrder)),
    (Bug::IgnoresOwnStream, Rule::StreamOrder, Some(Rule::StreamOrder)),
    (Bug::IgnoresTickets, Rule::StreamOrder, Some(Rule::StreamOrder)),
    (Bug::WaitsForFirstFence, Rule::StreamOrder, Some(Rule::StreamOrder)),
    (Bug::FencesTooEarly, Rule::StreamOrder, Some(Rule::StreamOrder)),
    (Bug::ForgetsGenerations, Rule::ForeignBlock, Some(Rule::ForeignBlock)),
    (Bug::ForgetsAddresses, Rule::ForeignBlock, None),
    (Bug::ReplacesForeignBlock, Rule::ForeignBlock, Some(Rule::ForeignBlock)),
    (Bug::RefusesUsedBlocks, Rule::ForeignBlock, Some(Rule::ForeignBlock)),
    (Bug::HidesCached, Rule::Inspect, Some(Rule::Inspect)),
    (Bug::ShowsWaitingAsLive, Rule::Inspect, Some(Rule::Inspect)),
    (Bug::ShowsWrongStream, Rule::Inspect, Some(Rule::Inspect)),
    (Bug::ShowsFromTheEnd, Rule::Inspect, Some(Rule::Inspect)),
    (Bug::MixesPools, Rule::Pools, Some(Rule::Pools)),
    (Bug::PassesOutOfMemoryOn, Rule::Limit, Some(Rule::Limit)),
    (Bug::IgnoresLimit, Rule::Limit, Some(Rule::Limit)),
    (Bug::FreesTwice, Rule::DeviceCalls, Some(Rule::DeviceCalls)),
    (Bug::Overflows, Rule::NoPanic, Some(Rule::NoPanic)),
];

#[test]
fn each_rule_fails_under_its_name() {
    for rule in Rule::ALL {
        assert!(BUGS.iter().any(|(_, broken, _)| *broken == rule), "no bug breaks {rule}");
    }
    let mut wrong = Vec::new();
    for (bug, rule, _) in BUGS {
        match rule.check(&boxed(|_| Toy::new(Some(bug)))) {
            Err(violation) if violation.rule == rule => {}
            other => wrong.push(format!("{bug:?}: {rule} answered {other:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn random_runs_find_and_shorten() {
    let mut wrong = Vec::new();
    for (bug, _, symptom) in BUGS {
        match (rules::random_runs(&boxed(|_| Toy::new(Some(bug)))), symptom) {
            (Ok(Checked::Kept), None) => {}
            (Err(found), Some(rule)) if found.rule == rule && found.text.lines().count() <= 16 => println!("{found}"),
            (other, _) => wrong.push(format!("{bug:?}: {other:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn virtual_memory_is_watched() {
    let bugs = [
        (paged::Bug::UnmapsInUse, Rule::StreamOrder),
        (paged::Bug::MapsTheSameTwice, Rule::NoOverlap),
        (paged::Bug::KeepsMemory, Rule::TrimToEmpty),
        (paged::Bug::KeepsAddresses, Rule::TrimToEmpty),
        (paged::Bug::GivesPartOfMemoryBack, Rule::DeviceCalls),
        (paged::Bug::LosesMemoryOnFailedMap, Rule::ErrorRecovery),
    ];
    for (bug, rule) in bugs {
        let verdict = rule.check(&boxed(|_| Paged::new(Some(bug))));
        assert!(verdict.as_ref().is_err_and(|violation| violation.rule == rule), "{bug:?}: {verdict:?}");
    }
}

#[test]
fn the_stream_ordered_pool_is_watched() {
    let bugs = [
        (ordered::Bug::FreesOnDefaultStream, Rule::StreamOrder),
        (ordered::Bug::IgnoresOtherStreams, Rule::StreamOrder),
        (ordered::Bug::FreesWhileLive, Rule::NoOverlap),
        (ordered::Bug::TrimsWithoutWait, Rule::TrimToEmpty),
        (ordered::Bug::LosesBlockOnFailedFree, Rule::ErrorRecovery),
        (ordered::Bug::FreesTwice, Rule::DeviceCalls),
    ];
    for (bug, rule) in bugs {
        let verdict = rule.check(&boxed(|_| Ordered::new(Some(bug))));
        assert!(verdict.as_ref().is_err_and(|violation| violation.rule == rule), "{bug:?}: {verdict:?}");
    }
}

#[test]
fn a_bug_fails_its_own_rule_alone() {
    let failing = |bug| {
        let fails = |rule: &Rule| rule.check(&boxed(|_| Toy::new(Some(bug)))).is_err();
        Rule::ALL.into_iter().filter(fails).collect::<Vec<_>>()
    };
    assert_eq!(failing(Bug::RoundsTo256), [Rule::Alignment]);
    assert_eq!(failing(Bug::FencesTooEarly), [Rule::StreamOrder]);
    assert_eq!(failing(Bug::TrimSaysNothing), [Rule::TrimToEmpty]);
    assert_eq!(failing(Bug::IgnoresLimit), [Rule::Limit]);
}

#[test]
fn what_a_strategy_refuses_is_skipped() {
    let verdict = Rule::Pools.check(&boxed(|_| Paged::new(None)));
    assert!(matches!(verdict, Ok(Checked::Skipped(why)) if why.contains("pools")), "{verdict:?}");
}

#[test]
fn a_failing_run_is_told_briefly_and_the_same_each_time() {
    let run = || random_run(&boxed(|_| Toy::new(Some(Bug::FencesTooEarly))), 5, 1000, &Options::default()).unwrap_err();
    let lines = run().text;
    let told: Vec<&str> = lines.lines().skip(2).map(|line| &line[6..]).collect();
    let shortest = [
        "a = allocate 512 bytes on stream 0",
        "free a, in use until ticket 0",
        "complete ticket 0",
        "b = allocate 512 bytes on stream 0",
    ];
    assert_eq!(told[..told.len() - 1], shortest, "{lines}");
    assert_eq!(run(), run());
}
