//! What might be otherwise than supposed when a replay diverges.

use super::guess::Assumptions;
use super::lives::{Lives, Run};
use super::plan::Plan;
use super::playback::Divergence;
use std::collections::{BTreeMap, BTreeSet};
use std::iter::once;
use std::ops::Range;

/// One more thing to suppose.
pub(super) enum Change {
    /// What this part of a run gives back is in this pool.
    Pool { run: usize, part: Range<usize>, pool: u32 },
    /// The pool's blocks are never split.
    NoSplit(u32),
}

impl Change {
    /// Supposes it; returns the first entry that it can matter to.
    pub(super) fn apply(&self, assumed: &mut Assumptions, lives: &Lives) -> usize {
        match self {
            Change::Pool { run, part, pool } => {
                let part = &lives.runs[*run].lives[part.clone()];
                for &life in part {
                    assumed.pools[life as usize] = *pool;
                }
                lives.span(part).start
            }
            Change::NoSplit(pool) => {
                assumed.no_split.insert(*pool);
                let in_it = (0..).zip(&assumed.pools).filter(|(_, other)| *other == pool).map(|(life, _)| life);
                lives.span(&in_it.collect::<Vec<u32>>()).start
            }
        }
    }
}

/// When the segments of each pool are there.
pub(super) struct Pools {
    /// By pool: from the first entry of any of its segments to the last.
    spans: Vec<Range<usize>>,
    /// How many pairs of a private pool and a stream are there at the same time, at most.
    pub at_once: usize,
}

impl Pools {
    pub(super) fn new(lives: &Lives, assumed: &Assumptions) -> Pools {
        let mut pairs: BTreeMap<(u32, u32), Vec<u32>> = BTreeMap::new();
        for ((life, &pool), number) in lives.lives.iter().zip(&assumed.pools).zip(0..) {
            pairs.entry((pool, life.stream)).or_default().push(number);
        }
        let mut spans: Vec<Range<usize>> = Vec::new();
        let mut borders: Vec<(usize, isize)> = Vec::new();
        for ((pool, _), members) in pairs {
            let span = lives.span(&members);
            spans.resize(pool as usize + 1, 0..0);
            let whole = &mut spans[pool as usize];
            let start = if whole.end == 0 { span.start } else { whole.start.min(span.start) };
            *whole = start..whole.end.max(span.end);
            if pool != 0 {
                borders.extend([(span.start, 1), (span.end, -1)]);
            }
        }
        borders.sort_unstable();
        let mut there = 0;
        let at_once = borders.iter().map(|(_, change)| {
            there += change;
            there
        });
        Pools { at_once: at_once.max().unwrap_or(0) as usize, spans }
    }

    /// The pools that some lives may be in: an unused one, one that is not there at that time but known not to split,
    /// those that are there, and the default pool. With any other it would be as with one of the first two.
    fn of(&self, lives: &Lives, part: &[u32], assumed: &Assumptions) -> Vec<u32> {
        let span = lives.span(part);
        let unused = self.spans.len() as u32;
        let (there, others): (Vec<u32>, Vec<u32>) = (1..unused).rev().partition(|&pool| {
            let other = &self.spans[pool as usize];
            other.start < span.end && span.start < other.end
        });
        let unsplit = others.into_iter().find(|pool| assumed.no_split.contains(pool));
        once(unused).chain(unsplit).chain(there).chain(once(0)).collect()
    }
}

/// The lives of the segments that take part in a divergence: the one that was recorded, and the one that the strategy
/// took or gave back instead.
pub(super) fn segments_at(plan: &Plan, lives: &Lives, divergence: &Divergence) -> BTreeSet<u32> {
    let recorded = (divergence.at..plan.entries.len()).find_map(|number| lives.of(number));
    let replayed = divergence.replayed.and_then(|addr| lives.at(divergence.at, addr));
    recorded.into_iter().chain(replayed).collect()
}

/// How far the parts of runs go that are tried as one pool.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    /// As far as they can.
    Last,
    /// Less far.
    Others,
}

/// What might be otherwise for these segments, the fewest segments first: of guesses that lead equally far, the first
/// is kept.
pub(super) fn changes(
    lives: &Lives,
    assumed: &Assumptions,
    pools: &Pools,
    segments: &BTreeSet<u32>,
    ends: Ends,
) -> impl Iterator<Item = Change> {
    segments.iter().flat_map(move |&life| {
        let given_back = lives.lives[life as usize].given_back.iter();
        let in_runs = given_back.flat_map(move |&(run, place)| {
            let Run { lives: given, pool_ends } = &lives.runs[run];
            let starts = (0..=place).rev().take_while(move |&from| pool_ends[from] > place);
            let parts = starts.flat_map(move |from| {
                let last = pool_ends[from];
                let ends = if ends == Ends::Last { last..last + 1 } else { place + 1..last };
                ends.rev().map(move |to| from..to)
            });
            parts.flat_map(move |part| {
                let pools = pools.of(lives, &given[part.clone()], assumed).into_iter();
                pools.map(move |pool| Change::Pool { run, part: part.clone(), pool })
            })
        });
        let pool = assumed.pools[life as usize];
        let splits = ends == Ends::Last && pool != 0 && !assumed.no_split.contains(&pool);
        in_runs.chain(splits.then_some(Change::NoSplit(pool)))
    })
}
