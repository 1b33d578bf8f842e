//! Expandable segments: a range of addresses per arena that grows and shrinks by pages.
//!
//! ```text
//! |<- mapped ->|<-- mapped ---------->|<------------- unmapped ---------------->|
//! [ live ][free][   live   ][  free   ][                                        ]
//!                                      grows here, page by page
//! ```
//!
//! The range is 9/8 of the device's memory. What is not mapped is a block too, so that growing is: map pages at the
//! start of an unmapped block, merge with the free block before it.

use crate::arena::Arena;
use crate::engine::Caching;
use crate::rules::Rules;
use crate::size::SMALL_SEGMENT;
use crate::slab::{EXPANDABLE, FREE, GRANULE_SHIFT, SIZE_LIMIT, TOKEN_BITS, UNMAPPED, key};
use crate::stats::class;
use allocator_core::{AllocError, Device, DeviceError, Sync, VirtualRange};

/// The range of one segment.
pub(crate) type ExpandableSegment = VirtualRange;

impl<R: Rules> Caching<R> {
    /// The size of the block and of the unmapped memory after it.
    pub(crate) fn growable(&self, slot: u32) -> u64 {
        let next = &self.slab[self.slab[slot].next];
        self.slab[slot].size() + if next.is(UNMAPPED) { next.size() } else { 0 }
    }

    /// A free mapped block of at least `granules`, in no index.
    pub(crate) fn grow_expandable(
        &mut self,
        dev: &mut dyn Device,
        number: u32,
        granules: u64,
    ) -> Result<Option<u32>, AllocError> {
        let mut at = match self.find_growable(number, granules) {
            Some(slot) => slot,
            None => match self.new_segment(dev, number)? {
                Some(slot) => slot,
                None => return Ok(None),
            },
        };
        if self.slab[at].is(UNMAPPED) {
            match self.map_block(dev, at, self.slab[at].size().min(granules))? {
                Some(slot) => at = slot,
                None => return Ok(None),
            }
        }
        while self.slab[at].size() < granules {
            let next = self.slab[at].next;
            if !self.slab[next].is(UNMAPPED) {
                // The request is larger than the address range.
                return Ok(None);
            }
            let missing = granules - self.slab[at].size();
            match self.map_block(dev, next, missing.min(self.slab[next].size()))? {
                Some(slot) => at = slot,
                None => return Ok(None),
            }
        }
        self.arenas[number as usize].remove(&mut self.slab, at);
        Ok(Some(at))
    }

    /// The first run of free blocks, mapped or not, that begins at an unmapped block or right before one and is
    /// large enough.
    fn find_growable(&self, number: u32, granules: u64) -> Option<u32> {
        let usable = |slot: u32| self.slab[slot].is(FREE | UNMAPPED);
        self.arenas[number as usize].unmapped.iter().find_map(|&unmapped| {
            let before = self.slab[unmapped].prev;
            let start = if usable(before) { before } else { unmapped };
            let (mut at, mut sum) = (start, 0);
            while usable(at) {
                sum += self.slab[at].size();
                if sum >= granules {
                    return Some(start);
                }
                at = self.slab[at].next;
            }
            None
        })
    }

