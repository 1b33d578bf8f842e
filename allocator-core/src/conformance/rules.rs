//! One function a rule. Each runs what is most likely to break its rule and judges that rule alone; `random_runs`
//! judges them all.

use super::op::Op;
use super::random::{Generator, may_lack_memory};
use super::run::{self, check, describe, without_panic};
use super::session::{Session, Setup};
use super::shrink::{Failing, shrink};
use super::{Broken, Checked, Make, Options, Rule, Violation};
use crate::device::CallKind;
use crate::error::ControlError;
use crate::request::{PoolId, Request, StreamId};
use crate::strategy::Control;

type Verdict = Result<Checked, Violation>;

const MIB: u64 = 1 << 20;
/// Room for everything that the written-down runs ask for.
const ROOMY: u64 = 4 << 30;

fn alloc(id: u32, size: u64, stream: u32) -> Op {
    Op::Allocate { id, size, stream, pool: 0 }
}

fn free(id: u32) -> Op {
    Op::Free { id, ticket: None }
}

/// Random runs on a roomy device and on a tight one, judged by one rule.
fn random(make: Make<'_>, only: Option<Rule>, options: Options) -> Verdict {
    let tight = Options { capacity: 96 * MIB, max_bytes: 8 * MIB, ..options };
    for seed in 1..=6 {
        // The tight one first: it fails in fewer operations.
        run::random(make, seed, 1500, &tight, only)?;
        run::random(make, seed, 1500, &options, only)?;
    }
    Ok(Checked::Kept)
}

/// No faults, no pools, no look at the spans: what most rules are about.
fn plain() -> Options {
    Options { faults: false, pools: false, inspect_every: 0, ..Options::default() }
}

/// [`Rule::ZeroSize`]
pub fn zero_size(make: Make<'_>) -> Verdict {
    let ops = [
        alloc(0, 0, 0),
        alloc(1, 0, 1),
        alloc(2, MIB, 0),
        alloc(3, 0, 0),
        Op::Use { id: 1, stream: 2 },
        free(0),
        free(1),
        alloc(4, 0, 1),
        Op::Trim { keep: 0 },
        alloc(5, 0, 3),
        free(2),
        alloc(6, 0, 0),
    ];
    check(make, Setup::new(ROOMY), &ops, Some(Rule::ZeroSize))?;
    random(make, Some(Rule::ZeroSize), plain())
}

/// [`Rule::Alignment`]
pub fn alignment(make: Make<'_>) -> Verdict {
    let around = |power: u64| [power - 1, power, power + 1];
    let sizes = (0..26).flat_map(|bits| around(1 << bits)).chain([0, 3 * MIB + 7, 20 * MIB + 511]);
    let mut ops: Vec<Op> = sizes.enumerate().map(|(id, size)| alloc(id as u32, size, id as u32 % 2)).collect();
    let allocated = ops.len() as u32;
    // Again in the holes between blocks that stay.
    ops.extend((0..allocated).step_by(2).map(free));
    ops.extend((0..allocated).map(|id| alloc(allocated + id, 1 + 777 * u64::from(id), id % 2)));
    check(make, Setup::new(ROOMY), &ops, Some(Rule::Alignment))?;
    random(make, Some(Rule::Alignment), plain())
}

/// [`Rule::NoOverlap`]
pub fn no_overlap(make: Make<'_>) -> Verdict {
    for size in [512, 700, 4096, 300_000, MIB, 2 * MIB + 1, 12 * MIB] {
        // Equal blocks, every other one freed, smaller and equal ones into the holes, then one over what was merged.
        let mut ops: Vec<Op> = (0..24).map(|id| alloc(id, size, 0)).collect();
        ops.extend((0..24).step_by(2).map(free));
        ops.extend((24..36).map(|id| alloc(id, size - size / 3, 0)));
        ops.extend((36..48).map(|id| alloc(id, size / 4, 0)));
        ops.extend((1..24).step_by(2).chain(24..36).map(free));
        ops.extend([Op::Host { us: 10_000 }, alloc(48, 3 * size, 0), alloc(49, 2 * size, 0)]);
        check(make, Setup::new(ROOMY), &ops, Some(Rule::NoOverlap))?;
    }
    random(make, Some(Rule::NoOverlap), plain())
}

