//! The free blocks of one arena, in (size, address) order, with constant-time search on real workloads.
//!
//! ```text
//! summary  ..0010..       one bit per word
//!              |
//! words    ..0100..       one bit per bin: not empty
//!              |
//! bins     [head] <-> block <-> block <-> (back to head)      sorted by key
//!          + a count of blocks that were spilled into one ordered map per index
//! ```
//!
//! The small pool has a bin per exact size (the last one takes every larger size, which only expandable segments can
//! make). The large pool has 128 bins per doubling. A block that belongs at neither end of a list, nor is its place found
//! within [`SCAN`] steps, goes to the map; so do the blocks that a search passes in vain, if they are as many. That bounds
//! every operation by a logarithm, amortised.

use crate::slab::{Node, Slab, TOKEN_BITS, key};
use std::collections::BTreeMap;

/// Bins of an index.
const BINS: u32 = 4096;
/// Words of a bit per bin.
const WORDS: usize = (BINS / 64) as usize;
/// Mantissa bits of the large pool's bins.
const MANTISSA: u32 = 7;
/// Steps that a scan of a list may take.
const SCAN: u32 = 16;

/// The index of one arena. `SMALL` chooses the binning.
#[derive(Clone)]
pub(crate) struct FreeIndex {
    summary: u64,
    /// Slot of the first bin's list head; the others follow.
    heads: u32,
    words: [u64; WORDS],
    spill: BTreeMap<u64, u32>,
}

#[inline(always)]
fn bin_of<const SMALL: bool>(size: u64) -> u32 {
    if SMALL {
        (size.min(u64::from(BINS)) - 1) as u32
    } else {
        // Log-linear: the sizes below 128 have a bin each, then each doubling has 128.
        let shift = (size | 1 << MANTISSA).ilog2() - MANTISSA;
        (shift << MANTISSA) + (size >> shift) as u32
    }
}

/// Smallest key of a bin.
fn bin_floor<const SMALL: bool>(bin: u32) -> u64 {
    let size = if SMALL {
        u64::from(bin) + 1
    } else {
        let shift = (bin >> MANTISSA).saturating_sub(1);
        u64::from(bin - (shift << MANTISSA)) << shift
    };
    key(size, 0)
}

/// Makes two records of a list neighbours.
#[inline(always)]
fn join(nodes: &mut [Node], l: u32, r: u32) {
    nodes[l as usize].r = r;
    nodes[r as usize].l = l;
}

impl FreeIndex {
    pub(crate) fn new(slab: &mut Slab) -> FreeIndex {
        let heads = slab.take_run(BINS);
        for head in heads..heads + BINS {
            let node = &mut slab[head];
            (node.l, node.r, node.key) = (head, head, u64::MAX);
        }
        FreeIndex { summary: 0, heads, words: [0; WORDS], spill: BTreeMap::new() }
    }

    /// The smallest sufficient block: the first with key at least (`size`, 0). It stays in the index.
    pub(crate) fn best_fit<const SMALL: bool>(&mut self, nodes: &mut [Node], size: u64) -> Option<u32> {
        let bin = self.first_bin(bin_of::<SMALL>(size))?;
        self.scan::<SMALL>(nodes, bin, key(size, 0))
    }

    /// Takes the smallest sufficient block out.
    #[inline(always)]
    pub(crate) fn take_best<const SMALL: bool>(&mut self, nodes: &mut [Node], size: u64) -> Option<u32> {
        let bin = self.first_bin(bin_of::<SMALL>(size))?;
        let floor = key(size, 0);
        let head = self.heads + bin;
        let Node { r: first, next: spilled, .. } = nodes[head as usize];
        let Node { r: second, key, .. } = nodes[first as usize];
        // In exact bins every block is sufficient, and in the others nearly every one.
        if spilled == 0 && (SMALL || key >= floor) {
            join(nodes, head, second);
            self.clear(bin, second == head);
            return Some(first);
        }
        let slot = self.scan::<SMALL>(nodes, bin, floor)?;
        self.remove::<SMALL>(nodes, slot);
        Some(slot)
    }

