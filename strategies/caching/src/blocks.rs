//! Cutting a block for a request, and merging it with its neighbours when it is free again.
//!
//! This is the inner part of every call. It works on what it touches, borrowed apart, so that writing a record cannot
//! be taken for a change of the others.

use crate::arena::Arena;
use crate::rules::Rules;
use crate::slab::{EXPANDABLE, FREE, LIVE, Node, PENDING, TOKEN_BITS, USED, Unused};
use crate::stats::{Stats, class};
use allocator_core::Block;

/// The parts of the allocator that a call works on. `PLAIN`: no block is in an expandable segment.
pub(crate) struct Blocks<'a, const SMALL: bool, const PLAIN: bool> {
    pub arena: &'a mut Arena,
    pub nodes: &'a mut [Node],
    pub unused: &'a mut Unused,
    pub stats: &'a mut Stats,
}

impl<const SMALL: bool, const PLAIN: bool> Blocks<'_, SMALL, PLAIN> {
    /// Gives a block that is in no index to its user, cutting it to size if `split`. The low part is handed out. There
    /// must be an unused record.
    #[inline(always)]
    pub(crate) fn hand_out(self, slot: u32, granules: u64, requested: u64, split: bool) -> Option<Block> {
        let Blocks { arena, nodes, unused, stats } = self;
        let block = &mut nodes[slot as usize];
        let (key, prev, next) = (block.key, block.prev, block.next);
        let size = key >> TOKEN_BITS;
        let meta = block.meta & !FREE;
        let generation = block.generation.wrapping_add(1);
        let was_split = prev | next != 0;
        let (taken, mut splits, mut split_granules);
        block.meta = meta | LIVE;
        block.generation = generation;
        block.set_requested(requested);
        if split {
            taken = granules;
            let tail = unused.take(nodes);
            let block = &mut nodes[slot as usize];
            block.next = tail;
            block.key = key - ((size - granules) << TOKEN_BITS);
            let rest = &mut nodes[tail as usize];
            (rest.prev, rest.next, rest.meta) = (slot, next, meta | FREE);
            nodes[next as usize].prev = tail;
            arena.index.insert::<SMALL>(nodes, tail, key - (granules << TOKEN_BITS) + granules);
            (splits, split_granules) = if was_split { (0, -(granules as i64)) } else { (1, (size - granules) as i64) };
        } else {
            taken = size;
            (splits, split_granules) = if was_split { (-1, -(size as i64)) } else { (0, 0) };
        }
        if !PLAIN && meta & EXPANDABLE != 0 {
            (splits, split_granules) = (0, 0);
        }
        stats.handed_out(class(SMALL), taken, requested, splits, split_granules);
        Block::new(arena.areas.address(key), slot, generation)
    }

    /// Merges a block with its free neighbours and puts the result into the index. Returns the record of the result.
    /// `waited`: it was freed by its owner before, and waited for other streams.
    #[inline(always)]
    pub(crate) fn merge<R: Rules>(self, slot: u32, waited: bool) -> u32 {
        let Blocks { arena, nodes, unused, stats } = self;
        let block = &nodes[slot as usize];
        let Node { mut key, mut prev, mut next, .. } = *block;
        let (size, requested) = (block.size(), block.requested());
        let meta = block.meta & !(LIVE | PENDING | USED) | FREE;
        let mut at = slot;
        let mut splits = 0;
        let below = &nodes[prev as usize];
        if below.is(FREE) {
            at = prev;
            key = below.key + (size << TOKEN_BITS);
            prev = below.prev;
            arena.index.remove::<SMALL>(nodes, at);
            unused.give(nodes, slot);
            splits -= 1;
        }
        let above = &nodes[next as usize];
        if R::MERGE_UPWARDS && above.is(FREE) {
            let absorbed = next;
            key += above.size() << TOKEN_BITS;
            next = above.next;
            arena.index.remove::<SMALL>(nodes, absorbed);
            unused.give(nodes, absorbed);
            splits -= 1;
        }
        let mut split_granules = size as i64 - (key >> TOKEN_BITS) as i64;
        if prev | next != 0 {
            splits += 1;
            split_granules = size as i64;
        }
        nodes[next as usize].prev = at;
        let merged = &mut nodes[at as usize];
        (merged.next, merged.meta) = (next, meta);
        arena.index.insert::<SMALL>(nodes, at, key);
        if !PLAIN && meta & EXPANDABLE != 0 {
            (splits, split_granules) = (0, 0);
        }
        if waited {
            stats.free_completed(class(SMALL), size, requested, splits, split_granules);
        } else {
            stats.returned(class(SMALL), size, requested, splits, split_granules);
        }
        at
    }
}
