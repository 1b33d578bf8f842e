//! The lives of segments: from the entry that makes a segment (or the first that maps memory into an expandable one)
//! to the entry that gives back the last of it. A segment belongs to one pool for its whole life, and so does each
//! block in it: what has to be known of pools, or guessed, is one number for each life.

use super::plan::Plan;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use workload_gen::snapshot::Action;

/// One life.
pub(super) struct Life {
    /// The number of its first entry.
    pub born: usize,
    /// The number of its last entry; the number of entries if it outlives the recording.
    pub died: usize,
    /// Its first address.
    base: u64,
    /// The end of the highest memory that it ever had.
    high: u64,
    /// Bytes that it has.
    bytes: u64,
    expandable: bool,
    /// Whether it is for small blocks.
    small: bool,
    /// The number of its stream.
    pub stream: u32,
    /// Its pool, if a segment at the end of the recording tells it.
    pub pool: Option<u32>,
    /// Blocks in it that are not free.
    blocks: u64,
    /// The runs that give back something of it, and the first place in each.
    pub given_back: Vec<(usize, usize)>,
}

impl Life {
    fn holds(&self, addr: u64) -> bool {
        self.base <= addr && addr < self.high
    }
}

/// Entries that give memory back in a row.
pub(super) struct Run {
    /// The life that each is about.
    pub lives: Vec<u32>,
    /// By place: the end of the longest part from there on that may have been one private pool, which gives back its
    /// small segments before the large ones. The place itself, if that life was in no private pool.
    pub pool_ends: Vec<usize>,
}

/// The lives of a recording.
#[derive(Default)]
pub(super) struct Lives {
    /// By their first entries.
    pub lives: Vec<Life>,
    /// By entry: the life that the entry is about, or [`NONE`].
    of: Vec<u32>,
    /// Runs of entries that give memory back with no other decision between them.
    pub runs: Vec<Run>,
    /// Streams of the segments at the end that are in private pools.
    private_streams: BTreeSet<u32>,
    /// Whether anything tells of private pools: segments of theirs at the end, or memory given back while a segment
    /// without blocks stayed.
    pub tell_of_pools: bool,
}

const NONE: u32 = u32::MAX;

/// Bytes of a small segment, and of a page of an expandable one.
const SMALL_SEGMENT: u64 = 2 << 20;

