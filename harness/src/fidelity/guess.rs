//! What a recording does not tell and its replay has to suppose: private pools that left no trace, and which of the
//! segments given back right before an allocation were given back by `empty_cache`.
//!
//! Nothing is supposed while the replay agrees without it. Pools are guessed only if something tells of any, only on
//! the streams of those that are known, and in one shape only: segments that a run of entries gives back in a row,
//! small ones first, were those of one pool. At a divergence this is tried for every run that gives back a segment
//! which takes part in it. What carries the replay furthest is kept, until it reaches the end or nothing helps: a
//! guess that does not lead to the end, the state there and its statistics makes no recording exact.

use super::end;
use super::lives::Lives;
use super::playback::Divergence;
use super::replay::{Recording, Replay};
use allocator_core::Strategy;
use std::collections::BTreeSet;
use std::ops::Range;
use workload_gen::import::Sidecar;

/// What is supposed.
#[derive(Clone, Default)]
pub(super) struct Assumptions {
    /// By life: its pool.
    pub pools: Vec<u32>,
    /// Pools whose blocks are never split.
    pub no_split: BTreeSet<u32>,
    /// Runs of entries (the number of the first) that `empty_cache` made, though a flush for the allocation that
    /// follows would have made them too.
    pub flushes: BTreeSet<usize>,
}

/// How a replay ended.
pub(super) struct Trial {
    /// Where it diverged, if it did; at the number of entries if only the end differs.
    pub divergence: Option<Divergence>,
    /// Statistics that agreed at the end.
    pub statistics: usize,
    /// Things inferred.
    pub inferred: u64,
    /// Highest reserved bytes.
    pub reserved_peak: u64,
}

impl Trial {
    fn reached(&self) -> usize {
        self.divergence.as_ref().map_or(usize::MAX, |divergence| divergence.at)
    }
}

/// One more thing to suppose.
enum Change {
    /// What this part of a run gives back is in this pool.
    Pool(Range<usize>, usize, u32),
    /// The pool's blocks are never split.
    NoSplit(u32),
}

/// Replays a recording under the fewest assumptions that make it exact; if none do, under those that come furthest.
pub(super) fn replay<S: Strategy + Clone>(recording: &Recording<'_, S>, sidecar: Option<&Sidecar>) -> Trial {
    if recording.plan.pools.is_empty() {
        let mut search = Search { recording, sidecar, lives: Lives::default(), effort: 0 };
        let first = search.run(&mut Assumptions::default());
        if first.divergence.is_none() {
            return first;
        }
    }
    let lives = Lives::new(recording.plan, recording.capped);
    let pools = lives.lives.iter().map(|life| life.pool.unwrap_or(0)).collect();
    let mut assumed = Assumptions { pools, ..Assumptions::default() };
    let mut search = Search { recording, sidecar, lives, effort: 0 };
    let mut best = search.run(&mut assumed);
    let first = best.reached();
    while search.lives.tell_of_pools
        && let Some((better, trial)) = search.improve(&assumed, &best)
    {
        (assumed, best) = (better, trial);
    }
    if let Some(divergence) = &mut best.divergence
        && divergence.at > first
    {
        divergence.why += &format!("; private pools were guessed, since the replay diverges at entry {first} without");
    }
    best
}

struct Search<'a, S> {
    recording: &'a Recording<'a, S>,
    sidecar: Option<&'a Sidecar>,
    lives: Lives,
    /// Entries replayed so far.
    effort: usize,
}

/// Entries replayed after which no more is guessed: some seconds.
const MAX_EFFORT: usize = 100_000_000;

impl<S: Strategy + Clone> Search<'_, S> {
    /// One replay; a second one if PyTorch flushed less often for allocations than the first did.
    fn run(&mut self, assumed: &mut Assumptions) -> Trial {
        let (trial, surplus) = self.run_once(assumed);
        if surplus.is_empty() {
            return trial;
        }
        let flushed = Assumptions { flushes: surplus, ..assumed.clone() };
        let (second, _) = self.run_once(&flushed);
        if second.divergence.is_some() {
            return trial;
        }
        *assumed = flushed;
        second
    }

    fn run_once(&mut self, assumed: &Assumptions) -> (Trial, BTreeSet<usize>) {
        let mut replay = Replay::new(self.recording, &self.lives, assumed);
        let outcome = replay.run();
        let mut surplus = BTreeSet::new();
        if outcome.is_ok()
            && let Some(recorded) = self.recording.retries
        {
            // Where the limit left room, it is likelier that memory was not short.
            replay.retried.sort_by_key(|&(at, refused)| (!refused, at));
            let count = usize::try_from(replay.retries().saturating_sub(recorded)).unwrap_or(0);
            surplus.extend(replay.retried.iter().take(count).map(|&(at, _)| at));
        }
        let end = self.recording.plan.entries.len();
        let outcome = outcome.and_then(|()| {
            let compared = end::compare(self.recording.plan, &replay.state.strategy, self.sidecar);
            compared.map_err(|(why, replayed)| Divergence { at: end, why, replayed })
        });
        self.effort += replay.state.dev.cursor;
        let trial = Trial {
            statistics: *outcome.as_ref().unwrap_or(&0),
            divergence: outcome.err(),
            inferred: replay.state.inferred,
            reserved_peak: replay.state.dev.reserved_peak,
        };
        (trial, surplus)
    }

    /// The change that moves the divergence furthest, and what it leads to.
    fn improve(&mut self, assumed: &Assumptions, now: &Trial) -> Option<(Assumptions, Trial)> {
        let mut best: Option<(Assumptions, Trial)> = None;
        let mut reached = now.reached();
        for change in self.changes(assumed, now.divergence.as_ref()?) {
            if self.effort > MAX_EFFORT || reached == usize::MAX {
                break;
            }
            let mut changed = assumed.clone();
            match change {
                Change::NoSplit(pool) => drop(changed.no_split.insert(pool)),
                Change::Pool(part, run, pool) => {
                    for &(_, life) in &self.lives.runs[run][part] {
                        changed.pools[life as usize] = pool;
                    }
                }
            }
            let trial = self.run(&mut changed);
            if trial.reached() > reached {
                reached = trial.reached();
                best = Some((changed, trial));
            }
        }
        best
    }

    /// What might be otherwise at a divergence, for the segment that was recorded there and the one that was replayed.
    fn changes(&self, assumed: &Assumptions, divergence: &Divergence) -> Vec<Change> {
        let lives = &self.lives;
        let recorded = (divergence.at..self.recording.plan.entries.len()).find_map(|number| lives.of(number));
        let replayed = divergence.replayed.and_then(|addr| lives.at(divergence.at, addr));
        let unused = assumed.pools.iter().max().map_or(1, |&pool| pool + 1);
        let mut changes = Vec::new();
        for life in BTreeSet::from_iter(recorded.into_iter().chain(replayed)) {
            for (number, run) in lives.runs.iter().enumerate() {
                let Some(at) = run.iter().position(|&(_, other)| other == life) else { continue };
                // The fewest segments first: of guesses that lead equally far, the first is kept.
                for from in (0..=at).rev() {
                    let to = lives.pool_end(run, from);
                    if to <= at {
                        break;
                    }
                    changes.extend((0..=unused).rev().map(|pool| Change::Pool(from..to, number, pool)));
                }
            }
            let pool = assumed.pools[life as usize];
            if pool != 0 && !assumed.no_split.contains(&pool) {
                changes.push(Change::NoSplit(pool));
            }
        }
        changes
    }
}
