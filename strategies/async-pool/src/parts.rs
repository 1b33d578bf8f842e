//! The range of addresses, tiled by parts: live, waiting, free, and holes, which are addresses without memory.
//!
//! Parts are records in one table, linked to their neighbours by address. A free part belongs to a *lane*: that of the
//! stream it was freed on last, or lane 0, whose memory no work uses any more. Holes consist of whole pages.
//!
//! ```text
//! [ live 1 ][ free 1   ][ hole      ][ free 0  ][ live 2 ][ free 2 ][ hole …       number: the lane
//!   fill     ─────────▶ [ free 1 or 0          ]              a hole gets memory, and merges
//!   drain    [ free 1 ][ hole  ][ free 1 ]                    whole pages of a free part lose theirs
//! ```
//!
//! What is free merges with its own lane's neighbours and with lane 0's, which joins the lane. What becomes lane 0's beside
//! parts of several lanes stays apart from them, until one of these lanes needs the row.

use crate::index::{Index, Key, NONE, Nodes};
use std::collections::BTreeMap;

/// The lane of memory that no work uses.
pub(crate) const COMMON: u32 = 0;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// The record stands for nothing.
    Vacant,
    /// Addresses without memory.
    Hole,
    Free,
    Live,
    /// Freed by its owner, waiting for tickets.
    Waiting,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub ptr: u64,
    pub size: u64,
    pub prev: u32,
    pub next: u32,
    pub lane: u32,
    /// How often the record had been handed out when it is handed out.
    pub generation: u32,
    /// Of free parts, the number of the last free in them; the pool counts frees.
    pub seq: u64,
    pub state: State,
    /// Whether other streams or tickets use it too.
    pub shared: bool,
}

impl Part {
    pub(crate) fn end(&self) -> u64 {
        self.ptr + self.size
    }

