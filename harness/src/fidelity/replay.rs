//! Makes the calls that a recording implies, one operation at a time.

use super::guess::Assumptions;
use super::lives::Lives;
use super::plan::Plan;
use super::playback::{Divergence, Playback};
use allocator_core::{AllocError, Block, Control, ControlError, PoolId, Request, Strategy, StreamId};
use std::collections::{BTreeSet, HashMap};
use workload_gen::snapshot::Action;

/// What stays the same over all replays of a recording.
pub(super) struct Recording<'a, S> {
    pub plan: &'a Plan,
    /// The strategy before the first call.
    pub start: S,
    pub device_bytes: u64,
    /// Whether memory may have run short, so that segments given back may belong to an allocation.
    pub capped: bool,
    /// How often PyTorch flushed for an allocation, if that is known.
    pub retries: Option<i64>,
}

/// A strategy on its way through a recording.
pub(super) struct Replay<'a, S> {
    recording: &'a Recording<'a, S>,
    plan: &'a Plan,
    lives: &'a Lives,
    assumed: &'a Assumptions,
    pub state: State<'a, S>,
    live: HashMap<u64, Live>,
    /// Runs of segments given back that were taken as part of an allocation which flushed: the number of the first
    /// entry, and whether the device refused memory (otherwise the limit did).
    pub retried: Vec<(usize, bool)>,
}

/// What an attempt at an allocation changes.
#[derive(Clone)]
pub(super) struct State<'a, S> {
    pub strategy: S,
    pub dev: Playback<'a>,
    /// Private pools that are in use.
    pools: BTreeSet<u32>,
    /// Flushes, segments in private pools, pools that never split, and pools given up.
    pub inferred: u64,
}

struct Live {
    block: Block,
    size: u64,
}

/// What an allocation is expected to end with.
struct Wanted {
    /// The number of the `alloc` or `oom` entry.
    at: usize,
    /// The number of the entry that gives it a segment, if one does.
    segment: Option<usize>,
    size: u64,
    stream: StreamId,
    served: bool,
}

type Outcome = Result<(), Divergence>;

