//! An arena: the free blocks of one stream, in one pool, of one size class.
//!
//! PyTorch keeps one ordered set per pool, with the stream as the first key. Since a block never changes its stream,
//! that set falls apart into one index per stream, and the stream takes no part in comparisons.

use crate::address::AddressMap;
use crate::index::FreeIndex;
use crate::slab::{ARENA_SHIFT, FREE, GRANULE_SHIFT, IN_USE, SMALL, Slab};
use allocator_core::{PoolId, StreamId};

/// See the module.
#[derive(Clone)]
pub(crate) struct Arena {
    pub index: FreeIndex,
    pub areas: AddressMap,
    /// Unmapped blocks of expandable segments, by address.
    pub unmapped: Vec<u32>,
    pub stream: StreamId,
    pub pool: PoolId,
    pub small: bool,
}

impl Arena {
    /// The flags that every block of arena `number` carries.
    #[inline(always)]
    pub(crate) fn meta(number: u32, small: bool) -> u32 {
        number << ARENA_SHIFT | if small { SMALL } else { 0 }
    }

    /// Puts a block into the index, marked free.
    pub(crate) fn insert(&mut self, slab: &mut Slab, slot: u32) {
        let key = slab[slot].key;
        slab[slot].meta |= FREE;
        let nodes = slab.nodes_mut();
        if self.small {
            self.index.insert::<true>(nodes, slot, key);
        } else {
            self.index.insert::<false>(nodes, slot, key);
        }
    }

    /// Takes a block out of the index, and clears its mark.
    pub(crate) fn remove(&mut self, slab: &mut Slab, slot: u32) {
        let nodes = slab.nodes_mut();
        if self.small {
            self.index.remove::<true>(nodes, slot)
        } else {
            self.index.remove::<false>(nodes, slot)
        }
        slab[slot].meta &= !FREE;
    }

    pub(crate) fn best_fit(&mut self, slab: &mut Slab, size: u64) -> Option<u32> {
        let nodes = slab.nodes_mut();
        if self.small { self.index.best_fit::<true>(nodes, size) } else { self.index.best_fit::<false>(nodes, size) }
    }

    pub(crate) fn at_least(&self, slab: &Slab, key: u64) -> Option<u32> {
        let nodes = slab.nodes();
        if self.small { self.index.at_least::<true>(nodes, key) } else { self.index.at_least::<false>(nodes, key) }
    }

    pub(crate) fn before(&self, slab: &Slab, key: u64) -> Option<u32> {
        let nodes = slab.nodes();
        if self.small { self.index.before::<true>(nodes, key) } else { self.index.before::<false>(nodes, key) }
    }

    pub(crate) fn successor(&self, slab: &Slab, slot: u32) -> Option<u32> {
        let nodes = slab.nodes();
        if self.small { self.index.successor::<true>(nodes, slot) } else { self.index.successor::<false>(nodes, slot) }
    }

    /// All free blocks, by size and address.
    pub(crate) fn collect(&self, slab: &Slab) -> Vec<u32> {
        let nodes = slab.nodes();
        if self.small { self.index.collect::<true>(nodes) } else { self.index.collect::<false>(nodes) }
    }

    /// Makes the addresses of a new segment known, renumbering the tokens of all blocks if need be. `number` is this
    /// arena's. `false`: the addresses are too far apart.
    pub(crate) fn cover(&mut self, slab: &mut Slab, number: u32, address: u64, bytes: u64) -> bool {
        match self.areas.cover(address, bytes) {
            Ok(None) => true,
            Ok(Some(old)) => {
                self.renumber(slab, number, &old);
                true
            }
            Err(_) => self.cover_anew(slab, number, address, bytes),
        }
    }

    /// The same, without the areas that no block is in any more: a device may give other addresses each time.
    #[cold]
    fn cover_anew(&mut self, slab: &mut Slab, number: u32, address: u64, bytes: u64) -> bool {
        let old = self.areas.clone();
        let mut used = Vec::new();
        for slot in 1..slab.len() {
            let node = &slab[slot];
            if node.is(IN_USE) && node.arena() == number as usize {
                used.push((self.areas.address(node.key), node.size() << GRANULE_SHIFT));
            }
        }
        self.areas = AddressMap::default();
        used.push((address, bytes));
        if used.into_iter().any(|(address, bytes)| self.areas.cover(address, bytes).is_err()) {
            self.areas = old;
            return false;
        }
        self.renumber(slab, number, &old);
        true
    }

    /// Blocks get tokens of the areas as they are now; they had those of `old`.
    fn renumber(&mut self, slab: &mut Slab, number: u32, old: &AddressMap) {
        for slot in 1..slab.len() {
            let node = &mut slab[slot];
            if node.is(IN_USE) && node.arena() == number as usize {
                node.key = self.areas.translate(old, node.key);
            }
        }
        self.index.rekey(slab.nodes());
    }

    /// The address of a block of this arena.
    pub(crate) fn address(&self, slab: &Slab, slot: u32) -> u64 {
        self.areas.address(slab[slot].token())
    }

    pub(crate) fn insert_unmapped(&mut self, slab: &Slab, slot: u32) {
        let at = self.unmapped.partition_point(|&other| slab[other].token() < slab[slot].token());
        self.unmapped.insert(at, slot);
    }

    pub(crate) fn remove_unmapped(&mut self, slab: &Slab, slot: u32) {
        let at = self.unmapped.partition_point(|&other| slab[other].token() < slab[slot].token());
        debug_assert_eq!(self.unmapped[at], slot);
        self.unmapped.remove(at);
    }
}