    /// The first block with key at least `floor`, in `bin` or a later one. `bin` is not empty.
    #[inline(never)]
    fn scan<const SMALL: bool>(&mut self, nodes: &mut [Node], mut bin: u32, floor: u64) -> Option<u32> {
        loop {
            let head = self.heads + bin;
            let mut at = nodes[head as usize].r;
            let mut steps = 0;
            while nodes[at as usize].key < floor {
                at = nodes[at as usize].r;
                steps += 1;
                if steps == SCAN {
                    at = self.spill_below(nodes, head, floor);
                    break;
                }
            }
            let at = self.or_spilled::<SMALL>(nodes, at, bin, floor);
            if at != head {
                return Some(at);
            }
            bin = self.first_bin(bin + 1)?;
        }
    }

    /// The first bin that is not empty, from `bin` on. `bin` may be one past the last.
    #[inline(always)]
    fn first_bin(&self, bin: u32) -> Option<u32> {
        let mut word = (bin >> 6) as usize;
        let mut bits = self.words.get(word)? & u64::MAX << (bin & 63);
        if bits == 0 {
            let above = self.summary & (u64::MAX - 1) << word;
            if above == 0 {
                return None;
            }
            word = above.trailing_zeros() as usize % WORDS;
            bits = self.words[word];
        }
        Some((word as u32) << 6 | bits.trailing_zeros())
    }

    /// The first block of the bins from `bin` on. `bin` may be one past the last.
    fn first_from<const SMALL: bool>(&self, nodes: &[Node], bin: u32) -> Option<u32> {
        let bin = self.first_bin(bin)?;
        let first = nodes[(self.heads + bin) as usize].r;
        Some(self.or_spilled::<SMALL>(nodes, first, bin, bin_floor::<SMALL>(bin)))
    }

    /// The smaller of the list's candidate (a head's key is all ones) and the bin's first spilled block from `floor`.
    #[cold]
    fn or_spilled<const SMALL: bool>(&self, nodes: &[Node], at: u32, bin: u32, floor: u64) -> u32 {
        match self.spill.range(floor..Self::bin_end::<SMALL>(bin)).next() {
            Some((&key, &slot)) if key < nodes[at as usize].key => slot,
            _ => at,
        }
    }

    /// Keys of the bin are below this.
    fn bin_end<const SMALL: bool>(bin: u32) -> u64 {
        if bin == BINS - 1 { u64::MAX } else { bin_floor::<SMALL>(bin + 1) }
    }

    /// Moves the list's blocks below `floor` to the map: a search passed too many of them. Returns the next block.
    #[cold]
    fn spill_below(&mut self, nodes: &mut [Node], head: u32, floor: u64) -> u32 {
        let mut at = nodes[head as usize].r;
        while nodes[at as usize].key < floor {
            let next = nodes[at as usize].r;
            self.spill_one(nodes, head, at);
            at = next;
        }
        join(nodes, head, at);
        at
    }

    /// Puts a block in: writes its record's links, and its key, which is `key`.
    #[inline(always)]
    pub(crate) fn insert<const SMALL: bool>(&mut self, nodes: &mut [Node], slot: u32, key: u64) {
        let bin = bin_of::<SMALL>(key >> TOKEN_BITS);
        self.words[(bin >> 6) as usize % WORDS] |= 1 << (bin & 63);
        self.summary |= 1 << (bin >> 6);
        let head = self.heads + bin;
        let Node { l: last, r: first, .. } = nodes[head as usize];
        nodes[slot as usize].key = key;
        // In an empty list both are the head, whose key is above all. What goes into another one goes to an end of it
        // most often.
        if nodes[first as usize].key >= key {
            join(nodes, head, slot);
            join(nodes, slot, first);
        } else if nodes[last as usize].key < key {
            join(nodes, last, slot);
            join(nodes, slot, head);
        } else {
            self.insert_between(nodes, head, slot, key);
        }
    }

    /// Puts a block in that belongs between the first and the last one.
    fn insert_between(&mut self, nodes: &mut [Node], head: u32, slot: u32, key: u64) {
        let mut before = nodes[head as usize].r;
        for _ in 0..SCAN {
            let at = nodes[before as usize].r;
            if nodes[at as usize].key >= key {
                join(nodes, before, slot);
                join(nodes, slot, at);
                return;
            }
            before = at;
        }
        self.spill_one(nodes, head, slot);
    }