/// [`Rule::Determinism`]: three strategies are given the same operations and watched call by call.
pub fn determinism(make: Make<'_>) -> Verdict {
    for seed in 1..=4 {
        let options = Options { faults: seed % 2 == 0, capacity: 256 * MIB, max_bytes: 16 * MIB, ..plain() };
        let setup = Setup::new(options.capacity);
        let ops: Vec<Op> = Generator::new(seed, options).take(1200).collect();
        if let Some((after, broken)) = part_ways(make, setup, &ops) {
            let failing = Failing { ops: ops[..after].to_vec(), broken };
            return Err(describe(setup, shrink(failing, |ops| part_ways(make, setup, ops))));
        }
    }
    Ok(Checked::Kept)
}

/// Where strategies that are told the same first act differently, as a number of operations.
fn part_ways(make: Make<'_>, setup: Setup, ops: &[Op]) -> Option<(usize, Broken)> {
    let mut sessions: [Session; 3] = std::array::from_fn(|_| {
        let mut session = Session::new(make, setup);
        session.device.keep_log();
        session
    });
    for (at, &op) in ops.iter().enumerate() {
        // Another rule's breach ends the run: what follows it means nothing.
        if sessions.iter_mut().any(|session| session.step(op).is_err()) {
            return None;
        }
        let [first, others @ ..] = &sessions;
        if let Some(other) = others.iter().find(|other| other.trail() != first.trail()) {
            let ((calls, last), (other_calls, other_last)) = (first.trail(), other.trail());
            let text = format!(
                "told the same, two strategies differ in the last operation: one made the calls {calls:?} and has its \
                 last block at {last:x?}, the other {other_calls:?} and {other_last:x?}"
            );
            return Some((at + 1, Broken::new(Rule::Determinism, text)));
        }
    }
    None
}

/// [`Rule::ErrorRecovery`]: each call that the device gets in some runs fails in turn.
pub fn error_recovery(make: Make<'_>) -> Verdict {
    let mixed = [
        alloc(0, 1000, 0),
        alloc(1, 3 * MIB, 0),
        alloc(2, 30 * MIB, 1),
        Op::Use { id: 1, stream: 1 },
        Op::Use { id: 2, stream: 0 },
        free(1),
        free(0),
        alloc(3, 2 * MIB, 0),
        free(2),
        Op::Host { us: 1_000 },
        alloc(4, 25 * MIB, 1),
        Op::Trim { keep: 0 },
        alloc(5, 60 * MIB, 2),
        Op::Use { id: 5, stream: 0 },
        Op::Free { id: 5, ticket: Some(0) },
        alloc(6, 8 * MIB, 2),
        Op::Complete { ticket: 0 },
        alloc(7, 512, 1),
        free(6),
        free(4),
    ];
    // More than the device has, so that cached memory must go back first.
    let pressed = [
        alloc(0, 40 * MIB, 0),
        alloc(1, 40 * MIB, 1),
        free(0),
        alloc(2, 70 * MIB, 1),
        Op::Use { id: 1, stream: 2 },
        free(1),
        alloc(3, 90 * MIB, 1),
        free(2),
        alloc(4, 100 * MIB, 0),
        free(3),
        alloc(5, 100 * MIB, 0),
    ];
    for (ops, capacity) in [(&mixed[..], ROOMY), (&pressed[..], 128 * MIB)] {
        let setup = Setup::new(capacity);
        // What fails even so is another rule's.
        if run::run(make, setup, ops.iter().copied()).is_err() {
            continue;
        }
        for kind in CallKind::ALL {
            fail_each_call(make, setup, ops, |nth| Op::Fail { kind, nth, broken: true })?;
            if may_lack_memory(kind) {
                fail_each_call(make, setup, ops, |nth| Op::Fail { kind, nth, broken: false })?;
            }
        }
    }
    random(make, Some(Rule::ErrorRecovery), Options { faults: true, ..plain() })
}

/// Repeats a run with the first call of a kind failing, then the second, until there is no such call any more.
fn fail_each_call(make: Make<'_>, setup: Setup, ops: &[Op], fault: impl Fn(u32) -> Op) -> Result<(), Violation> {
    for nth in 1..=500 {
        let ops: Vec<Op> = std::iter::once(fault(nth)).chain(ops.iter().copied()).collect();
        let mut session = Session::new(make, setup);
        let went_well = ops.iter().all(|&op| session.step(op).is_ok());
        if went_well && !session.device.had_failure() {
            break;
        }
        check(make, setup, &ops, Some(Rule::ErrorRecovery))?;
    }
    Ok(())
}

