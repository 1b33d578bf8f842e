//! A stream's segments and the free blocks in them.
//!
//! Where the order of search knows them, the segments' *tails* (VMA's null blocks: the free ends, an empty segment among
//! them) are in an index of their own, so that they are cut last:
//!
//! ```text
//! segment   [ live | free | live | free | live |  tail  ]
//!                     └──── free ────┘            └ tails
//! ```

use crate::index::Index;
use crate::params::{Rules, Search};
use crate::slab::{Node, Slab, State};
use allocator_core::StreamId;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Heap {
    pub stream: StreamId,
    free: Index,
    tails: Index,
    has_tails: bool,
    /// The first block of each segment and the segment's granules, oldest first.
    pub segments: Vec<(u32, u64)>,
    /// Segments without a block in use.
    pub empty: u32,
}

impl Heap {
    pub(crate) fn new(stream: StreamId, rules: &Rules) -> Heap {
        let index = Index::new(rules.second_level);
        let has_tails = matches!(rules.search, Search::MinTime | Search::MinMemory);
        Heap { stream, free: index.clone(), tails: index, has_tails, segments: Vec::new(), empty: 0 }
    }

    #[inline]
    fn index(&mut self, node: &Node) -> &mut Index {
        if self.has_tails && node.above == 0 { &mut self.tails } else { &mut self.free }
    }

    #[inline]
    fn link(&mut self, slab: &mut Slab, slot: u32) {
        let index = self.index(&slab.nodes[slot as usize]);
        index.insert(&mut slab.nodes, slot);
    }

    #[inline]
    fn unlink(&mut self, slab: &mut Slab, slot: u32) {
        let index = self.index(&slab.nodes[slot as usize]);
        index.remove(&mut slab.nodes, slot);
    }

    /// A free block of `size` granules or more, as the order of search has it.
    #[inline]
    pub(crate) fn find(&self, slab: &Slab, size: u64, search: Search) -> Option<u32> {
        let nodes = &slab.nodes;
        let tail = || self.tails.good_fit(size).or_else(|| self.tails.own_list(nodes, size));
        match search {
            Search::GoodFit => self.free.good_fit(size),
            Search::MinTime => self.free.good_fit(size).or_else(tail).or_else(|| self.free.own_list(nodes, size)),
            Search::MinMemory => self.free.nearest_list(nodes, size).or_else(tail).or_else(|| self.free.good_fit(size)),
            Search::MinOffset => self.free.lowest(nodes, size),
        }
    }

    /// Takes a free block for use, cut to `size` granules.
    #[inline]
    pub(crate) fn take(&mut self, slab: &mut Slab, slot: u32, size: u64, granule: u64) {
        self.unlink(slab, slot);
        let node = &slab.nodes[slot as usize];
        self.empty -= u32::from(node.is_whole());
        if node.size > size {
            let rest = slab.split(slot, size, granule);
            self.link(slab, rest);
        }
        slab.nodes[slot as usize].state = State::Live;
    }

    /// Frees a block and merges it with free neighbours. The answer is the merged block.
    #[inline]
    pub(crate) fn put(&mut self, slab: &mut Slab, slot: u32) -> u32 {
        let Node { above, below, .. } = slab.nodes[slot as usize];
        slab.nodes[slot as usize].state = State::Free;
        if slab.nodes[above as usize].state == State::Free {
            self.unlink(slab, above);
            slab.absorb_above(slot);
        }
        let mut merged = slot;
        if slab.nodes[below as usize].state == State::Free {
            self.unlink(slab, below);
            slab.absorb_above(below);
            merged = below;
        }
        self.link(slab, merged);
        self.empty += u32::from(slab.nodes[merged as usize].is_whole());
        merged
    }

    /// Adds a segment, as one free block.
    pub(crate) fn add(&mut self, slab: &mut Slab, segment: Node) -> u32 {
        let slot = slab.take(segment);
        self.link(slab, slot);
        self.segments.push((slot, segment.size));
        self.empty += 1;
        slot
    }