    fn key(&self, slot: u32) -> Key {
        Key { size: self.size, ptr: self.ptr, slot }
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    table: Vec<Part>,
    vacant: Vec<u32>,
    nodes: Nodes,
    lanes: Vec<Index>,
    /// Slots of the holes, by address.
    holes: BTreeMap<u64, u32>,
    /// The lowest part.
    first: Option<u32>,
}

impl Parts {
    /// The range is there: one hole.
    pub(crate) fn start(&mut self, ptr: u64, size: u64) {
        let (state, lane, generation, seq, shared) = (State::Hole, COMMON, 0, 0, false);
        let slot = self.record(Part { ptr, size, prev: NONE, next: NONE, lane, generation, seq, state, shared });
        self.holes.insert(ptr, slot);
        self.first = Some(slot);
        self.open_lane(COMMON);
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&Part> {
        self.table.get(slot as usize)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut Part> {
        self.table.get_mut(slot as usize)
    }

    /// Makes sure that the lane is there.
    #[inline]
    pub(crate) fn open_lane(&mut self, lane: u32) {
        if self.lanes.len() <= lane as usize {
            self.lanes.resize_with(lane as usize + 1, Index::new);
        }
    }

    /// Whether the lane has free memory.
    pub(crate) fn has_free(&self, lane: u32) -> bool {
        self.lanes.get(lane as usize).is_some_and(|index| !index.is_empty())
    }

    /// The best fit in a lane and in the common one.
    #[inline]
    pub(crate) fn best_fit(&self, lane: u32, size: u64) -> Option<Key> {
        let own = self.lanes[lane as usize].best_fit(&self.nodes, size);
        match (own, self.lanes[COMMON as usize].best_fit(&self.nodes, size)) {
            (Some(own), Some(common)) => Some(own.min(common)),
            (own, common) => own.or(common),
        }
    }

    /// The best fit in a lane among what was freed up to a number.
    pub(crate) fn best_fit_until(&self, lane: u32, size: u64, seq: u64) -> Option<Key> {
        let is_early = &mut |key: Key| self.table[key.slot as usize].seq <= seq;
        self.lanes.get(lane as usize)?.find(&self.nodes, size, is_early)
    }

    /// Hands a free part to the stream of `lane`, cut to `size` bytes. The rest, which is above, stays what it was.
    #[inline]
    pub(crate) fn take(&mut self, found: Key, lane: u32, size: u64) -> Part {
        let slot = found.slot;
        self.unlist(slot);
        if size < self.table[slot as usize].size {
            let rest = self.cut(slot, size);
            self.list(rest);
        }
        let part = &mut self.table[slot as usize];
        (part.lane, part.state, part.shared) = (lane, State::Live, false);
        *part
    }

    /// A live or waiting part is free from now on, by the free with this number; how large it is with its neighbours.
    #[inline]
    pub(crate) fn release(&mut self, slot: u32, seq: u64) -> u64 {
        let part = &mut self.table[slot as usize];
        (part.state, part.seq) = (State::Free, seq);
        let lane = part.lane;
        self.merge(slot, lane)
    }

    /// `from..to` of a hole has memory from now on, which no work uses. It joins with that of `lane` too.
    pub(crate) fn fill(&mut self, slot: u32, from: u64, to: u64, lane: u32) {
        self.holes.remove(&self.table[slot as usize].ptr);
        let middle = self.isolate(slot, from, to, |parts, slot| {
            parts.holes.insert(parts.table[slot as usize].ptr, slot);
        });
        let part = &mut self.table[middle as usize];
        (part.state, part.lane, part.seq) = (State::Free, COMMON, 0);
        self.merge(middle, lane);
    }

    /// `from..to` of a free part has no memory any more.
    pub(crate) fn drain(&mut self, slot: u32, from: u64, to: u64) {
        self.unlist(slot);
        let mut at = self.isolate(slot, from, to, Parts::list);
        let mut hole = self.table[at as usize];
        if let Some(above) = self.get(hole.next).copied().filter(|part| part.state == State::Hole) {
            self.holes.remove(&above.ptr);
            self.vacate(hole.next);
            (hole.size, hole.next) = (hole.size + above.size, above.next);
        }
        if let Some(below) = self.get(hole.prev).copied().filter(|part| part.state == State::Hole) {
            self.vacate(at);
            at = hole.prev;
            hole = Part { size: below.size + hole.size, next: hole.next, ..below };
        }
        if hole.next != NONE {
            self.table[hole.next as usize].prev = at;
        }
        (hole.state, hole.lane, hole.seq) = (State::Hole, COMMON, 0);
        self.table[at as usize] = hole;
        self.holes.insert(hole.ptr, at);
    }

    /// No work uses what was freed on `lane` up to a number. It joins with the common memory, and with that of `own`.
    pub(crate) fn make_common(&mut self, lane: u32, seq: u64, own: u32) {
        let mut slots = Vec::new();
        if let Some(index) = self.lanes.get(lane as usize) {
            index.find(&self.nodes, 0, &mut |key| {
                if self.table[key.slot as usize].seq <= seq {
                    slots.push(key.slot);
                }
                false
            });
        }
        for &slot in &slots {
            self.unlist(slot);
            self.table[slot as usize].lane = COMMON;
            self.list(slot);
        }
        for slot in slots {
            // Some have been merged into their neighbours meanwhile.
            if self.table[slot as usize].state == State::Free {
                self.unlist(slot);
                self.merge(slot, own);
            }
        }
    }

    /// Joins a row of free parts of `lane` and of the common one that together have `size` bytes: the smallest, of equals the
    /// lowest. Memory that becomes common while no stream asks for any does not join with its neighbours' lanes.
    pub(crate) fn join_row(&mut self, lane: u32, size: u64) -> Option<Key> {
        let mut best: Option<Key> = None;
        self.visit_free(COMMON, 0, &mut |slot, part| {
            // In a row every other part is common, so it begins here or one below, or was visited from further down.
            let (first, lowest) = self.joins(part.prev, lane).map_or((slot, *part), |below| (part.prev, below));
            if self.joins(lowest.prev, lane).is_some() {
                return;
            }
            let mut row = lowest.key(first);
            let mut next = lowest.next;
            while let Some(above) = self.joins(next, lane) {
                (row.size, next) = (row.size + above.size, above.next);
            }
            if row.size >= size && best.is_none_or(|best| row < best) {
                best = Some(row);
            }
        });
        let row = best?;
        self.unlist(row.slot);
        self.merge(row.slot, lane);
        Some(row)
    }

    /// Holes from the lowest on.
    pub(crate) fn holes(&self) -> impl Iterator<Item = (u64, u32)> {
        self.holes.iter().map(|(&ptr, &slot)| (ptr, slot))
    }

    /// The lowest hole in `start..end`, which may begin before it and end after it.
    pub(crate) fn hole_in(&self, start: u64, end: u64) -> Option<(u32, Part)> {
        let with_part = |(_, &slot): (&u64, &u32)| Some((slot, *self.get(slot)?));
        let over = self.holes.range(..=start).next_back().and_then(with_part);
        over.filter(|(_, hole)| hole.end() > start).or_else(|| self.holes.range(start..end).next().and_then(with_part))
    }

    /// Visits the free parts of a lane, of at least `size` bytes.
    pub(crate) fn visit_free(&self, lane: u32, size: u64, visit: &mut dyn FnMut(u32, &Part)) {
        let Some(index) = self.lanes.get(lane as usize) else { return };
        index.find(&self.nodes, size, &mut |key| {
            visit(key.slot, &self.table[key.slot as usize]);
            false
        });
    }

    /// Every part, by address.
    pub(crate) fn visit(&self, visit: &mut dyn FnMut(&Part)) {
        let mut slot = self.first.unwrap_or(NONE);
        while let Some(part) = self.get(slot) {
            visit(part);
            slot = part.next;
        }
    }

    /// Marks a part that is in no index free, joined with free neighbours of `lane` and of the common one; its size then.
    #[inline]
    fn merge(&mut self, slot: u32, lane: u32) -> u64 {
        let mut part = self.table[slot as usize];
        let mut at = slot;
        // Common memory between two parts of a lane makes a row of them.
        while let Some(above) = self.joins(part.next, lane) {
            self.unlist(part.next);
            self.vacate(part.next);
            (part.size, part.next) = (part.size + above.size, above.next);
            (part.lane, part.seq) = (part.lane.max(above.lane), part.seq.max(above.seq));
        }
        while let Some(below) = self.joins(part.prev, lane) {
            self.vacate(at);
            at = part.prev;
            self.unlist(at);
            let (lane, seq) = (part.lane.max(below.lane), part.seq.max(below.seq));
            part = Part { size: below.size + part.size, next: part.next, lane, seq, ..below };
        }
        if part.next != NONE {
            self.table[part.next as usize].prev = at;
        }
        self.table[at as usize] = part;
        self.list(at);
        part.size
    }

    #[inline]
    fn joins(&self, slot: u32, lane: u32) -> Option<Part> {
        let part = self.table.get(slot as usize)?;
        (part.state == State::Free && (part.lane == lane || part.lane == COMMON)).then_some(*part)
    }

    /// Cuts a part that is in no index so that one of its parts is `from..to`; what is left of it goes to `rest`.
    fn isolate(&mut self, slot: u32, from: u64, to: u64, mut rest: impl FnMut(&mut Parts, u32)) -> u32 {
        let part = self.table[slot as usize];
        if to < part.end() {
            let above = self.cut(slot, to - part.ptr);
            rest(self, above);
        }
        if from == part.ptr {
            return slot;
        }
        let middle = self.cut(slot, from - part.ptr);
        rest(self, slot);
        middle
    }

    /// Cuts a part that is in no index to `size` bytes; the slot of the rest, in no index either.
    #[inline]
    fn cut(&mut self, slot: u32, size: u64) -> u32 {
        let part = self.table[slot as usize];
        let rest = self.record(Part { ptr: part.ptr + size, size: part.size - size, prev: slot, ..part });
        if part.next != NONE {
            self.table[part.next as usize].prev = rest;
        }
        let part = &mut self.table[slot as usize];
        (part.size, part.next) = (size, rest);
        rest
    }

    #[inline]
    fn list(&mut self, slot: u32) {
        let part = self.table[slot as usize];
        self.lanes[part.lane as usize].insert(&mut self.nodes, part.key(slot));
    }

    #[inline]
    fn unlist(&mut self, slot: u32) {
        let part = self.table[slot as usize];
        self.lanes[part.lane as usize].remove(&mut self.nodes, part.key(slot));
    }

    /// A record for a part. Its generation goes on from the record's last use.
    #[inline]
    fn record(&mut self, part: Part) -> u32 {
        match self.vacant.pop() {
            Some(slot) => {
                let generation = self.table[slot as usize].generation;
                self.table[slot as usize] = Part { generation, ..part };
                slot
            }
            None => {
                self.table.push(Part { generation: 0, ..part });
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
#[path = "parts_tests.rs"]
mod tests;