/// [`Rule::TrimToEmpty`]
pub fn trim_to_empty(make: Make<'_>) -> Verdict {
    let plain_frees = [
        alloc(0, 1000, 0),
        alloc(1, 5 * MIB, 1),
        alloc(2, 50 * MIB, 2),
        free(1),
        Op::Trim { keep: 0 },
        free(0),
        Op::Trim { keep: 20 * MIB },
        free(2),
        Op::Trim { keep: u64::MAX },
    ];
    // Blocks that still wait for other streams are not live, and must not stay.
    let waiting = [
        alloc(0, 3 * MIB, 0),
        Op::Use { id: 0, stream: 1 },
        Op::Work { stream: 1, us: 5_000 },
        free(0),
        alloc(1, 1000, 1),
        Op::Free { id: 1, ticket: Some(0) },
    ];
    let rule = Some(Rule::TrimToEmpty);
    for ops in [&plain_frees[..], &waiting[..]] {
        check(make, Setup::new(ROOMY), ops, rule)?;
        keeps_no_addresses(make, ops)?;
    }
    random(make, rule, plain())
}

/// Addresses without memory may be kept, but the same work over and over must not take more and more of them.
fn keeps_no_addresses(make: Make<'_>, ops: &[Op]) -> Result<(), Violation> {
    let mut session = Session::new(make, Setup::new(ROOMY));
    let mut kept = Vec::new();
    for _ in 0..4 {
        if ops.iter().any(|&op| session.step(op).is_err()) || session.finish().is_err() {
            return Ok(());
        }
        kept.push(session.device.memory.address_space());
    }
    if kept[1] == kept[3] {
        return Ok(());
    }
    let text = format!("after each of four equal rounds, with nothing live and trimmed, reserved addresses: {kept:?}");
    Err(Violation { rule: Rule::TrimToEmpty, text })
}

/// [`Rule::StreamOrder`]
pub fn stream_order(make: Make<'_>) -> Verdict {
    for size in [512, MIB, 3 * MIB, 40 * MIB] {
        let again = |first: u32, stream: u32| (first..first + 6).map(move |id| alloc(id, size, stream));
        // Freed while another stream uses it: neither its own stream nor a third may get it.
        let mut used = vec![alloc(0, size, 0), Op::Use { id: 0, stream: 1 }, free(0)];
        used.extend(again(1, 0).chain(again(7, 2)).chain(again(13, 1)));
        // Freed on one stream, wanted on another, without any further use.
        let mut plain = vec![alloc(0, size, 0), alloc(1, size, 0), free(0), free(1)];
        plain.extend(again(2, 1));
        // The block's own stream works on after the point where the other was used.
        let mut late = vec![alloc(0, size, 0), Op::Use { id: 0, stream: 1 }, Op::Host { us: 10_000 }];
        late.extend([Op::Work { stream: 1, us: 9_000 }, Op::Work { stream: 0, us: 9_000 }, free(0)]);
        late.extend(again(1, 2).chain(again(7, 0)));
        // Two others, one of them idle before the other.
        let mut two = vec![alloc(0, size, 0), Op::Use { id: 0, stream: 1 }, Op::Use { id: 0, stream: 2 }];
        two.extend([Op::Work { stream: 2, us: 9_000 }, free(0), Op::Host { us: 1_000 }]);
        two.extend(again(1, 0));
        // A ticket, and the same one again for another block.
        let mut ticket = vec![alloc(0, size, 0), alloc(1, size, 0), Op::Free { id: 0, ticket: Some(0) }];
        ticket.extend([Op::Host { us: 100_000 }]);
        ticket.extend(again(2, 0));
        ticket.extend([Op::Complete { ticket: 0 }, Op::Free { id: 1, ticket: Some(0) }]);
        ticket.extend(again(8, 0));
        // Memory that leaves its address while its own stream, or another, still uses it.
        let leaves = [alloc(0, size, 0), Op::Use { id: 0, stream: 1 }, free(0), Op::Trim { keep: 0 }];
        for ops in [&used[..], &plain, &late, &two, &ticket, &leaves] {
            check(make, Setup::new(ROOMY), ops, Some(Rule::StreamOrder))?;
        }
    }
    random(make, Some(Rule::StreamOrder), plain())
}