    /// Forgets an empty segment, given its one block.
    pub(crate) fn remove(&mut self, slab: &mut Slab, slot: u32) {
        self.unlink(slab, slot);
        slab.give(slot);
        self.segments.retain(|&(first, _)| first != slot);
        self.empty -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Params;
    use allocator_core::{Device, SimDevice};

    const GRANULE: u64 = 512;

    fn heap(search: &str) -> (Heap, Slab, Search) {
        let params = Params { search: search.to_string(), ..Params::default() };
        let rules = params.rules(&SimDevice::new(1 << 32).info()).unwrap();
        (Heap::new(StreamId(0), &rules), Slab::new(), rules.search)
    }

    fn segment(size: u64, at: u64) -> Node {
        Node { ptr: at * GRANULE, size, state: State::Free, ..Node::default() }
    }

    /// A heap with one segment at 1000 of the given blocks, of which every second one is free, and their slots.
    fn comb(search: &str, sizes: &[u64]) -> (Heap, Slab, Search, Vec<u32>) {
        let (mut heap, mut slab, search) = heap(search);
        let mut rest = heap.add(&mut slab, segment(sizes.iter().sum(), 1000));
        let mut slots = Vec::new();
        for &size in sizes {
            heap.take(&mut slab, rest, size, GRANULE);
            slots.push(rest);
            rest = slab.nodes[rest as usize].above;
        }
        slots.iter().skip(1).step_by(2).for_each(|&slot| assert_eq!(heap.put(&mut slab, slot), slot));
        (heap, slab, search, slots)
    }

    /// Free blocks of 80, 81, 90 granules, of which the first two share a list (of 80 and 81), and a tail of 85.
    fn found(name: &str, size: u64) -> Option<u64> {
        let (heap, slab, search, _) = comb(name, &[1, 90, 1, 81, 1, 80, 1, 85]);
        heap.find(&slab, size, search).map(|slot| slab.nodes[slot as usize].size)
    }

    #[test]
    fn each_order_finds_its_own() {
        let orders = ["good_fit", "min_time", "min_memory", "min_offset"];
        let of = |size| orders.map(|name| found(name, size));
        assert_eq!(of(80), [Some(80), Some(80), Some(80), Some(90)], "the list's lower bound: all blocks fit");
        assert_eq!(of(81), [Some(85), Some(90), Some(81), Some(90)], "a tail is like any block for good_fit");
        assert_eq!(of(82), [Some(85), Some(90), Some(90), Some(90)]);
        assert_eq!(of(90), [Some(90), Some(90), Some(90), Some(90)]);
        assert_eq!(of(91), [None; 4]);
    }

    #[test]
    fn the_very_size_is_seen_by_those_that_scan() {
        // One block of 81 between blocks in use: its list begins at 80.
        let of = |name| {
            let (heap, slab, search, _) = comb(name, &[1, 81, 1]);
            heap.find(&slab, 81, search).is_some()
        };
        assert_eq!(["good_fit", "min_time", "min_memory", "min_offset"].map(of), [false, true, true, true]);
    }

    #[test]
    fn tails_are_cut_before_the_own_list_is_scanned() {
        let of = |name| {
            let (heap, slab, search, slots) = comb(name, &[1, 81, 1, 200]);
            heap.find(&slab, 81, search).and_then(|found| slots.iter().position(|&slot| slot == found))
        };
        assert_eq!(["good_fit", "min_time", "min_memory", "min_offset"].map(of), [Some(3), Some(3), Some(1), Some(1)]);
    }

    #[test]
    fn neighbours_merge_to_the_whole_segment() {
        for name in ["good_fit", "min_time"] {
            let (mut heap, mut slab, _, slots) = comb(name, &[1, 90, 1, 81, 1, 80, 1, 85]);
            assert_eq!(heap.empty, 0);
            for (at, &slot) in slots.iter().enumerate().step_by(2) {
                let is_last = at == 6;
                assert_eq!(slab.would_be_whole(slot), is_last.then_some(1000 * GRANULE));
                assert_eq!(heap.put(&mut slab, slot), slots[0]);
                assert_eq!(heap.empty, u32::from(is_last));
            }
            let whole = &slab.nodes[slots[0] as usize];
            assert_eq!((whole.size, whole.is_whole()), (340, true));
            heap.remove(&mut slab, slots[0]);
            assert_eq!((heap.empty, heap.segments.len()), (0, 0));
            assert!(slab.nodes.iter().all(|node| node.state == State::Unused));
        }
    }
}
