//! Regions tiled by chunks.
//!
//! A region is one piece of device memory. Its chunks are records in one table, linked to their neighbours by address.
//! A free chunk belongs to a *lane*: that of the stream whose work used the memory last, or lane 0, whose memory no work
//! uses any more and every stream may take.
//!
//! ```text
//! region   [ live 1 ][ free 1    ][ free 0        ][ live 2 ][ free 2 ]      number: the lane
//! free(live 1)       merges with its own lane's memory and with lane 0's, which joins the lane
//!          [ free 1                               ][ live 2 ][ free 2 ]
//! ```

use crate::bins::{Bins, Free};

/// No neighbour.
const NONE: u32 = u32::MAX;
/// The lane of memory that no work uses.
pub(crate) const COMMON: u32 = 0;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// The record stands for nothing.
    Vacant,
    Free,
    Live,
    /// Freed by its owner, waiting for other streams.
    Pending,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    pub ptr: u64,
    pub size: u64,
    prev: u32,
    next: u32,
    region: u32,
    pub lane: u32,
    /// How often the record had been handed out when it is handed out.
    pub generation: u32,
    pub state: State,
    /// Whether other streams use it too.
    pub shared: bool,
}

impl Chunk {
    fn free(&self, slot: u32) -> Free {
        Free { size: self.size, ptr: self.ptr, slot }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub ptr: u64,
    pub size: u64,
    /// The lowest chunk.
    first: u32,
    /// Chunks that are live or pending.
    used: u32,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Chunks {
    table: Vec<Chunk>,
    vacant: Vec<u32>,
    regions: Vec<Option<Region>>,
    lanes: Vec<Bins>,
}

impl Chunks {
    pub(crate) fn new() -> Chunks {
        Chunks { table: Vec::new(), vacant: Vec::new(), regions: Vec::new(), lanes: vec![Bins::new()] }
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&Chunk> {
        self.table.get(slot as usize)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut Chunk> {
        self.table.get_mut(slot as usize)
    }

    /// Makes sure that the lane is there.
    #[inline]
    pub(crate) fn open_lane(&mut self, lane: u32) {
        if self.lanes.len() <= lane as usize {
            self.lanes.resize_with(lane as usize + 1, Bins::new);
        }
    }

    /// The lanes of streams with free memory, but for `own`.
    pub(crate) fn other_lanes(&self, own: u32) -> Vec<u32> {
        let lanes = 1..self.lanes.len() as u32;
        lanes.filter(|&lane| lane != own && !self.lanes[lane as usize].is_empty()).collect()
    }

    /// The best fit in a lane and in the common one.
    #[inline]
    pub(crate) fn best_fit(&self, lane: u32, size: u64) -> Option<Free> {
        let own = self.lanes[lane as usize].best_fit(size);
        match (own, self.lanes[COMMON as usize].best_fit(size)) {
            (Some(own), Some(common)) => Some(own.min(common)),
            (own, common) => own.or(common),
        }
    }

    /// Hands a free chunk to the stream of `lane`, cut to `keep` bytes. The rest, which is above, stays where it was.
    #[inline]
    pub(crate) fn take(&mut self, found: Free, lane: u32, keep: u64) -> Chunk {
        let chunk = self.table[found.slot as usize];
        self.lanes[chunk.lane as usize].remove(found);
        if keep < chunk.size {
            let rest = Chunk { ptr: chunk.ptr + keep, size: chunk.size - keep, prev: found.slot, ..chunk };
            let above = self.record(rest);
            if chunk.next != NONE {
                self.table[chunk.next as usize].prev = above;
            }
            self.table[found.slot as usize].next = above;
            self.lanes[chunk.lane as usize].insert(rest.free(above));
        }
        let taken = &mut self.table[found.slot as usize];
        (taken.size, taken.lane, taken.state, taken.shared) = (keep, lane, State::Live, false);
        if let Some(region) = &mut self.regions[taken.region as usize] {
            region.used += 1;
        }
        *taken
    }

    /// The chunk is free from now on.
    #[inline]
    pub(crate) fn release(&mut self, slot: u32) {
        let chunk = &mut self.table[slot as usize];
        let (lane, region) = (chunk.lane, chunk.region);
        if let Some(region) = &mut self.regions[region as usize] {
            region.used -= 1;
        }
        self.merge(slot, lane);
    }

    /// Marks a chunk that is in no bin free, joined with free neighbours of `lane` and of the common one.
    #[inline]
    fn merge(&mut self, slot: u32, lane: u32) {
        let mut chunk = self.table[slot as usize];
        let mut at = slot;
        if let Some(above) = self.joins(chunk.next, lane) {
            self.lanes[above.lane as usize].remove(above.free(chunk.next));
            self.vacate(chunk.next);
            (chunk.size, chunk.next, chunk.lane) = (chunk.size + above.size, above.next, chunk.lane.max(above.lane));
        }
        if let Some(below) = self.joins(chunk.prev, lane) {
            at = chunk.prev;
            self.lanes[below.lane as usize].remove(below.free(at));
            self.vacate(slot);
            let (size, next) = (chunk.size + below.size, chunk.next);
            chunk = Chunk { size, next, lane: chunk.lane.max(below.lane), ..below };
        }
        if chunk.next != NONE {
            self.table[chunk.next as usize].prev = at;
        }
        chunk.state = State::Free;
        self.table[at as usize] = chunk;
        self.lanes[chunk.lane as usize].insert(chunk.free(at));
    }

    #[inline]
    fn joins(&self, slot: u32, lane: u32) -> Option<Chunk> {
        let chunk = self.table.get(slot as usize)?;
        (chunk.state == State::Free && (chunk.lane == lane || chunk.lane == COMMON)).then_some(*chunk)
    }

    /// No work uses the free memory of these lanes any more. It joins with the common memory, and with that of `own`.
    pub(crate) fn make_common(&mut self, lanes: &[u32], own: u32) {
        let freed: Vec<Free> = lanes.iter().flat_map(|&lane| self.lanes[lane as usize].drain()).collect();
        for &chunk in &freed {
            self.table[chunk.slot as usize].lane = COMMON;
            self.lanes[COMMON as usize].insert(chunk);
        }
        for Free { slot, .. } in freed {
            let chunk = self.table[slot as usize];
            if chunk.state == State::Free {
                self.lanes[chunk.lane as usize].remove(chunk.free(slot));
                self.merge(slot, own);
            }
        }
    }

    /// The device has waited: all free memory is common.
    pub(crate) fn make_all_common(&mut self) {
        let lanes: Vec<u32> = self.other_lanes(COMMON);
        self.make_common(&lanes, COMMON);
    }

    /// A new region, which is one free chunk that nobody has used.
    pub(crate) fn add_region(&mut self, ptr: u64, size: u64) {
        let at = self.regions.iter().position(Option::is_none).unwrap_or(self.regions.len());
        let (region, generation) = (at as u32, 0);
        let (state, lane, shared) = (State::Free, COMMON, false);
        let chunk = Chunk { ptr, size, prev: NONE, next: NONE, region, lane, generation, state, shared };
        let slot = self.record(chunk);
        self.lanes[COMMON as usize].insert(chunk.free(slot));
        let region = Some(Region { ptr, size, first: slot, used: 0 });
        match self.regions.get_mut(at) {
            Some(place) => *place = region,
            None => self.regions.push(region),
        }
    }

    /// Regions without a live or pending chunk: number, address and size, the largest first.
    pub(crate) fn unused_regions(&self) -> Vec<(usize, Region)> {
        let regions = self.regions.iter().enumerate().filter_map(|(at, region)| Some((at, (*region)?)));
        let mut unused: Vec<_> = regions.filter(|(_, region)| region.used == 0).collect();
        unused.sort_unstable_by_key(|(_, region)| (std::cmp::Reverse(region.size), region.ptr));
        unused
    }

    /// Forgets a region that is unused, after the device has got it back.
    pub(crate) fn remove_region(&mut self, at: usize) {
        let mut slot = self.regions[at].take().map_or(NONE, |region| region.first);
        while let Some(chunk) = self.table.get(slot as usize).copied() {
            self.lanes[chunk.lane as usize].remove(chunk.free(slot));
            self.vacate(slot);
            slot = chunk.next;
        }
    }

    /// Every chunk with its region, by address.
    pub(crate) fn visit(&self, visit: &mut dyn FnMut(&Region, &Chunk)) {
        let mut regions: Vec<&Region> = self.regions.iter().flatten().collect();
        regions.sort_unstable_by_key(|region| region.ptr);
        for region in regions {
            let mut slot = region.first;
            while let Some(chunk) = self.table.get(slot as usize) {
                visit(region, chunk);
                slot = chunk.next;
            }
        }
    }

    /// The largest free chunk's bytes.
    pub(crate) fn largest_free(&self) -> u64 {
        self.lanes.iter().map(Bins::largest).max().unwrap_or(0)
    }

    /// A record for a chunk. Its generation goes on from the record's last use.
    #[inline]
    fn record(&mut self, chunk: Chunk) -> u32 {
        match self.vacant.pop() {
            Some(slot) => {
                let generation = self.table[slot as usize].generation;
                self.table[slot as usize] = Chunk { generation, ..chunk };
                slot
            }
            None => {
                self.table.push(Chunk { generation: 0, ..chunk });
                (self.table.len() - 1) as u32
            }
        }
    }

    #[inline]
    fn vacate(&mut self, slot: u32) {
        self.table[slot as usize].state = State::Vacant;
        self.vacant.push(slot);
    }
}

#[cfg(test)]
#[path = "chunks_tests.rs"]
mod tests;