/// [`Rule::ForeignBlock`]
pub fn foreign_block(make: Make<'_>) -> Verdict {
    const RULE: Option<Rule> = Some(Rule::ForeignBlock);
    let stale = [
        alloc(0, 1000, 0),
        alloc(1, MIB, 0),
        free(0),
        Op::FreeAgain { id: 0 },
        alloc(2, 1000, 0),
        Op::FreeAgain { id: 0 },
        Op::Use { id: 1, stream: 1 },
        Op::Free { id: 1, ticket: Some(0) },
        Op::FreeAgain { id: 1 },
        Op::Trim { keep: 0 },
        Op::FreeAgain { id: 1 },
        alloc(3, MIB, 0),
        Op::FreeAgain { id: 1 },
        free(2),
        free(3),
        Op::FreeAgain { id: 2 },
    ];
    check(make, Setup::new(ROOMY), &stale, RULE)?;
    let mut session = Session::new(make, Setup::new(ROOMY));
    let forged = [alloc(0, 1000, 0), alloc(1, 30 * MIB, 1), alloc(2, 0, 0)];
    let verdict = (session.offer_forgeries())
        .and_then(|()| forged.iter().try_for_each(|&op| session.step(op)))
        .and_then(|()| session.offer_forgeries())
        .and_then(|()| session.finish());
    match verdict {
        Err(Broken { rule: rule @ Rule::ForeignBlock, text }) => Err(Violation { rule, text }),
        _ => random(make, RULE, plain()),
    }
}

/// [`Rule::Inspect`]
pub fn inspect(make: Make<'_>) -> Verdict {
    let ops = [
        alloc(0, 1000, 0),
        alloc(1, 700_000, 1),
        alloc(2, 5 * MIB, 0),
        alloc(3, 70 * MIB, 0),
        free(0),
        alloc(4, 3 * MIB, 0),
        Op::Use { id: 2, stream: 1 },
        free(2),
        free(3),
        alloc(5, 0, 0),
        alloc(6, 30 * MIB, 0),
        Op::Host { us: 10_000 },
        alloc(7, 600, 1),
        Op::Trim { keep: 0 },
        free(4),
    ];
    let setup = Setup { inspect_every: 1, ..Setup::new(ROOMY) };
    check(make, setup, &ops, Some(Rule::Inspect))?;
    random(make, Some(Rule::Inspect), Options { pools: true, inspect_every: 1, ..plain() })
}

/// [`Rule::Pools`]
pub fn pools(make: Make<'_>) -> Verdict {
    if !Session::new(make, Setup::new(ROOMY)).has_pools() {
        return Ok(Checked::Skipped("the strategy has no private pools"));
    }
    let pooled = |id, size, pool| Op::Allocate { id, size, stream: 0, pool };
    for size in [1000, 300_000, 3 * MIB, 40 * MIB] {
        let ops = [
            alloc(0, size, 0),
            alloc(1, size, 0),
            free(0),
            Op::PoolBegin { pool: 1 },
            pooled(2, size, 1),
            pooled(3, size, 1),
            free(2),
            alloc(4, size, 0),
            alloc(5, size, 0),
            Op::PoolEnd { pool: 1 },
            Op::PoolBegin { pool: 2 },
            pooled(6, size, 2),
            free(3),
            pooled(7, size, 2),
            Op::PoolEnd { pool: 2 },
            alloc(8, size, 0),
            Op::PoolRelease { pool: 1 },
            alloc(9, size, 0),
            alloc(10, size / 2, 0),
            free(6),
            Op::PoolRelease { pool: 2 },
            Op::Trim { keep: 0 },
            free(7),
        ];
        check(make, Setup::new(ROOMY), &ops, Some(Rule::Pools))?;
    }
    random(make, Some(Rule::Pools), Options { pools: true, ..plain() })
}

