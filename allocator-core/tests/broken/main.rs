//! Every rule of the conformance suite can fail, and fails under its own name.
//!
//! The toy allocator keeps all rules. Each of its switches breaks one line and so one rule, which that rule's own
//! test must find, and the random runs too.

mod toy;

use allocator_core::conformance::{Checked, Options, Rule, Violation, random_run, rules};
use allocator_core::{
    AllocError, Block, Device, DeviceInfo, FreeError, PoolId, Request, Span, SpanState, Strategy, StreamId,
};
use toy::{Bug, Toy};

allocator_core::conformance!(|_| Toy::new(None));

const BUGS: [(Bug, Rule); 31] = [
    (Bug::RefusesZero, Rule::ZeroSize),
    (Bug::RoundsTo256, Rule::Alignment),
    (Bug::CutsOffTooLittle, Rule::NoOverlap),
    (Bug::JoinsLiveNeighbours, Rule::NoOverlap),
    (Bug::TakesAnyPiece, Rule::Determinism),
    (Bug::LosesBlockOnFailedFence, Rule::ForeignBlock),
    (Bug::LosesSegmentOnFailedFree, Rule::ErrorRecovery),
    (Bug::GivesAnotherBlockBack, Rule::ErrorRecovery),
    (Bug::StaysOutOfMemory, Rule::Limit),
    (Bug::KeepsLastSegment, Rule::TrimToEmpty),
    (Bug::TrimsTooMuch, Rule::TrimToEmpty),
    (Bug::TrimSaysNothing, Rule::TrimToEmpty),
    (Bug::TrimLeavesWaiting, Rule::TrimToEmpty),
    (Bug::IgnoresUses, Rule::StreamOrder),
    (Bug::IgnoresOwnStream, Rule::StreamOrder),
    (Bug::IgnoresTickets, Rule::StreamOrder),
    (Bug::WaitsForFirstFence, Rule::StreamOrder),
    (Bug::FencesTooEarly, Rule::StreamOrder),
    (Bug::ForgetsGenerations, Rule::ForeignBlock),
    (Bug::ForgetsAddresses, Rule::ForeignBlock),
    (Bug::ReplacesForeignBlock, Rule::ForeignBlock),
    (Bug::RefusesUsedBlocks, Rule::ForeignBlock),
    (Bug::HidesCached, Rule::Inspect),
    (Bug::ShowsWaitingAsLive, Rule::Inspect),
    (Bug::ShowsWrongStream, Rule::Inspect),
    (Bug::ShowsFromTheEnd, Rule::Inspect),
    (Bug::MixesPools, Rule::Pools),
    (Bug::PassesOutOfMemoryOn, Rule::Limit),
    (Bug::IgnoresLimit, Rule::Limit),
    (Bug::FreesTwice, Rule::DeviceCalls),
    (Bug::Overflows, Rule::NoPanic),
];

#[test]
fn each_rule_fails_under_its_name() {
    for rule in Rule::ALL {
        assert!(BUGS.iter().any(|(_, broken)| *broken == rule), "no bug breaks {rule}");
    }
    let mut wrong = Vec::new();
    for (bug, rule) in BUGS {
        match rule.check(|_| Toy::new(Some(bug))) {
            Err(violation) if violation.rule == rule => {}
            other => wrong.push(format!("{bug:?}: {rule} answered {other:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn random_runs_find_and_shorten() {
    let mut wrong = Vec::new();
    for (bug, rule) in BUGS {
        match rules::random_runs(|_| Toy::new(Some(bug))) {
            Err(v) if v.rule == rule => println!("{bug:?}\n{v}"),
            other => wrong.push(format!("{bug:?}: {other:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