    #[cold]
    #[inline(never)]
    fn spill_one(&mut self, nodes: &mut [Node], head: u32, slot: u32) {
        nodes[head as usize].next += 1;
        let node = &mut nodes[slot as usize];
        (node.l, node.r) = (slot, slot);
        self.spill.insert(node.key, slot);
    }

    /// Takes a block out.
    #[inline(always)]
    pub(crate) fn remove<const SMALL: bool>(&mut self, nodes: &mut [Node], slot: u32) {
        let Node { l, r, .. } = nodes[slot as usize];
        if l == slot {
            return self.remove_spilled::<SMALL>(nodes, slot);
        }
        join(nodes, l, r);
        // The only neighbour of the last block is the head, whose `next` counts the spilled ones.
        let emptied = (l == r) & (nodes[l as usize].next == 0);
        self.clear(l.wrapping_sub(self.heads), emptied);
    }

    /// Clears the bit of a bin if it was `emptied`; the number is of no interest if not. Whether a list was emptied
    /// is hard to foresee, so this does without a branch.
    #[inline(always)]
    fn clear(&mut self, bin: u32, emptied: bool) {
        let at = (bin >> 6) as usize % WORDS;
        let word = self.words[at] & !(u64::from(emptied) << (bin & 63));
        self.words[at] = word;
        self.summary &= !(u64::from(word == 0) << at);
    }

    #[cold]
    #[inline(never)]
    fn remove_spilled<const SMALL: bool>(&mut self, nodes: &mut [Node], slot: u32) {
        let node = &nodes[slot as usize];
        self.spill.remove(&node.key);
        let bin = bin_of::<SMALL>(node.size());
        let head = &mut nodes[(self.heads + bin) as usize];
        head.next -= 1;
        let emptied = head.next == 0 && head.r == self.heads + bin;
        self.clear(bin, emptied);
    }

    /// The first block with key at least `from`, in logarithmic time plus one list.
    pub(crate) fn at_least<const SMALL: bool>(&self, nodes: &[Node], from: u64) -> Option<u32> {
        let bin = bin_of::<SMALL>((from >> TOKEN_BITS).max(1));
        let head = self.heads + bin;
        let mut at = nodes[head as usize].r;
        while nodes[at as usize].key < from {
            at = nodes[at as usize].r;
        }
        let at = self.or_spilled::<SMALL>(nodes, at, bin, from);
        if at != head { Some(at) } else { self.first_from::<SMALL>(nodes, bin + 1) }
    }

    /// The block after `slot`.
    pub(crate) fn successor<const SMALL: bool>(&self, nodes: &[Node], slot: u32) -> Option<u32> {
        let node = &nodes[slot as usize];
        if node.l == slot {
            return self.at_least::<SMALL>(nodes, node.key + 1);
        }
        let bin = bin_of::<SMALL>(node.size());
        let at = self.or_spilled::<SMALL>(nodes, node.r, bin, node.key + 1);
        if at != self.heads + bin { Some(at) } else { self.first_from::<SMALL>(nodes, bin + 1) }
    }

    /// The last block with a key below `below`.
    pub(crate) fn before<const SMALL: bool>(&self, nodes: &[Node], below: u64) -> Option<u32> {
        let mut bin = bin_of::<SMALL>((below >> TOKEN_BITS).max(1));
        loop {
            let head = self.heads + bin;
            let mut at = nodes[head as usize].l;
            while at != head && nodes[at as usize].key >= below {
                at = nodes[at as usize].l;
            }
            let spilled = self.spill.range(bin_floor::<SMALL>(bin)..Self::bin_end::<SMALL>(bin).min(below)).next_back();
            match spilled {
                Some((&key, &slot)) if at == head || key > nodes[at as usize].key => return Some(slot),
                _ if at != head => return Some(at),
                _ => bin = self.bin_below(bin)?,
            }
        }
    }

    /// The last bin below `bin` that is not empty.
    fn bin_below(&self, bin: u32) -> Option<u32> {
        (0..bin).rev().find(|b| self.words[(b >> 6) as usize] >> (b & 63) & 1 != 0)
    }

    /// All blocks in order.
    pub(crate) fn collect<const SMALL: bool>(&self, nodes: &[Node]) -> Vec<u32> {
        let mut all = Vec::new();
        let mut next = self.first_from::<SMALL>(nodes, 0);
        while let Some(slot) = next {
            all.push(slot);
            next = self.successor::<SMALL>(nodes, slot);
        }
        all
    }

