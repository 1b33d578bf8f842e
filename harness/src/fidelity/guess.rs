//! What a recording does not tell and its replay has to suppose: private pools that left no trace, and which of the
//! segments given back right before an allocation were given back by `empty_cache`.
//!
//! Nothing is supposed while the replay agrees without it. Pools are guessed only if something tells of any, only on
//! the streams of those that are known, and in one shape only: segments that a run of entries gives back in a row,
//! small ones first, were those of one pool. At a divergence this is tried for every run that gives back a segment
//! which takes part in it. What carries the replay furthest is kept, until it reaches the end or nothing helps: a
//! guess that does not lead to the end, the state there and its statistics makes no recording exact.
//!
//! A segment's pool matters from its first entry on, so a replay that tries one goes on from a mark before that: a
//! copy of the state, of which few are kept. The work is bounded, as a hostile recording can ask for any amount.

use super::changes::{Change, Ends, Pools, changes, segments_at};
use super::end;
use super::lives::Lives;
use super::plan::MAX_FREE_LISTS;
use super::playback::Divergence;
use super::replay::{Reached, Recording, Replay};
use allocator_core::Strategy;
use std::collections::BTreeSet;
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

/// Replays a recording under the fewest assumptions that make it exact; if none do, under those that come furthest.
pub(super) fn replay<S: Strategy + Clone>(recording: &Recording<'_, S>, sidecar: Option<&Sidecar>) -> Trial {
    let mut without = None;
    if recording.plan.pools.is_empty() {
        let trial = Search::new(recording, sidecar, &Lives::default()).run(&Assumptions::default(), 0);
        if trial.divergence.is_none() {
            return trial;
        }
        without = Some(trial);
    }
    let lives = Lives::new(recording.plan, recording.capped);
    let pools = lives.lives.iter().map(|life| life.pool.unwrap_or(0)).collect();
    let mut assumed = Assumptions { pools, ..Assumptions::default() };
    let mut search = Search::new(recording, sidecar, &lives);
    let mut best = without.unwrap_or_else(|| search.run(&assumed, 0));
    let first = best.reached();
    while lives.tell_of_pools
        && let Some((change, trial)) = search.improve(&assumed, &best)
    {
        search.adopt(&mut assumed, &change);
        best = trial;
    }
    if let Some(divergence) = &mut best.divergence {
        if divergence.at > first {
            let why = format!("; private pools were guessed, since the replay diverges at entry {first} without");
            divergence.why += &why;
        }
        if search.effort >= MAX_EFFORT {
            divergence.why += "; guesses at more of them were given up, as there are too many";
        }
    }
    best
}

struct Search<'r, 'a, S> {
    recording: &'r Recording<'a, S>,
    sidecar: Option<&'r Sidecar>,
    lives: &'r Lives,
    /// States under what is supposed so far, by their entries. The first is the start.
    marks: Vec<Reached<'a, S>>,
    /// Entries replayed so far, and other work in such units.
    effort: usize,
}

/// The effort after which no more is guessed: half a minute at most.
const MAX_EFFORT: usize = 100_000_000;

/// Entries from one mark to the next, at least.
const MARK_EVERY: usize = 512;

/// What the copy of a stream's free lists in a pool costs, in entries replayed.
const COPY_EFFORT: usize = 200;

/// The most that all marks may cost together: about a gigabyte.
const MAX_MARKS: usize = 800_000;

impl<'r, 'a, S: Strategy + Clone> Search<'r, 'a, S> {
    fn new(recording: &'r Recording<'a, S>, sidecar: Option<&'r Sidecar>, lives: &'r Lives) -> Search<'r, 'a, S> {
        Search { recording, sidecar, lives, marks: vec![Reached::start(recording)], effort: 0 }
    }

    /// One replay; a second one if PyTorch flushed less often for allocations than the first did. Up to entry `from`,
    /// the marks hold under these assumptions.
    fn run(&mut self, assumed: &Assumptions, from: usize) -> Trial {
        let (trial, surplus) = self.run_once(assumed, from);
        let Some(&first) = surplus.first() else { return trial };
        let flushed = Assumptions { flushes: surplus, ..assumed.clone() };
        let (second, _) = self.run_once(&flushed, from.min(first));
        if second.divergence.is_none() { second } else { trial }
    }