impl<'a, S: Strategy + Clone> Replay<'a, S> {
    pub(super) fn new(recording: &'a Recording<'a, S>, lives: &'a Lives, assumed: &'a Assumptions) -> Replay<'a, S> {
        Replay {
            recording,
            plan: recording.plan,
            lives,
            assumed,
            state: State {
                strategy: recording.start.clone(),
                dev: Playback::new(recording.plan, recording.device_bytes),
                pools: BTreeSet::new(),
                inferred: 0,
            },
            live: HashMap::new(),
            retried: Vec::new(),
        }
    }

    /// How often the strategy flushed for an allocation.
    pub(super) fn retries(&self) -> i64 {
        let mut retries = 0;
        self.state.strategy.counters(&mut |key, value| {
            if key == "num_alloc_retries" {
                retries = value;
            }
        });
        retries
    }

    /// To the end, or to the first divergence.
    pub(super) fn run(&mut self) -> Outcome {
        let contradiction = self.plan.contradictions.iter().next();
        let stop = contradiction.map_or(usize::MAX, |(&at, _)| at);
        let end = self.plan.entries.len();
        while self.state.dev.cursor < end && self.state.dev.cursor < stop {
            let before = self.state.dev.cursor;
            let outcome = self.step();
            // Where the recording contradicts itself, that entry is at fault, not what follows from it.
            match (outcome, contradiction) {
                (Err(divergence), Some((&at, why))) if divergence.at >= at => {
                    return Err(Divergence { at, why: why.clone(), replayed: None });
                }
                (outcome, _) => outcome?,
            }
            debug_assert!(self.state.dev.cursor > before, "each step passes an entry");
        }
        match contradiction {
            Some((&at, why)) => Err(Divergence { at, why: why.clone(), replayed: None }),
            None => Ok(()),
        }
    }

    fn step(&mut self) -> Outcome {
        match self.state.dev.peek() {
            Some((Action::FreeRequested, addr, size)) => self.free(addr, size),
            _ => self.allocation_or_flush(),
        }
    }

    fn diverged<T>(&mut self, done: &str, replayed: Option<u64>) -> Result<T, Divergence> {
        self.state.dev.diverge(done, replayed);
        match self.state.dev.divergence.take() {
            Some(divergence) => Err(divergence),
            None => Err(Divergence { at: self.state.dev.cursor, why: done.to_owned(), replayed }),
        }
    }

    fn check(&mut self) -> Outcome {
        match self.state.dev.divergence.take() {
            Some(divergence) => Err(divergence),
            None => Ok(()),
        }
    }

    fn free(&mut self, addr: u64, size: u64) -> Outcome {
        let Some(Live { block, size: requested }) = self.live.remove(&addr) else {
            return self.diverged("no block is live there", None);
        };
        if requested != size {
            return self.diverged(&format!("the block has {requested} bytes"), None);
        }
        let waits = self.plan.late.binary_search(&self.state.dev.cursor).is_ok();
        let State { strategy, dev, .. } = &mut self.state;
        if waits {
            let ticket = dev.wait(addr, size);
            if let Err(error) = strategy.record_stream(dev, &block, ticket) {
                return self.diverged(&error.to_string(), None);
            }
        }
        let State { strategy, dev, .. } = &mut self.state;
        dev.advance();
        if let Err(error) = strategy.free(dev, block) {
            return self.diverged(&error.to_string(), None);
        }
        self.check()?;
        if !waits {
            // The free had nothing to wait for: its completion is the next entry.
            if self.state.dev.peek() != Some((Action::FreeCompleted, addr, size)) {
                return self.diverged(&format!("free_completed of {size} bytes at {addr:#x}"), None);
            }
            self.state.dev.advance();
        }
        Ok(())
    }

    /// Entries up to the next `alloc` or `oom` are one allocation, unless something else comes first: then they are
    /// a flush.
    fn allocation_or_flush(&mut self) -> Outcome {
        let mut given_back = false;
        let start = self.state.dev.cursor;
        let mut at = start;
        while let Some(entry) = self.plan.entries.get(at) {
            match entry.action {
                Action::SegmentFree | Action::SegmentUnmap => given_back = true,
                Action::FreeCompleted => {
                    if at == start && !self.state.dev.waits(entry.addr, entry.size) {
                        return self.diverged("no free waits there", None);
                    }
                }
                _ => break,
            }
            at = self.plan.next(at + 1);
        }
        let Some(wanted) = self.wanted(at)? else { return self.flush(at) };
        if let Some(why) = self.plan.contradictions.get(&wanted.at) {
            // A wrong size would show at the segment before it.
            return Err(Divergence { at: wanted.at, why: why.clone(), replayed: None });
        }
        if !given_back {
            return self.allocate(&wanted);
        }
        if !self.recording.capped {
            return self.flush(at);
        }
        let saved = self.state.clone();
        if self.assumed.flushes.contains(&start) {
            if self.flush(at).is_ok() && self.allocate(&wanted).is_ok() {
                return Ok(());
            }
            self.state = saved;
            return self.retry(start, at, &wanted);
        }
        if self.retry(start, at, &wanted).is_ok() {
            return Ok(());
        }
        self.state = saved;
        self.flush(at)
    }

    /// An allocation that gives back the segments between `start` and `end` before it gets one.
    fn retry(&mut self, start: usize, end: usize, wanted: &Wanted) -> Outcome {
        self.release_pools(end)?;
        self.state.dev.refused = false;
        let counted = self.recording.retries.map(|_| self.retries());
        self.allocate(wanted)?;
        if counted.is_some_and(|before| before < self.retries()) {
            self.retried.push((start, self.state.dev.refused));
        }
        Ok(())
    }

    /// The allocation whose segment or block is the entry at `at`, if it is one.
    fn wanted(&mut self, at: usize) -> Result<Option<Wanted>, Divergence> {
        let (mut number, mut segment) = (at, None);
        while let Some(entry) = self.plan.entries.get(number) {
            match entry.action {
                // A request gets at most one segment, which may grow in several steps.
                Action::SegmentAlloc if segment.is_none() => segment = Some(number),
                Action::SegmentMap => segment = segment.or(Some(number)),
                // After growth that did not suffice, memory is given back and asked for again.
                Action::SegmentFree | Action::SegmentUnmap | Action::FreeCompleted if segment.is_some() => {}
                Action::Alloc | Action::Oom => {
                    let stream = StreamId(self.plan.stream(entry));
                    if let Some(number) = segment
                        && self.plan.stream(&self.plan.entries[number]) != stream.0
                    {
                        let why = "the segment is on another stream than the allocation after it".to_owned();
                        return Err(Divergence { at: number, why, replayed: None });
                    }
                    let served = entry.action == Action::Alloc;
                    return Ok(Some(Wanted { at: number, segment, size: entry.size, stream, served }));
                }
                _ => break,
            }
            number = self.plan.next(number + 1);
        }
        match segment {
            None => Ok(None),
            Some(_) => {
                let why = "an alloc or oom should follow a segment that was asked for".to_owned();
                Err(Divergence { at: number, why, replayed: None })
            }
        }
    }

    /// The pool of the segment that an entry gives or gives back, or of the block that it hands out.
    fn pool(&self, number: usize) -> u32 {
        self.lives.of(number).map_or(0, |life| self.assumed.pools[life as usize])
    }

    /// What was given back before the entry at `end`: by `empty_cache`, or with private pools that are given up.
    fn flush(&mut self, end: usize) -> Outcome {
        let start = self.state.dev.cursor;
        loop {
            let before = self.state.dev.cursor;
            let pool = match (before..end).find(|&number| self.gives_back(number)) {
                Some(number) => self.pool(number),
                None if before == start => 0,
                // Frees that complete after it are the next allocation's.
                None => return Ok(()),
            };
            let emptied = if pool == 0 {
                let State { strategy, dev, inferred, .. } = &mut self.state;
                *inferred += 1;
                strategy.trim(dev, 0).map(drop).map_err(|error| error.to_string())
            } else {
                self.release(pool).and_then(|()| self.control(Control::PoolEmpty(PoolId(pool))))
            };
            self.check()?;
            if let Err(error) = emptied {
                return self.diverged(&error, None);
            }
            if self.state.dev.cursor == before {
                return self.diverged("no flush gives this back", None);
            }
        }
    }

    fn gives_back(&self, number: usize) -> bool {
        matches!(self.plan.entries[number].action, Action::SegmentFree | Action::SegmentUnmap)
    }

    /// A private pool's segments go back only once nobody uses the pool.
    fn release_pools(&mut self, end: usize) -> Outcome {
        for number in self.state.dev.cursor..end {
            if self.gives_back(number)
                && let Err(error) = self.release(self.pool(number))
            {
                return self.diverged(&error, None);
            }
        }
        Ok(())
    }

    fn release(&mut self, pool: u32) -> Result<(), String> {
        if !self.state.pools.remove(&pool) {
            return Ok(());
        }
        self.state.inferred += 1;
        self.control(Control::PoolRelease(PoolId(pool)))
    }

    fn control(&mut self, what: Control<'_>) -> Result<(), String> {
        let State { strategy, dev, .. } = &mut self.state;
        strategy.control(dev, what).map_err(|error: ControlError| error.to_string())
    }

    fn allocate(&mut self, wanted: &Wanted) -> Outcome {
        let pool = self.pool(wanted.at);
        if pool != 0 && self.state.pools.insert(pool) {
            let mut made = self.control(Control::PoolCreate(PoolId(pool)));
            if made.is_ok() && self.assumed.no_split.contains(&pool) {
                self.state.inferred += 1;
                made = self.control(Control::PoolNoSplit(PoolId(pool)));
            }
            if let Err(error) = made {
                return self.diverged(&error, None);
            }
        }
        let request = Request::new(wanted.size, wanted.stream).in_pool(PoolId(pool));
        let State { strategy, dev, .. } = &mut self.state;
        let answer = strategy.allocate(dev, request);
        self.check()?;
        match answer {
            Ok(block) => {
                let done = format!("alloc of {} bytes at {:#x}", wanted.size, block.ptr());
                let recorded = self.plan.entries[wanted.at];
                if self.state.dev.cursor != wanted.at || !wanted.served || block.ptr() != recorded.addr {
                    return self.diverged(&done, Some(block.ptr()));
                }
                self.state.dev.advance();
                let is_born = |segment: usize| self.lives.of(segment).map(|life| self.lives.lives[life as usize].born);
                if pool != 0 && wanted.segment.is_some_and(|segment| is_born(segment) == Some(segment)) {
                    self.state.inferred += 1;
                }
                if self.live.insert(block.ptr(), Live { block, size: wanted.size }).is_some() {
                    return self.diverged(&done, None);
                }
                Ok(())
            }
            Err(AllocError::OutOfMemory) if self.state.dev.cursor == wanted.at && !wanted.served => {
                self.state.dev.advance();
                Ok(())
            }
            Err(error) => self.diverged(&error.to_string(), None),
        }
    }
}