    /// A new segment, as one unmapped block. `None`: the device has no addresses left.
    fn new_segment(&mut self, dev: &mut dyn Device, number: u32) -> Result<Option<u32>, AllocError> {
        let small = self.arenas[number as usize].small;
        let page = if small { SMALL_SEGMENT } else { self.settings.large_segment_size };
        let whole_pages = (self.device_total + self.device_total / 8).checked_next_multiple_of(page);
        let Some(bytes) = whole_pages.filter(|bytes| bytes >> GRANULE_SHIFT < SIZE_LIMIT) else {
            return Ok(None);
        };
        let range = match VirtualRange::reserve(dev, bytes, page) {
            Ok(range) => range,
            Err(DeviceError::OutOfMemory) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let base = range.base();
        let arena = &mut self.arenas[number as usize];
        if !arena.cover(&mut self.slab, number, base, bytes) {
            // The error that matters is the one to report; an empty range that stays reserved holds no memory.
            let _ = range.unreserve(dev);
            return Err(AllocError::AddressSpace);
        }
        let slot = self.slab.take();
        let node = &mut self.slab[slot];
        node.key = key(bytes >> GRANULE_SHIFT, arena.areas.token(base));
        (node.prev, node.next) = (0, 0);
        node.meta = Arena::meta(number, small) | EXPANDABLE | UNMAPPED;
        arena.insert_unmapped(&self.slab, slot);
        self.expandable.insert(base, range);
        self.plain = false;
        Ok(Some(slot))
    }

    fn segment_at(&mut self, address: u64) -> Option<(u64, &mut ExpandableSegment)> {
        self.expandable.range_mut(..=address).next_back().map(|(&base, segment)| (base, segment))
    }

    /// Maps the first `granules` of an unmapped block, in whole pages, and merges with free neighbours. Returns the
    /// merged block, in the index. `None`: the device has no memory.
    fn map_block(&mut self, dev: &mut dyn Device, slot: u32, granules: u64) -> Result<Option<u32>, AllocError> {
        let node = self.slab[slot];
        let number = node.arena();
        let address = self.arenas[number].address(&self.slab, slot);
        let Some((base, segment)) = self.segment_at(address) else { return Ok(None) };
        let bytes = (granules << GRANULE_SHIFT).next_multiple_of(segment.page());
        match segment.map(dev, address - base, bytes) {
            Ok(()) => {}
            Err(DeviceError::OutOfMemory) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let mapped = bytes >> GRANULE_SHIFT;
        let arena = &mut self.arenas[number];
        arena.remove_unmapped(&self.slab, slot);
        let meta = node.meta & !UNMAPPED;
        let (mut start, mut key, mut prev, mut next) =
            (slot, crate::slab::key(mapped, node.token()), node.prev, node.next);
        if mapped < node.size() {
            let rest = self.slab.take();
            let tail = &mut self.slab[rest];
            tail.key = node.key - (mapped << TOKEN_BITS) + mapped;
            (tail.prev, tail.next) = (slot, next);
            tail.meta = meta | UNMAPPED;
            self.slab[next].prev = rest;
            next = rest;
            arena.insert_unmapped(&self.slab, rest);
        }
        if self.slab[prev].is(FREE) {
            arena.remove(&mut self.slab, prev);
            start = prev;
            key = self.slab[prev].key + (mapped << TOKEN_BITS);
            prev = self.slab[prev].prev;
            self.slab.give(slot);
        }
        if self.slab[next].is(FREE) {
            arena.remove(&mut self.slab, next);
            key += self.slab[next].size() << TOKEN_BITS;
            let absorbed = next;
            next = self.slab[next].next;
            self.slab.give(absorbed);
        }
        let merged = &mut self.slab[start];
        (merged.key, merged.prev, merged.next, merged.meta) = (key, prev, next, meta);
        self.slab[prev].next = start;
        self.slab[next].prev = start;
        let (pool, small) = (arena.pool, arena.small);
        self.cache(start);
        self.stats.segment_map(class(small), bytes);
        self.pools.get_or_default(pool).mapped += bytes;
        Ok(Some(start))
    }

    /// Gives back the whole pages of a cached block, and the segment's addresses if nothing else is in it.
    pub(crate) fn unmap_block(&mut self, dev: &mut dyn Device, slot: u32) -> Result<(), DeviceError> {
        let node = self.slab[slot];
        let number = node.arena();
        let (stream, pool, small) = (self.arenas[number].stream, self.arenas[number].pool, self.arenas[number].small);
        let address = self.arenas[number].address(&self.slab, slot);
        let end = address + (node.size() << GRANULE_SHIFT);
        let Some((base, segment)) = self.segment_at(address) else { return Ok(()) };
        let page = segment.page();
        let first = base + (address - base).next_multiple_of(page);
        let last = base + (end - base) / page * page;
        if first >= last {
            return Ok(());
        }
        dev.sync(Sync::Stream(stream))?;
        segment.unmap(dev, first - base, last - first)?;
        self.arenas[number].remove(&mut self.slab, slot);
        let mut start = slot;
        let (mut prev, mut next) = (node.prev, node.next);
        let token = node.token() + ((first - address) >> GRANULE_SHIFT);
        let mut key = key((last - first) >> GRANULE_SHIFT, token);
        if first > address {
            // The block's own record stays for the rest before the pages.
            let head = &mut self.slab[slot];
            head.key = crate::slab::key((first - address) >> GRANULE_SHIFT, node.token());
            start = self.slab.take();
            prev = slot;
            self.cache(slot);
        }
        if last < end {
            let rest = self.slab.take();
            let tail = &mut self.slab[rest];
            tail.key = crate::slab::key((end - last) >> GRANULE_SHIFT, token + ((last - first) >> GRANULE_SHIFT));
            tail.next = next;
            tail.meta = node.meta & !FREE;
            self.slab[next].prev = rest;
            next = rest;
            self.cache(rest);
        }
        for neighbour in [prev, next] {
            if self.slab[neighbour].is(UNMAPPED) {
                self.arenas[number].remove_unmapped(&self.slab, neighbour);
            }
        }
        if self.slab[prev].is(UNMAPPED) {
            key = self.slab[prev].key + (key >> TOKEN_BITS << TOKEN_BITS);
            let absorbed = prev;
            prev = self.slab[prev].prev;
            self.slab.give(absorbed);
        }
        if self.slab[next].is(UNMAPPED) {
            key += self.slab[next].size() << TOKEN_BITS;
            let absorbed = next;
            next = self.slab[next].next;
            self.slab.give(absorbed);
        }
        let unmapped = &mut self.slab[start];
        (unmapped.key, unmapped.prev, unmapped.next) = (key, prev, next);
        unmapped.meta = Arena::meta(number as u32, small) | EXPANDABLE | UNMAPPED;
        self.slab[prev].next = start;
        self.slab[next].prev = start;
        self.arenas[number].insert_unmapped(&self.slab, start);
        self.stats.segment_unmap(class(small), last - first);
        self.pools.get_or_default(pool).mapped -= last - first;
        if prev == 0 && next == 0 {
            self.destroy_segment(dev, number, start, base)?;
        }
        Ok(())
    }

    /// Gives the addresses of an arena's segments back that never got memory, or lost it all.
    pub(crate) fn destroy_empty_segments(&mut self, dev: &mut dyn Device, number: usize) -> Result<(), DeviceError> {
        for slot in self.arenas[number].unmapped.clone() {
            if !self.slab[slot].is_split() {
                let base = self.arenas[number].address(&self.slab, slot);
                self.destroy_segment(dev, number, slot, base)?;
            }
        }
        Ok(())
    }

    /// Gives the addresses of a segment back that has nothing mapped.
    fn destroy_segment(
        &mut self,
        dev: &mut dyn Device,
        number: usize,
        slot: u32,
        base: u64,
    ) -> Result<(), DeviceError> {
        let Some(segment) = self.expandable.remove(&base) else { return Ok(()) };
        if let Err((segment, error)) = segment.unreserve(dev) {
            self.expandable.insert(base, segment);
            return Err(error);
        }
        self.arenas[number].remove_unmapped(&self.slab, slot);
        self.slab.give(slot);
        self.update_plain();
        Ok(())
    }
}
