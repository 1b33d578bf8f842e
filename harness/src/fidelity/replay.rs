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
pub(super) struct Replay<'r, 'a, S> {
    recording: &'r Recording<'a, S>,
    plan: &'a Plan,
    lives: &'r Lives,
    assumed: &'r Assumptions,
    pub reached: Reached<'a, S>,
}

/// How far a replay has come: what another one, under other assumptions about what follows, can go on from.
#[derive(Clone)]
pub(super) struct Reached<'a, S> {
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

/// A block by its address. Not a [`Block`], as it goes with every copy of the strategy's state.
#[derive(Clone, Copy)]
struct Live {
    slot: u32,
    generation: u32,
    size: u64,
    stream: u32,
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

impl<'a, S: Strategy + Clone> Reached<'a, S> {
    /// The first entry.
    pub(super) fn start(recording: &Recording<'a, S>) -> Reached<'a, S> {
        Reached {
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

    /// The number of the next entry.
    pub(super) fn cursor(&self) -> usize {
        self.state.dev.cursor
    }

    /// How many blocks are live.
    pub(super) fn live(&self) -> usize {
        self.live.len()
    }
}

impl<'r, 'a, S: Strategy + Clone> Replay<'r, 'a, S> {
    /// One that goes on from where another came.
    pub(super) fn new(
        recording: &'r Recording<'a, S>,
        lives: &'r Lives,
        assumed: &'r Assumptions,
        from: Reached<'a, S>,
    ) -> Replay<'r, 'a, S> {
        Replay { recording, plan: recording.plan, lives, assumed, reached: from }
    }

    /// How often the strategy flushed for an allocation.
    pub(super) fn retries(&self) -> i64 {
        let mut retries = 0;
        self.reached.state.strategy.counters(&mut |key, value| {
            if key == "num_alloc_retries" {
                retries = value;
            }
        });
        retries
    }

    /// To the end, or to the first divergence; `on_the_way` sees the state between any two operations.
    pub(super) fn run(&mut self, mut on_the_way: impl FnMut(&Reached<'a, S>)) -> Outcome {
        let contradiction = self.plan.pairs.contradiction.as_ref();
        let at_fault = |(at, why): &(usize, String)| Divergence { at: *at, why: why.clone(), replayed: None };
        let furthest = self.plan.pairs.furthest();
        let end = self.plan.entries.len().min(furthest);
        while self.reached.cursor() < end {
            on_the_way(&self.reached);
            let before = self.reached.cursor();
            // Where the recording contradicts itself, that entry is at fault, not what follows from it.
            self.step().map_err(|divergence| match contradiction {
                Some(contradiction) if divergence.at >= furthest => at_fault(contradiction),
                _ => divergence,
            })?;
            debug_assert!(self.reached.cursor() > before, "each step passes an entry");
        }
        contradiction.map_or(Ok(()), |contradiction| Err(at_fault(contradiction)))
    }

    fn step(&mut self) -> Outcome {
        match self.reached.state.dev.peek() {
            Some((Action::FreeRequested, addr, size)) => self.free(addr, size),
            _ => self.allocation_or_flush(),
        }
    }

    fn diverged<T>(&mut self, done: &str, replayed: Option<u64>) -> Result<T, Divergence> {
        self.reached.state.dev.diverge(done, replayed);
        match self.reached.state.dev.divergence.take() {
            Some(divergence) => Err(divergence),
            None => Err(Divergence { at: self.reached.cursor(), why: done.to_owned(), replayed }),
        }
    }

    fn check(&mut self) -> Outcome {
        match self.reached.state.dev.divergence.take() {
            Some(divergence) => Err(divergence),
            None => Ok(()),
        }
    }

    fn free(&mut self, addr: u64, size: u64) -> Outcome {
        let live = self.reached.live.remove(&addr);
        let block = live.and_then(|live| Block::new(addr, live.slot, live.generation));
        let (Some(live), Some(block)) = (live, block) else {
            return self.diverged("no block is live there", None);
        };
        if live.size != size {
            return self.diverged(&format!("the block has {} bytes", live.size), None);
        }
        if live.stream != self.reached.state.dev.stream() {
            return self.diverged(&format!("the block is on stream {}", live.stream), None);
        }
        let waits = self.plan.pairs.late.binary_search(&self.reached.cursor()).is_ok();
        let State { strategy, dev, .. } = &mut self.reached.state;
        if waits {
            let ticket = dev.wait(addr, size, live.stream);
            if let Err(error) = strategy.record_stream(dev, &block, ticket) {
                return self.diverged(&error.to_string(), None);
            }
        }
        let State { strategy, dev, .. } = &mut self.reached.state;
        dev.advance();
        if let Err(error) = strategy.free(dev, block) {
            return self.diverged(&error.to_string(), None);
        }
        self.check()?;
        if !waits {
            // The free had nothing to wait for: its completion is the next entry.
            if self.reached.state.dev.peek() != Some((Action::FreeCompleted, addr, size)) {
                return self.diverged(&format!("free_completed of {size} bytes at {addr:#x}"), None);
            }
            self.reached.state.dev.advance();
        }
        Ok(())
    }

    /// Entries up to the next `alloc` or `oom` are one allocation, unless something else comes first: then they are
    /// a flush.
    fn allocation_or_flush(&mut self) -> Outcome {
        let mut given_back = false;
        let start = self.reached.cursor();
        let mut at = start;
        while let Some(entry) = self.plan.entries.get(at) {
            match entry.action {
                Action::SegmentFree | Action::SegmentUnmap => given_back = true,
                Action::FreeCompleted => {
                    if at == start && !self.reached.state.dev.waits(entry.addr, entry.size) {
                        return self.diverged("no free waits there", None);
                    }
                }
                _ => break,
            }
            at = self.plan.next(at + 1);
        }
        let Some(wanted) = self.wanted(at)? else { return self.flush(at) };
        if !given_back {
            return self.allocate(&wanted);
        }
        if !self.recording.capped {
            return self.flush(at);
        }
        let saved = self.reached.state.clone();
        if self.assumed.flushes.contains(&start) {
            if self.flush(at).is_ok() && self.allocate(&wanted).is_ok() {
                return Ok(());
            }
            self.reached.state = saved;
            return self.retry(start, at, &wanted);
        }
        if self.retry(start, at, &wanted).is_ok() {
            return Ok(());
        }
        self.reached.state = saved;
        self.flush(at)
    }

    /// An allocation that gives back the segments between `start` and `end` before it gets one.
    fn retry(&mut self, start: usize, end: usize, wanted: &Wanted) -> Outcome {
        self.release_pools(end)?;
        self.reached.state.dev.refused = false;
        let counted = self.recording.retries.map(|_| self.retries());
        self.allocate(wanted)?;
        if counted.is_some_and(|before| before < self.retries()) {
            self.reached.retried.push((start, self.reached.state.dev.refused));
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
                    if let Some((at, why)) = &self.plan.pairs.contradiction
                        && *at == number
                    {
                        // What is wrong there would show at the segment before it.
                        return Err(Divergence { at: number, why: why.clone(), replayed: None });
                    }
                    let stream = StreamId(self.plan.stream(entry));
                    let others = |&at: &usize| {
                        let part = &self.plan.entries[at];
                        matches!(part.action, Action::SegmentAlloc | Action::SegmentMap)
                            && self.plan.stream(part) != stream.0
                    };
                    if let Some(at) = (at..number).find(others) {
                        let why = "the segment is on another stream than the allocation after it".to_owned();
                        return Err(Divergence { at, why, replayed: None });
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
        let start = self.reached.cursor();
        loop {
            let before = self.reached.cursor();
            let pool = match (before..end).find(|&number| self.gives_back(number)) {
                Some(number) => self.pool(number),
                None if before == start => 0,
                // Frees that complete after it are the next allocation's.
                None => return Ok(()),
            };
            let emptied = if pool == 0 {
                let State { strategy, dev, inferred, .. } = &mut self.reached.state;
                *inferred += 1;
                strategy.trim(dev, 0).map(drop).map_err(|error| error.to_string())
            } else {
                self.release(pool).and_then(|()| self.control(Control::PoolEmpty(PoolId(pool))))
            };
            self.check()?;
            if let Err(error) = emptied {
                return self.diverged(&error, None);
            }
            if self.reached.cursor() == before {
                return self.diverged("no flush gives this back", None);
            }
        }
    }

    fn gives_back(&self, number: usize) -> bool {
        matches!(self.plan.entries[number].action, Action::SegmentFree | Action::SegmentUnmap)
    }

    /// A private pool's segments go back only once nobody uses the pool.
    fn release_pools(&mut self, end: usize) -> Outcome {
        for number in self.reached.cursor()..end {
            if self.gives_back(number)
                && let Err(error) = self.release(self.pool(number))
            {
                return self.diverged(&error, None);
            }
        }
        Ok(())
    }

    fn release(&mut self, pool: u32) -> Result<(), String> {
        if !self.reached.state.pools.remove(&pool) {
            return Ok(());
        }
        self.reached.state.inferred += 1;
        self.control(Control::PoolRelease(PoolId(pool)))
    }

    fn control(&mut self, what: Control<'_>) -> Result<(), String> {
        let State { strategy, dev, .. } = &mut self.reached.state;
        strategy.control(dev, what).map_err(|error: ControlError| error.to_string())
    }

    fn allocate(&mut self, wanted: &Wanted) -> Outcome {
        let pool = self.pool(wanted.at);
        if pool != 0 && self.reached.state.pools.insert(pool) {
            let mut made = self.control(Control::PoolCreate(PoolId(pool)));
            if made.is_ok() && self.assumed.no_split.contains(&pool) {
                self.reached.state.inferred += 1;
                made = self.control(Control::PoolNoSplit(PoolId(pool)));
            }
            if let Err(error) = made {
                return self.diverged(&error, None);
            }
        }
        let request = Request::new(wanted.size, wanted.stream).in_pool(PoolId(pool));
        let State { strategy, dev, .. } = &mut self.reached.state;
        let answer = strategy.allocate(dev, request);
        self.check()?;
        match answer {
            Ok(block) => {
                let done = format!("alloc of {} bytes at {:#x}", wanted.size, block.ptr());
                let recorded = self.plan.entries[wanted.at];
                let is_recorded = self.reached.cursor() == wanted.at && wanted.served && block.ptr() == recorded.addr;
                if !is_recorded || block.is_empty() || self.reached.live.contains_key(&block.ptr()) {
                    return self.diverged(&done, Some(block.ptr()));
                }
                self.reached.state.dev.advance();
                let is_born = |segment: usize| self.lives.of(segment).map(|life| self.lives.lives[life as usize].born);
                if pool != 0 && wanted.segment.is_some_and(|segment| is_born(segment) == Some(segment)) {
                    self.reached.state.inferred += 1;
                }
                let live = Live {
                    slot: block.slot(),
                    generation: block.generation(),
                    size: wanted.size,
                    stream: wanted.stream.0,
                };
                self.reached.live.insert(block.ptr(), live);
                Ok(())
            }
            Err(AllocError::OutOfMemory) if self.reached.cursor() == wanted.at && !wanted.served => {
                self.reached.state.dev.advance();
                Ok(())
            }
            Err(error) => self.diverged(&error.to_string(), None),
        }
    }
}