    /// Brings the map in line after the address tokens of the arena's blocks have been renumbered. The order of
    /// blocks has not changed.
    pub(crate) fn rekey(&mut self, nodes: &[Node]) {
        self.spill =
            std::mem::take(&mut self.spill).into_values().map(|slot| (nodes[slot as usize].key, slot)).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::btree_map::Entry;

    /// Every size lies in a bin whose floor is not above it, bins never decrease, and both binnings stay in range.
    #[test]
    fn bins_are_monotonic_and_in_range() {
        fn check<const SMALL: bool>() {
            let mut last = 0;
            let sizes = (1..5000u64).chain((12..30).flat_map(|e| [(1 << e) - 1, 1 << e, (1 << e) + 1, 3 << (e - 1)]));
            let mut sizes: Vec<u64> = sizes.filter(|&s| s < crate::slab::SIZE_LIMIT).collect();
            sizes.sort_unstable();
            for size in sizes {
                let bin = bin_of::<SMALL>(size);
                assert!(bin >= last && bin < BINS, "size {size} in bin {bin} after {last}");
                assert!(bin_floor::<SMALL>(bin) <= key(size, 0), "size {size} below the floor of bin {bin}");
                assert!(key(size, 0) < FreeIndex::bin_end::<SMALL>(bin), "size {size} above bin {bin}");
                last = bin;
            }
        }
        check::<true>();
        check::<false>();
    }

    /// Random insertions, removals and searches against an ordered set, with sizes that collide on purpose, so that
    /// lists overflow into the map and drain again.
    #[test]
    fn agrees_with_an_ordered_set() {
        fn run<const SMALL: bool>(sizes: u64, seed: u64) {
            let mut slab = Slab::new();
            let mut index = FreeIndex::new(&mut slab);
            let mut model: BTreeMap<u64, u32> = BTreeMap::new();
            let mut state = seed;
            let mut random = move |n: u64| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 33) % n
            };
            for step in 0..20_000u64 {
                // Grow for a while, then shrink, so that long lists and empty bins both occur.
                if random(10) < if step / 2_000 % 2 == 0 { 7 } else { 3 } {
                    let key = key(1 + random(sizes) * if SMALL { 1 } else { 37 }, random(1 << 20));
                    if let Entry::Vacant(entry) = model.entry(key) {
                        let slot = slab.take();
                        index.insert::<SMALL>(slab.nodes_mut(), slot, key);
                        entry.insert(slot);
                    }
                } else if let Some((&key, &slot)) =
                    model.range(crate::slab::key(random(sizes * 37), random(1 << 20))..).next()
                {
                    index.remove::<SMALL>(slab.nodes_mut(), slot);
                    slab.give(slot);
                    model.remove(&key);
                }
                let size = 1 + random(sizes.min(2048) * if SMALL { 1 } else { 37 });
                let want = model.range(key(size, 0)..).next().map(|(&key, &slot)| (key, slot));
                let want_slot = want.map(|(_, slot)| slot);
                assert_eq!(index.best_fit::<SMALL>(slab.nodes_mut(), size), want_slot);
                if random(4) == 0 {
                    assert_eq!(index.take_best::<SMALL>(slab.nodes_mut(), size), want_slot);
                    if let Some((key, slot)) = want {
                        slab.give(slot);
                        model.remove(&key);
                    }
                }
                let from = key(size, random(1 << 20));
                assert_eq!(index.at_least::<SMALL>(slab.nodes(), from), model.range(from..).next().map(|(_, &s)| s));
                assert_eq!(index.before::<SMALL>(slab.nodes(), from), model.range(..from).next_back().map(|(_, &s)| s));
                if step % 500 == 0 {
                    assert_eq!(index.collect::<SMALL>(slab.nodes()), model.values().copied().collect::<Vec<_>>());
                }
                assert_eq!(index.best_fit::<SMALL>(slab.nodes_mut(), 1).is_none(), model.is_empty());
            }
        }
        run::<true>(3, 1);
        run::<true>(5_000, 2);
        run::<false>(3, 3);
        run::<false>(200, 4);
        run::<false>(500_000, 5);
    }
}