/// [`Rule::Limit`]
pub fn limit(make: Make<'_>) -> Verdict {
    const RULE: Option<Rule> = Some(Rule::Limit);
    // A small device, filled twice over with blocks of one size, emptied, and filled with blocks of another.
    for size in [700_000, 3 * MIB, 15 * MIB, 63 * MIB] {
        let count = (128 * MIB / size) as u32;
        let mut ops: Vec<Op> = (0..count).map(|id| alloc(id, size, id % 2)).collect();
        ops.extend((0..count).map(free));
        ops.extend((count..2 * count).map(|id| alloc(id, size / 2 + 1, 0)));
        ops.extend([
            alloc(9_000, 65 * MIB, 0),
            alloc(9_001, ROOMY, 0),
            alloc(9_002, u64::MAX, 0),
            alloc(9_003, 512, 0),
        ]);
        check(make, Setup::new(64 * MIB), &ops, RULE)?;
    }
    if Session::new(make, Setup::new(ROOMY)).has_limit() {
        let limited = [
            alloc(0, 30 * MIB, 0),
            Op::Limit { bytes: Some(100 * MIB) },
            alloc(1, 60 * MIB, 0),
            alloc(2, 60 * MIB, 0),
            free(1),
            alloc(3, 90 * MIB, 0),
            alloc(4, 60 * MIB, 1),
            Op::Limit { bytes: Some(MIB) },
            alloc(5, 3 * MIB, 0),
            Op::Limit { bytes: None },
            alloc(6, 200 * MIB, 0),
        ];
        check(make, Setup::new(ROOMY), &limited, RULE)?;
    }
    random(make, RULE, plain())
}

/// [`Rule::DeviceCalls`]
pub fn device_calls(make: Make<'_>) -> Verdict {
    let options = Options { faults: true, pools: true, ..plain() };
    random(make, Some(Rule::DeviceCalls), options)
}

/// [`Rule::NoPanic`]: requests and calls that make no sense are refused or ignored.
pub fn no_panic(make: Make<'_>) -> Verdict {
    let sizes = [u64::MAX, u64::MAX - 511, u64::MAX - (2 * MIB), 1 << 63, (1 << 63) - 1, 1 << 47, ROOMY + 1, 0];
    let mut ops: Vec<Op> = sizes.into_iter().enumerate().map(|(id, size)| alloc(id as u32, size, 0)).collect();
    ops.extend([Op::Trim { keep: u64::MAX }, Op::Limit { bytes: Some(0) }, alloc(50, MIB, 0), alloc(51, 1, 3)]);
    ops.extend([Op::Limit { bytes: Some(u64::MAX) }, alloc(52, u64::MAX, 0), Op::Trim { keep: 0 }]);
    check(make, Setup::new(ROOMY), &ops, Some(Rule::NoPanic))?;
    match without_panic(|| nonsense(make)) {
        Ok(()) => random(make, Some(Rule::NoPanic), Options::default()),
        Err(Broken { rule, text }) => {
            Err(Violation { rule, text: format!("{text}\n(in calls about unknown pools or with unreadable settings)") })
        }
    }
}

/// Calls that no operation stands for.
fn nonsense(make: Make<'_>) -> Result<(), Broken> {
    let mut session = Session::new(make, Setup::new(ROOMY));
    let (strategy, device) = session.parts();
    for pool in [PoolId(7), PoolId(u32::MAX), PoolId::DEFAULT] {
        let calls: [Control<'_>; 7] = [
            Control::PoolEnd(pool),
            Control::PoolRelease(pool),
            Control::PoolEmpty(pool),
            Control::PoolNoSplit(pool),
            Control::PoolUseOnOom(pool),
            Control::PoolBegin(pool),
            Control::PoolBegin(pool),
        ];
        for call in calls {
            // Accepted or refused: either is an answer.
            let _: Result<(), ControlError> = strategy.control(device, call);
        }
    }
    let request = Request::new(512, StreamId(6)).in_pool(PoolId(123_456));
    let _ = strategy.allocate(device, request).map(drop);
    for text in ["", ":", "nonsense", "a:b:c", "max_split_size_mb:-1", "\u{0}\u{ffff}", "[,],:"] {
        let _ = strategy.control(device, Control::Settings(text));
    }
    strategy.inspect(&mut |_| {});
    strategy.counters(&mut |_, _| {});
    Ok(())
}

/// All rules at once: random operations on several streams, tickets, pools, trims, spans and failing device calls.
pub fn random_runs(make: Make<'_>) -> Verdict {
    random(make, None, Options::default())?;
    random(make, None, Options { streams: 1, tickets: 1, live: 12, ..Options::default() })?;
    // A device that many requests are too large for.
    let scarce = Options { capacity: 24 * MIB, max_bytes: 30 * MIB, live: 20, ..Options::default() };
    for seed in 1..=6 {
        run::random(make, seed, 1500, &scarce, None)?;
    }
    // The finish on an untouched strategy.
    check(make, Setup::new(ROOMY), &[], None)?;
    Ok(Checked::Kept)
}