    fn run_once(&mut self, assumed: &Assumptions, from: usize) -> (Trial, BTreeSet<usize>) {
        let plan = self.recording.plan;
        let mark = self.marks.iter().rfind(|mark| mark.cursor() <= from).unwrap_or(&self.marks[0]);
        let start = mark.cursor();
        let mut replay = Replay::new(self.recording, self.lives, assumed, mark.clone());
        let outcome = replay.run(|_| {});
        let mut surplus = BTreeSet::new();
        if outcome.is_ok()
            && let Some(recorded) = self.recording.retries
        {
            let count = usize::try_from(replay.retries().saturating_sub(recorded)).unwrap_or(0);
            // Where the limit left room, it is likelier that memory was not short.
            let retried = &mut replay.reached.retried;
            retried.sort_by_key(|&(at, refused)| (!refused, at));
            surplus.extend(retried.iter().take(count).map(|&(at, _)| at));
        }
        let state = &replay.reached.state;
        self.effort += state.dev.cursor - start;
        let outcome = outcome.and_then(|()| {
            let compared = end::compare(plan, &state.strategy, self.sidecar);
            compared.map_err(|(why, replayed)| Divergence { at: plan.entries.len(), why, replayed })
        });
        let trial = Trial {
            statistics: *outcome.as_ref().unwrap_or(&0),
            divergence: outcome.err(),
            inferred: state.inferred,
            reserved_peak: state.dev.reserved_peak,
        };
        (trial, surplus)
    }

    /// The change that moves the divergence furthest, and what it leads to.
    fn improve(&mut self, assumed: &Assumptions, now: &Trial) -> Option<(Change, Trial)> {
        let divergence = now.divergence.as_ref()?;
        let pools = Pools::new(self.lives, assumed);
        self.effort += self.lives.lives.len() / 8;
        let free_lists = self.recording.plan.stream_count() + pools.at_once;
        if free_lists >= MAX_FREE_LISTS {
            self.effort = MAX_EFFORT;
            return None;
        }
        let copy = free_lists * COPY_EFFORT;
        self.set_marks(assumed, copy);
        let segments = segments_at(self.recording.plan, self.lives, divergence);
        // Pools as large as they can be come first: they are fewer.
        [Ends::Last, Ends::Others].into_iter().find_map(|ends| {
            let changes = changes(self.lives, assumed, &pools, &segments, ends);
            self.best_of(changes, assumed, now, copy)
        })
    }

    fn best_of(
        &mut self,
        changes: impl Iterator<Item = Change>,
        assumed: &Assumptions,
        now: &Trial,
        copy: usize,
    ) -> Option<(Change, Trial)> {
        let furthest = self.recording.plan.pairs.furthest();
        let mut best: Option<(Change, Trial)> = None;
        let mut reached = now.reached();
        for change in changes {
            if self.effort >= MAX_EFFORT || reached >= furthest {
                break;
            }
            let mut changed = assumed.clone();
            let from = change.apply(&mut changed, self.lives);
            self.effort += copy + self.lives.lives.len() / 64;
            let trial = self.run(&changed, from);
            if trial.reached() > reached {
                reached = trial.reached();
                best = Some((change, trial));
            }
        }
        best
    }

    fn adopt(&mut self, assumed: &mut Assumptions, change: &Change) {
        let from = change.apply(assumed, self.lives);
        self.marks.retain(|mark| mark.cursor() <= from);
    }

    /// Marks the way from the last mark to the divergence, densest at its end: between two marks lies less than
    /// between the second of them and the end.
    fn set_marks(&mut self, assumed: &Assumptions, copy: usize) {
        let Some(last) = self.marks.last().cloned() else { return };
        let start = last.cursor();
        let mut replay = Replay::new(self.recording, self.lives, assumed, last);
        let marks = &mut self.marks;
        let mut next = start + MARK_EVERY;
        // Where it ends is known already.
        let _ = replay.run(|reached| {
            if reached.cursor() < next || marks.len() * (copy + reached.live()) > MAX_MARKS {
                return;
            }
            marks.push(reached.clone());
            next = reached.cursor() + MARK_EVERY + copy + reached.live();
            for middle in (1..marks.len() - 1).rev() {
                let (before, after) = (marks[middle - 1].cursor(), marks[middle + 1].cursor());
                if after - before < reached.cursor() - after {
                    marks.remove(middle);
                }
            }
        });
        self.effort += replay.reached.cursor() - start;
    }
}
