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
            for simpler in simpler(self.best.ops[at]) {
                let mut ops = self.best.ops.clone();
                ops[at] = simpler;
                if self.accept(ops) {
                    progress = true;
                    break;
                }
            }
            at += 1;
        }
        progress
    }

    /// Numbers the blocks in the order of their allocation, which is a to z in most cases.
    fn rename(&mut self) {
        let mut names = BTreeMap::new();
        for op in &self.best.ops {
            if let Op::Allocate { id, .. } = *op {
                let next = names.len() as u32;
                names.entry(id).or_insert(next);
            }
        }
        let new = |id: u32| names.get(&id).copied().unwrap_or(id);
        let renamed = self.best.ops.iter().map(|&op| match op {
            Op::Allocate { id, size, stream, pool } => Op::Allocate { id: new(id), size, stream, pool },
            Op::Use { id, stream } => Op::Use { id: new(id), stream },
            Op::Free { id, ticket } => Op::Free { id: new(id), ticket },
            Op::FreeAgain { id } => Op::FreeAgain { id: new(id) },
            other => other,
        });
        let renamed = renamed.collect();
        // Once more, so that the text about the failure has the new names.
        self.budget = u64::MAX;
        self.accept(renamed);
    }
}

/// Simpler forms of an operation, the simplest first.
fn simpler(op: Op) -> Vec<Op> {
    const SIZES: [u64; 8] = [512, 4096, 1 << 20, 2 << 20, 4 << 20, 10 << 20, 20 << 20, 64 << 20];
    match op {
        Op::Allocate { id, size, stream, pool } => {
            let sizes = SIZES.into_iter().filter(|&simple| simple < size);
            let rounded =
                [size.next_multiple_of(512), size / 2].into_iter().filter(|&other| other != size && other > 0);
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
        Op::Trim { keep } if keep > 0 => vec![Op::Trim { keep: 0 }],
        Op::Fail { kind, nth, broken } if nth > 1 => vec![Op::Fail { kind, nth: 1, broken }],
        _ => Vec::new(),
    }
}
