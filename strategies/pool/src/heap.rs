//! Regions tiled by pieces, and the free lists of streams.
//!
//! A region is what one `malloc` gave. A free piece is in the list of the stream that used it last, and merges with
//! free neighbours of the same list only:
//!
//! ```text
//! region   [ live 1 ][ free 1    ][ free 2        ][ live 2 ]       number: the stream
//! free(live 1)       merges with its own stream's piece
//!          [ free 1              ][ free 2        ][ live 2 ]
//! absorb 2 into 1    stream 1 has waited for stream 2
//!          [ free 1                               ][ live 2 ]
//! ```

use crate::list::List;
use crate::record::{NONE, Record, State};
use allocator_core::Fence;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub ptr: u64,
    pub size: u64,
    /// The lowest piece.
    first: u32,
    /// Pieces that are live or pending.
    used: u32,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heap {
    table: Vec<Record>,
    vacant: Vec<u32>,
    regions: Vec<Option<Region>>,
    /// By stream.
    lists: Vec<List>,
}

impl Heap {
    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&Record> {
        self.table.get(slot as usize)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut Record> {
        self.table.get_mut(slot as usize)
    }

    /// Makes sure that the stream has a list.
    #[inline]
    pub(crate) fn open(&mut self, stream: u32) {
        if self.lists.len() <= stream as usize {
            self.lists.resize_with(stream as usize + 1, List::new);
        }
    }

    /// Covers all work on the free pieces of a stream, if there was any.
    pub(crate) fn fence(&self, stream: u32) -> Option<Fence> {
        self.lists[stream as usize].fence
    }

    #[inline]
    pub(crate) fn set_fence(&mut self, stream: u32, fence: Fence) {
        self.lists[stream as usize].fence = Some(fence);
    }

    /// The next stream from `from` on, other than `own`, with a free piece.
    pub(crate) fn other_list(&self, from: u32, own: u32) -> Option<u32> {
        let lists = self.lists.iter().enumerate().skip(from as usize);
        lists.map(|(at, list)| (at as u32, list)).find(|(at, list)| *at != own && !list.is_empty()).map(|(at, _)| at)
    }

    /// The smallest free piece of a stream with at least `size` bytes, of equal ones that with the lowest address.
    #[inline]
    pub(crate) fn best_fit(&self, stream: u32, size: u64) -> Option<u32> {
        let found = self.lists[stream as usize].best_fit(&self.table, size);
        (found != NONE).then_some(found)
    }

    /// Whether free pieces side by side, in whatever lists, have at least `size` bytes in all.
    pub(crate) fn has_run(&self, size: u64) -> bool {
        let mut lists = self.lists.iter().filter(|list| !list.is_empty());
        if lists.clone().any(|list| list.best_fit(&self.table, size) != NONE) {
            return true;
        }
        // In one list neighbours are merged.
        lists.nth(1).is_some() && self.regions.iter().flatten().any(|region| self.run(region) >= size)
    }

    /// Bytes of a region's longest run of free pieces.
    fn run(&self, region: &Region) -> u64 {
        let runs = self.pieces(region).scan(0, |run, piece| {
            *run = if piece.state == State::Free { *run + piece.size } else { 0 };
            Some(*run)
        });
        runs.max().unwrap_or(0)
    }

    /// Hands a free piece to a stream, cut to `size` bytes. The rest, which is above, stays in the list that it was in.
    #[inline]
    pub(crate) fn take(&mut self, slot: u32, stream: u32, size: u64) -> Record {
        let piece = self.table[slot as usize];
        let list = &mut self.lists[piece.stream as usize];
        list.remove(&mut self.table, slot);
        let mut next = piece.next;
        if size < piece.size {
            let rest = Record::new(piece.ptr + size, piece.size - size, piece.region, piece.stream);
            let above = self.record(Record { prev: slot, next, ..rest });
            if let Some(beyond) = self.table.get_mut(next as usize) {
                beyond.prev = above;
            }
            next = above;
            self.lists[piece.stream as usize].insert(&mut self.table, above);
        }
        if let Some(region) = &mut self.regions[piece.region as usize] {
            region.used += 1;
        }
        let taken = &mut self.table[slot as usize];
        (taken.size, taken.next, taken.stream, taken.state) = (size, next, stream, State::Live);
        *taken
    }

    /// A live or pending piece goes to the list of its stream.
    #[inline]
    pub(crate) fn release(&mut self, slot: u32) {
        if let Some(region) = &mut self.regions[self.table[slot as usize].region as usize] {
            region.used -= 1;
        }
        self.put(slot);
    }

    /// Puts a piece that is in no list into that of its stream, joined with its neighbours there.
    #[inline]
    fn put(&mut self, slot: u32) {
        let mut piece = self.table[slot as usize];
        let list = &mut self.lists[piece.stream as usize];
        let joins = |other: &&Record| other.state == State::Free && other.stream == piece.stream;
        let mut at = slot;
        let above = self.table.get(piece.next as usize).filter(joins).copied();
        let below = self.table.get(piece.prev as usize).filter(joins).copied();
        if let Some(above) = above {
            list.remove(&mut self.table, piece.next);
            self.table[piece.next as usize].state = State::Vacant;
            self.vacant.push(piece.next);
            (piece.size, piece.next) = (piece.size + above.size, above.next);
        }
        if let Some(below) = below {
            at = piece.prev;
            list.remove(&mut self.table, at);
            self.table[slot as usize].state = State::Vacant;
            self.vacant.push(slot);
            piece = Record { size: below.size + piece.size, next: piece.next, ..below };
        }
        if (above.is_some() || below.is_some())
            && let Some(beyond) = self.table.get_mut(piece.next as usize)
        {
            beyond.prev = at;
        }
        self.table[at as usize] = Record { state: State::Free, ..piece };
        list.insert(&mut self.table, at);
    }

    /// All free pieces of stream `other` go over to the list of `own`.
    pub(crate) fn absorb(&mut self, other: u32, own: u32) {
        for slot in self.lists[other as usize].drain(&self.table) {
            self.table[slot as usize].stream = own;
            self.put(slot);
        }
    }

    /// A new region, which is one free piece in the list of a stream.
    pub(crate) fn add_region(&mut self, ptr: u64, size: u64, stream: u32) {
        let at = self.regions.iter().position(Option::is_none).unwrap_or(self.regions.len());
        let first = self.record(Record::new(ptr, size, at as u32, stream));
        let region = Some(Region { ptr, size, first, used: 0 });
        match self.regions.get_mut(at) {
            Some(place) => *place = region,
            None => self.regions.push(region),
        }
        self.lists[stream as usize].insert(&mut self.table, first);
    }

    /// Numbers of the regions in ascending order of their addresses.
    pub(crate) fn regions(&self) -> Vec<(usize, Region)> {
        let regions = self.regions.iter().enumerate().filter_map(|(at, region)| Some((at, (*region)?)));
        let mut regions: Vec<_> = regions.collect();
        regions.sort_unstable_by_key(|(_, region)| region.ptr);
        regions
    }

    /// Regions without a live or pending piece, the largest first.
    pub(crate) fn unused_regions(&self) -> Vec<(usize, Region)> {
        let mut unused = self.regions();
        unused.retain(|(_, region)| region.used == 0);
        unused.sort_by_key(|(_, region)| std::cmp::Reverse(region.size));
        unused
    }

    /// Whether the region is one free piece of the stream.
    pub(crate) fn is_whole(&self, region: &Region, stream: u32) -> bool {
        let first = &self.table[region.first as usize];
        first.state == State::Free && first.stream == stream && first.size == region.size
    }

    /// Forgets an unused region, after the device has got it back.
    pub(crate) fn remove_region(&mut self, at: usize) {
        let mut slot = self.regions[at].take().map_or(NONE, |region| region.first);
        while let Some(piece) = self.table.get(slot as usize).copied() {
            self.lists[piece.stream as usize].remove(&mut self.table, slot);
            self.table[slot as usize].state = State::Vacant;
            self.vacant.push(slot);
            slot = piece.next;
        }
    }

    /// Every piece with its region, by address.
    pub(crate) fn visit(&self, visit: &mut dyn FnMut(&Region, &Record)) {
        for (_, region) in self.regions() {
            self.pieces(&region).for_each(|piece| visit(&region, piece));
        }
    }

    /// The pieces of a region, by address.
    fn pieces(&self, region: &Region) -> impl Iterator<Item = &Record> {
        let first = self.table.get(region.first as usize);
        std::iter::successors(first, |piece| self.table.get(piece.next as usize))
    }

    /// A record for a piece. Its generation goes on from the record's last use.
    #[inline]
    fn record(&mut self, piece: Record) -> u32 {
        match self.vacant.pop() {
            Some(slot) => {
                let generation = self.table[slot as usize].generation;
                self.table[slot as usize] = Record { generation, ..piece };
                slot
            }
            None => {
                self.table.push(piece);
                (self.table.len() - 1) as u32
            }
        }
    }
}

#[cfg(test)]
#[path = "heap_tests.rs"]
mod tests;
