//! Makes the calls that a recording implies, one operation at a time.

use super::Conditions;
use super::plan::Plan;
pub(super) use super::playback::Divergence;
use super::playback::Playback;
use allocator_core::{
    AllocError, Block, ConfigError, Control, Device, DeviceInfo, PoolId, Request, Strategy, StreamId,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use workload_gen::import::Sidecar;
use workload_gen::snapshot::Action;

/// A strategy on its way through a recording.
pub(super) struct Replay<'a, S> {
    plan: &'a Plan,
    pub strategy: S,
    dev: Playback<'a>,
    /// Whether memory may have run short, so that segments given back may belong to an allocation.
    capped: bool,
    live: HashMap<u64, Live>,
    late: BTreeSet<usize>,
    tickets: u32,
    /// Pools that were made for the strategy.
    pools: BTreeSet<u32>,
    /// The private pool of each segment or range that is in one.
    owners: BTreeMap<u64, u32>,
    flushes: u64,
    pool_inferences: u64,
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
    pub(super) fn new(
        plan: &'a Plan,
        conditions: &Conditions,
        sidecar: Option<&Sidecar>,
        make: impl FnOnce(&str, &DeviceInfo) -> Result<S, ConfigError>,
    ) -> Result<Replay<'a, S>, ConfigError> {
        let mut dev = Playback::new(plan, conditions.device_bytes);
        let mut strategy = make(&conditions.conf, &dev.info())?;
        if let Some(limit) = conditions.limit {
            let told = strategy.control(&mut dev, Control::Limit(Some(limit)));
            told.map_err(|error| ConfigError(format!("a limit of {limit} bytes: {error}")))?;
        }
        let retries = sidecar.and_then(|sidecar| sidecar.stats.get("num_alloc_retries")).is_some_and(|&n| n > 0);
        Ok(Replay {
            capped: conditions.limit.is_some() || retries || plan.has_ooms,
            late: plan.late.iter().copied().collect(),
            plan,
            strategy,
            dev,
            live: HashMap::new(),
            tickets: 0,
            pools: BTreeSet::new(),
            owners: BTreeMap::new(),
            flushes: 0,
            pool_inferences: 0,
        })
    }

    pub(super) fn inferred(&self) -> u64 {
        self.flushes + self.pool_inferences
    }

    pub(super) fn reserved_peak(&self) -> u64 {
        self.dev.reserved_peak
    }

    /// To the end, or to the first divergence.
    pub(super) fn run(&mut self) -> Outcome {
        let contradiction = self.plan.contradictions.iter().next();
        let stop = contradiction.map_or(usize::MAX, |(&at, _)| at);
        while self.dev.cursor < self.plan.entries.len() && self.dev.cursor < stop {
            let before = self.dev.cursor;
            let outcome = self.step();
            // Where the recording contradicts itself, that entry is at fault, not what follows from it.
            match (outcome, contradiction) {
                (Err(divergence), Some((&at, why))) if divergence.at >= at => {
                    return Err(Divergence { at, why: why.clone() });
                }
                (outcome, _) => outcome?,
            }
            debug_assert!(self.dev.cursor > before, "each step passes an entry");
        }
        match contradiction {
            Some((&at, why)) => Err(Divergence { at, why: why.clone() }),
            None => Ok(()),
        }
    }

    fn step(&mut self) -> Outcome {
        match self.dev.peek() {
            Some((Action::FreeRequested, addr, size)) => self.free(addr, size),
            _ => self.allocation_or_flush(),
        }
    }

    fn diverged<T>(&mut self, done: &str) -> Result<T, Divergence> {
        self.dev.diverge(done);
        match self.dev.divergence.take() {
            Some(divergence) => Err(divergence),
            None => Err(Divergence { at: self.dev.cursor, why: done.to_owned() }),
        }
    }

    fn check(&mut self) -> Outcome {
        match self.dev.divergence.take() {
            Some(divergence) => Err(divergence),
            None => Ok(()),
        }
    }

    fn free(&mut self, addr: u64, size: u64) -> Outcome {
        let Some(Live { block, size: requested }) = self.live.remove(&addr) else {
            return self.diverged("no block is live there");
        };
        if requested != size {
            return self.diverged(&format!("the block has {requested} bytes"));
        }
        let waits = self.late.contains(&self.dev.cursor);
        if waits {
            let ticket = StreamId::ticket(self.tickets);
            if let Err(error) = self.strategy.record_stream(&mut self.dev, &block, ticket) {
                return self.diverged(&error.to_string());
            }
            self.dev.waiting.insert(self.tickets, (addr, size));
            self.tickets += 1;
        }
        self.dev.advance();
        if let Err(error) = self.strategy.free(&mut self.dev, block) {
            return self.diverged(&error.to_string());
        }
        self.check()?;
        if !waits {
            // The free had nothing to wait for: its completion is the next entry.
            if self.dev.peek() != Some((Action::FreeCompleted, addr, size)) {
                return self.diverged(&format!("free_completed of {size} bytes at {addr:#x}"));
            }
            self.dev.advance();
        }
        Ok(())
    }

    /// Entries up to the next `alloc` or `oom` are one allocation, unless something else comes first: then they are
    /// a flush.
    fn allocation_or_flush(&mut self) -> Outcome {
        let mut given_back = false;
        let mut at = self.dev.cursor;
        while let Some(entry) = self.plan.entries.get(at) {
            match entry.action {
                Action::SegmentFree | Action::SegmentUnmap => given_back = true,
                Action::FreeCompleted => {
                    let waits = self.dev.waiting.values().any(|&(addr, size)| (addr, size) == (entry.addr, entry.size));
                    if !waits && at == self.dev.cursor {
                        return self.diverged("no free waits there");
                    }
                }
                _ => break,
            }
            at = self.plan.next(at + 1);
        }
        let Some(wanted) = self.wanted(at)? else { return self.flush(at) };
        if let Some(why) = self.plan.contradictions.get(&wanted.at) {
            // A wrong size would show at the segment before it.
            return Err(Divergence { at: wanted.at, why: why.clone() });
        }
        if !given_back {
            return self.allocate_in_some_pool(&wanted);
        }
        if self.capped {
            let saved = self.save();
            if self.allocate_in_some_pool(&wanted).is_ok() {
                return Ok(());
            }
            self.restore(saved);
        }
        self.flush(at)
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
                Err(Divergence { at: number, why })
            }
        }
    }

    /// `empty_cache`, up to the entry at `end`.
    fn flush(&mut self, end: usize) -> Outcome {
        self.flushes += 1;
        self.release_pools(end)?;
        let before = self.dev.cursor;
        let trimmed = self.strategy.trim(&mut self.dev, 0);
        self.check()?;
        if let Err(error) = trimmed {
            return self.diverged(&error.to_string());
        }
        if self.dev.cursor == before {
            return self.diverged("empty_cache gives nothing back");
        }
        Ok(())
    }

    /// A private pool's segments go back only once nobody uses the pool.
    fn release_pools(&mut self, end: usize) -> Outcome {
        let plan = self.plan;
        for entry in &plan.entries[self.dev.cursor..end] {
            if matches!(entry.action, Action::SegmentFree | Action::SegmentUnmap)
                && let Some(pool) = self.owner(entry.addr)
                && self.pools.remove(&pool)
            {
                self.pool_inferences += 1;
                if let Err(error) = self.strategy.control(&mut self.dev, Control::PoolRelease(PoolId(pool))) {
                    return self.diverged(&error.to_string());
                }
            }
        }
        Ok(())
    }

    /// The private pool whose segment or range holds an address.
    fn owner(&self, addr: u64) -> Option<u32> {
        let (base, _) = self.segment_of(addr)?;
        self.owners.get(&base).copied()
    }

    /// The segment or reserved range that holds an address.
    fn segment_of(&self, addr: u64) -> Option<(u64, u64)> {
        let find = |ranges: &BTreeMap<u64, u64>| {
            ranges
                .range(..=addr)
                .next_back()
                .map(|(&base, &size)| (base, size))
                .filter(|(base, size)| addr < base + size)
        };
        find(&self.dev.segments).or_else(|| find(&self.dev.reserved_ranges))
    }

    /// Makes the allocation in the pool that the recording tells; where it does not, in the default pool, and if
    /// that does something else, in a private one.
    fn allocate_in_some_pool(&mut self, wanted: &Wanted) -> Outcome {
        let entry = self.plan.entries[wanted.at];
        if wanted.served
            && wanted.segment.is_none_or(|number| self.plan.entries[number].action == Action::SegmentMap)
            && self.segment_of(entry.addr).is_some()
        {
            return self.allocate(wanted, self.owner(entry.addr).unwrap_or(0));
        }
        let hint = wanted.segment.and_then(|number| self.plan.pool_hints.get(&number).copied());
        if let Some(pool) = hint {
            return self.allocate(wanted, pool);
        }
        if self.plan.pools.is_empty() {
            return self.allocate(wanted, 0);
        }
        let saved = self.save();
        let first = self.allocate(wanted, 0);
        if first.is_ok() {
            return first;
        }
        for pool in 1..=self.plan.pools.len() as u32 {
            self.restore(saved.clone());
            if self.allocate(wanted, pool).is_ok() {
                return Ok(());
            }
        }
        self.restore(saved);
        first
    }

    /// What an attempt at an allocation changes.
    fn save(&self) -> (S, Playback<'a>, BTreeSet<u32>) {
        (self.strategy.clone(), self.dev.clone(), self.pools.clone())
    }

    fn restore(&mut self, saved: (S, Playback<'a>, BTreeSet<u32>)) {
        (self.strategy, self.dev, self.pools) = saved;
    }

    fn allocate(&mut self, wanted: &Wanted, pool: u32) -> Outcome {
        if pool != 0 && !self.pools.contains(&pool) {
            if let Err(error) = self.strategy.control(&mut self.dev, Control::PoolCreate(PoolId(pool))) {
                return self.diverged(&error.to_string());
            }
            self.pools.insert(pool);
        }
        let request = Request::new(wanted.size, wanted.stream).in_pool(PoolId(pool));
        let answer = self.strategy.allocate(&mut self.dev, request);
        self.check()?;
        match answer {
            Ok(block) => {
                let done = format!("alloc of {} bytes at {:#x}", wanted.size, block.ptr());
                let recorded = self.plan.entries[wanted.at];
                if self.dev.cursor != wanted.at || !wanted.served || block.ptr() != recorded.addr {
                    return self.diverged(&done);
                }
                self.dev.advance();
                self.note_pool(block.ptr(), pool, wanted);
                if self.live.insert(block.ptr(), Live { block, size: wanted.size }).is_some() {
                    return self.diverged(&done);
                }
                Ok(())
            }
            Err(AllocError::OutOfMemory) if self.dev.cursor == wanted.at && !wanted.served => {
                self.dev.advance();
                Ok(())
            }
            Err(error) => self.diverged(&error.to_string()),
        }
    }

    /// Remembers the pool of a new segment.
    fn note_pool(&mut self, ptr: u64, pool: u32, wanted: &Wanted) {
        if wanted.segment.is_none() {
            return;
        }
        let Some((base, _)) = self.segment_of(ptr) else { return };
        if pool == 0 {
            self.owners.remove(&base);
        } else if self.owners.insert(base, pool) != Some(pool) {
            self.pool_inferences += 1;
        }
    }
}