impl Lives {
    /// Reads them off the entries. `capped`: memory may have run short, so that what is given back before an
    /// allocation need not be all that could be.
    pub(super) fn new(plan: &Plan, capped: bool) -> Lives {
        let mut lives = Lives { of: vec![NONE; plan.entries.len()], ..Lives::default() };
        let mut present: BTreeMap<u64, u32> = BTreeMap::new();
        let mut run: Vec<u32> = Vec::new();
        // How many of the lives that are present have no blocks.
        let mut empty = 0u64;
        for (number, entry) in plan.entries.iter().enumerate() {
            let goes_on = matches!(
                entry.action,
                Action::SegmentFree | Action::SegmentUnmap | Action::FreeCompleted | Action::Snapshot | Action::Unknown
            );
            if !goes_on && !run.is_empty() {
                lives.tell_of_pools |= empty > 0 && (!capped || entry.action == Action::FreeRequested);
                lives.end_run(&mut run);
            }
            let below = present.range(..=entry.addr).next_back().map(|(_, &life)| life);
            let at = below.filter(|&life| lives.lives[life as usize].holds(entry.addr));
            match entry.action {
                Action::SegmentAlloc | Action::SegmentMap => {
                    let expandable = entry.action == Action::SegmentMap;
                    // Growth begins in a gap, or right after the highest memory that there was.
                    let grown = below.filter(|&life| {
                        let life = &lives.lives[life as usize];
                        expandable && life.expandable && entry.addr <= life.high
                    });
                    let high = entry.addr.saturating_add(entry.size);
                    if let Some(number_of_life) = grown {
                        let life = &mut lives.lives[number_of_life as usize];
                        life.bytes = life.bytes.saturating_add(entry.size);
                        life.high = life.high.max(high);
                        lives.of[number] = number_of_life;
                        continue;
                    }
                    lives.of[number] = lives.lives.len() as u32;
                    present.insert(entry.addr, lives.of[number]);
                    empty += 1;
                    lives.lives.push(Life {
                        born: number,
                        died: plan.entries.len(),
                        base: entry.addr,
                        high,
                        bytes: entry.size,
                        expandable,
                        small: entry.size == SMALL_SEGMENT,
                        stream: plan.stream(entry),
                        pool: None,
                        blocks: 0,
                        given_back: Vec::new(),
                    });
                }
                Action::SegmentFree | Action::SegmentUnmap => {
                    let Some(number_of_life) = at else { continue };
                    lives.of[number] = number_of_life;
                    run.push(number_of_life);
                    let life = &mut lives.lives[number_of_life as usize];
                    life.bytes = life.bytes.saturating_sub(entry.size);
                    if life.bytes == 0 {
                        life.died = number;
                        present.remove(&life.base);
                        empty -= u64::from(life.blocks == 0);
                    }
                }
                Action::Alloc => {
                    let Some(number_of_life) = at else { continue };
                    lives.of[number] = number_of_life;
                    let life = &mut lives.lives[number_of_life as usize];
                    empty -= u64::from(life.blocks == 0);
                    life.blocks += 1;
                }
                Action::FreeCompleted => {
                    let Some(number_of_life) = at else { continue };
                    let life = &mut lives.lives[number_of_life as usize];
                    empty += u64::from(life.blocks == 1);
                    life.blocks = life.blocks.saturating_sub(1);
                }
                _ => {}
            }
        }
        if !run.is_empty() {
            lives.tell_of_pools |= empty > 0;
            lives.end_run(&mut run);
        }
        for segment in &plan.segments {
            let below = present.range(..=segment.address).next_back();
            if let Some((_, &life)) = below
                && lives.lives[life as usize].holds(segment.address)
            {
                let life = &mut lives.lives[life as usize];
                life.pool = Some(plan.pool(segment));
                if life.pool > Some(0) {
                    lives.private_streams.insert(life.stream);
                }
            }
        }
        lives.tell_of_pools |= !plan.pools.is_empty();
        let mut runs = std::mem::take(&mut lives.runs);
        for run in &mut runs {
            run.pool_ends = lives.pool_ends(&run.lives);
        }
        lives.runs = runs;
        lives
    }

    fn end_run(&mut self, run: &mut Vec<u32>) {
        for (place, &life) in run.iter().enumerate() {
            let given_back = &mut self.lives[life as usize].given_back;
            if given_back.last().is_none_or(|&(run, _)| run < self.runs.len()) {
                given_back.push((self.runs.len(), place));
            }
        }
        self.runs.push(Run { lives: std::mem::take(run), pool_ends: Vec::new() });
    }

    /// Whether the pool of a life is unknown and may be a private one: private segments that are known are on few
    /// streams, and so are the others.
    fn may_be_private(&self, life: u32) -> bool {
        let life = &self.lives[life as usize];
        life.pool.is_none() && (self.private_streams.is_empty() || self.private_streams.contains(&life.stream))
    }

    /// See [`Run::pool_ends`].
    fn pool_ends(&self, run: &[u32]) -> Vec<usize> {
        let small = |place: usize| self.lives[run[place] as usize].small;
        let mut ends: Vec<usize> = (0..run.len()).collect();
        for place in (0..run.len()).rev().filter(|&place| self.may_be_private(run[place])) {
            let next = place + 1;
            let goes_on = next < run.len() && (!small(next) || small(place));
            ends[place] = if goes_on { ends[next] } else { next };
        }
        ends
    }

    /// From the first entry of any of these lives to after the last of all.
    pub(super) fn span(&self, lives: &[u32]) -> Range<usize> {
        let lives = || lives.iter().map(|&life| &self.lives[life as usize]);
        let born = lives().map(|life| life.born).min().unwrap_or(0);
        born..lives().map(|life| life.died + 1).max().unwrap_or(0)
    }

    /// The life that an entry is about: that of its segment, or of the segment of its block.
    pub(super) fn of(&self, number: usize) -> Option<u32> {
        self.of.get(number).copied().filter(|&life| life != NONE)
    }

    /// The life that holds an address when entry `number` comes.
    pub(super) fn at(&self, number: usize, addr: u64) -> Option<u32> {
        let present = |life: &Life| life.born <= number && number <= life.died && life.holds(addr);
        self.lives.iter().rposition(present).map(|life| life as u32)
    }
}
