//! Makes a failing run short enough to read.

use super::Broken;
use super::op::Op;
use std::collections::BTreeMap;

/// A run that failed, and how.
#[derive(Clone, Debug)]
pub(super) struct Failing {
    pub ops: Vec<Op>,
    pub broken: Broken,
}

struct Shrinker<F> {
    run: F,
    best: Failing,
    /// Operations that may still be carried out.
    budget: u64,
}

/// Leaves operations out and makes the others simpler, as long as the same rule breaks. `run` says how a run fails
/// and after how many operations.
pub(super) fn shrink(failing: Failing, run: impl Fn(&[Op]) -> Option<(usize, Broken)>) -> Failing {
    let budget = 20 * failing.ops.len() as u64 + 2_000_000;
    let mut shrinker = Shrinker { run, best: failing, budget };
    shrinker.leave_out();
    if shrinker.simplify() {
        shrinker.leave_out();
    }
    shrinker.rename();
    shrinker.best
}

impl<F: Fn(&[Op]) -> Option<(usize, Broken)>> Shrinker<F> {
    fn can_afford_one(&self) -> bool {
        self.budget >= self.best.ops.len() as u64
    }

    /// Keeps `ops` if they still break the rule.
    fn accept(&mut self, mut ops: Vec<Op>) -> bool {
        let cost = ops.len() as u64;
        if cost > self.budget {
            return false;
        }
        self.budget -= cost;
        match (self.run)(&ops) {
            Some((after, broken)) if broken.rule == self.best.broken.rule => {
                ops.truncate(after);
                self.best = Failing { ops, broken };
                true
            }
            _ => false,
        }
    }

    /// Leaves out runs of operations, long ones first, until no single one can go.
    fn leave_out(&mut self) {
        let mut len = self.best.ops.len().div_ceil(2);
        loop {
            let mut progress = false;
            let mut end = self.best.ops.len();
            while end > 0 && self.can_afford_one() {
                let start = end.saturating_sub(len);
                let ops = &self.best.ops;
                let rest = ops[..start].iter().chain(&ops[end..]).copied().collect();
                progress |= self.accept(rest);
                end = start.min(self.best.ops.len());
            }
            match len {
                0 | 1 if !progress => break,
                0 | 1 => {}
                _ => len = len.div_ceil(2),
            }
        }
    }

    /// Tries simpler values, the simplest first; whether some were kept.
    fn simplify(&mut self) -> bool {
        let mut progress = false;
        let mut at = 0;
        while at < self.best.ops.len() && self.can_afford_one() {
            let found = simpler(self.best.ops[at]).into_iter().any(|simpler| {
                let mut ops = self.best.ops.clone();
                ops[at] = simpler;
                self.accept(ops)
            });
            progress |= found;
            // The same one again, until there is no simpler form of it.
            at += usize::from(!found);
        }
        progress
    }

    /// Numbers blocks, streams and tickets in the order in which they appear, so that blocks are a to z in most cases.
    fn rename(&mut self) {
        self.budget = u64::MAX;
        let (mut blocks, mut streams, mut tickets) = (Names::default(), Names::default(), Names::default());
        let blocks_renamed: Vec<Op> = self.best.ops.iter().map(|&op| op.with_block(|id| blocks.new_for(id))).collect();
        let lanes = |op: Op| op.with_stream(|id| streams.new_for(id)).with_ticket(|id| tickets.new_for(id));
        let all_renamed = blocks_renamed.iter().copied().map(lanes).collect();
        // Run once more, so that the text about the failure has the new names. Streams may not be all alike.
        if !self.accept(all_renamed) {
            self.accept(blocks_renamed);
        }
    }
}

/// Small numbers in the place of large ones.
#[derive(Default)]
struct Names(BTreeMap<u32, u32>);

impl Names {
    fn new_for(&mut self, old: u32) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry(old).or_insert(next)
    }
}

/// Simpler forms of an operation, the simplest first.
fn simpler(op: Op) -> Vec<Op> {
    const SIZES: [u64; 8] = [512, 4096, 1 << 20, 2 << 20, 4 << 20, 10 << 20, 20 << 20, 64 << 20];
    match op {
        Op::Allocate { id, size, stream, pool } => {
            let sizes = SIZES.into_iter().filter(|&simple| simple < size);
            let rounded = [size.checked_next_multiple_of(512), (size > 1024).then_some(size / 2)].into_iter().flatten();
            let rounded = rounded.filter(|&other| other != size);
            let on_default = (stream != 0).then_some(Op::Allocate { id, size, stream: 0, pool });
            let in_default = (pool != 0).then_some(Op::Allocate { id, size, stream, pool: 0 });
            let resized = sizes.chain(rounded).map(|size| Op::Allocate { id, size, stream, pool });
            on_default.into_iter().chain(in_default).chain(resized).collect()
        }
        Op::Use { id, stream } if stream > 1 => vec![Op::Use { id, stream: 1 }],
        Op::Free { id, ticket: Some(ticket) } => {
            let first = (ticket > 0).then_some(Op::Free { id, ticket: Some(0) });
            [Op::Free { id, ticket: None }].into_iter().chain(first).collect()
        }
        Op::Limit { bytes: Some(bytes) } => {
            let limits = SIZES.into_iter().filter(|&simple| simple < bytes);
            limits.map(|bytes| Op::Limit { bytes: Some(bytes) }).collect()
        }
        Op::Trim { keep } if keep > 0 => vec![Op::Trim { keep: 0 }],
        Op::Fail { kind, nth, broken } if nth > 1 => vec![Op::Fail { kind, nth: 1, broken }],
        _ => Vec::new(),
    }
}
