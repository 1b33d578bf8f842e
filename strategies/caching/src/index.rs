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
//! make). The large pool has 128 bins per doubling. A list whose insertion point is not found within [`SCAN`] steps
//! spills the block into the map, which bounds every operation by a logarithm.

use crate::slab::{FREE, Node, SPILLED, Slab, TOKEN_BITS, key};
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
        let shift = (63 - MANTISSA).saturating_sub((size | 1).leading_zeros());
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
    #[inline(always)]
    pub(crate) fn best_fit<const SMALL: bool>(&mut self, slab: &mut Slab, size: u64) -> Option<u32> {
        let bin = bin_of::<SMALL>(size);
        if SMALL {
            // Every block of an exact bin is sufficient, so the request's own bin is like any other.
            return self.first_from::<SMALL>(slab, bin);
        }
        if self.words[(bin >> 6) as usize % WORDS] >> (bin & 63) & 1 != 0 {
            let floor = key(size, 0);
            let head = self.heads + bin;
            let mut at = slab[head].r;
            let mut steps = 0;
            while slab[at].key < floor {
                at = slab[at].r;
                steps += 1;
                if steps == SCAN {
                    at = self.spill_below(slab, head, floor);
                    break;
                }
            }
            if slab[head].next != 0 {
                at = self.or_spilled::<SMALL>(slab, at, bin, floor);
            }
            if at != head {
                return Some(at);
            }
        }
        self.first_from::<SMALL>(slab, bin + 1)
    }

    /// The first block of the first bin that is not empty, from `bin` on.
    #[inline(always)]
    fn first_from<const SMALL: bool>(&self, slab: &Slab, bin: u32) -> Option<u32> {
        let word = (bin >> 6) as usize;
        // `bin` may be one past the last.
        let bits = if word < self.words.len() { self.words[word] & u64::MAX << (bin & 63) } else { 0 };
        let bin = if bits != 0 {
            (bin & !63) + bits.trailing_zeros()
        } else {
            let later = self.summary & (u64::MAX << (word & 63)) << 1;
            if later == 0 || word >= self.words.len() {
                return None;
            }
            let word = later.trailing_zeros();
            (word << 6) + self.words[word as usize % WORDS].trailing_zeros()
        };
        let head = self.heads + bin;
        let first = slab[head].r;
        if slab[head].next != 0 {
            return Some(self.or_spilled::<SMALL>(slab, first, bin, bin_floor::<SMALL>(bin)));
        }
        Some(first)
    }

    /// The smaller of the list's candidate (a head's key is all ones) and the bin's first spilled block from `floor`.
    #[cold]
    fn or_spilled<const SMALL: bool>(&self, slab: &Slab, at: u32, bin: u32, floor: u64) -> u32 {
        match self.spill.range(floor..Self::bin_end::<SMALL>(bin)).next() {
            Some((&key, &slot)) if key < slab[at].key => slot,
            _ => at,
        }
    }

    /// Keys of the bin are below this.
    fn bin_end<const SMALL: bool>(bin: u32) -> u64 {
        if bin == BINS - 1 { u64::MAX } else { bin_floor::<SMALL>(bin + 1) }
    }

    /// Moves the list's blocks below `floor` to the map: a search passed too many of them. Returns the next block.
    #[cold]
    fn spill_below(&mut self, slab: &mut Slab, head: u32, floor: u64) -> u32 {
        let mut at = slab[head].r;
        while slab[at].key < floor {
            let next = slab[at].r;
            slab[at].meta |= SPILLED;
            self.spill.insert(slab[at].key, at);
            slab[head].next += 1;
            at = next;
        }
        slab[head].r = at;
        slab[at].l = head;
        at
    }

    /// Puts a block in, marked free. `node` is its record but for the links, and is written as a whole.
    #[inline(always)]
    pub(crate) fn insert<const SMALL: bool>(&mut self, slab: &mut Slab, slot: u32, node: Node) {
        let bin = bin_of::<SMALL>(node.size());
        self.words[(bin >> 6) as usize % WORDS] |= 1 << (bin & 63);
        self.summary |= 1 << (bin >> 6);
        let head = self.heads + bin;
        let mut at = slab[head].r;
        let mut steps = 0;
        let before = loop {
            let other = &mut slab[at];
            if other.key >= node.key {
                let before = other.l;
                other.l = slot;
                break before;
            }
            at = other.r;
            steps += 1;
            if steps == SCAN {
                return self.spill_one(slab, head, slot, node);
            }
        };
        slab[before].r = slot;
        slab[slot] = Node { l: before, r: at, meta: node.meta | FREE, ..node };
    }

    #[cold]
    #[inline(never)]
    fn spill_one(&mut self, slab: &mut Slab, head: u32, slot: u32, node: Node) {
        slab[head].next += 1;
        slab[slot] = Node { meta: node.meta | FREE | SPILLED, ..node };
        self.spill.insert(node.key, slot);
    }

    /// Takes a block out and clears its mark.
    #[inline(always)]
    pub(crate) fn remove<const SMALL: bool>(&mut self, slab: &mut Slab, slot: u32) {
        let node = &mut slab[slot];
        if node.is(SPILLED) {
            return self.remove_spilled::<SMALL>(slab, slot);
        }
        node.meta &= !FREE;
        let (l, r) = (node.l, node.r);
        slab[r].l = l;
        let before = &mut slab[l];
        before.r = r;
        // The only neighbour of the last block is the head, whose `next` counts the spilled ones.
        if l == r && before.next == 0 {
            self.clear(l - self.heads);
        }
    }

    #[inline(always)]
    fn clear(&mut self, bin: u32) {
        let word = &mut self.words[(bin >> 6) as usize % WORDS];
        *word &= !(1 << (bin & 63));
        if *word == 0 {
            self.summary &= !(1 << (bin >> 6));
        }
    }

    #[cold]
    #[inline(never)]
    fn remove_spilled<const SMALL: bool>(&mut self, slab: &mut Slab, slot: u32) {
        self.spill.remove(&slab[slot].key);
        slab[slot].meta &= !(FREE | SPILLED);
        let bin = bin_of::<SMALL>(slab[slot].size());
        let head = self.heads + bin;
        slab[head].next -= 1;
        if slab[head].next == 0 && slab[head].r == head {
            self.clear(bin);
        }
    }

    /// The first block with key at least `from`, in logarithmic time plus one list.
    pub(crate) fn at_least<const SMALL: bool>(&self, slab: &Slab, from: u64) -> Option<u32> {
        let bin = bin_of::<SMALL>((from >> TOKEN_BITS).max(1));
        let head = self.heads + bin;
        let mut at = slab[head].r;
        while slab[at].key < from {
            at = slab[at].r;
        }
        let at = self.or_spilled::<SMALL>(slab, at, bin, from);
        if at != head { Some(at) } else { self.first_from::<SMALL>(slab, bin + 1) }
    }

    /// The block after `slot`.
    pub(crate) fn successor<const SMALL: bool>(&self, slab: &Slab, slot: u32) -> Option<u32> {
        let node = &slab[slot];
        if node.is(SPILLED) {
            return self.at_least::<SMALL>(slab, node.key + 1);
        }
        let bin = bin_of::<SMALL>(node.size());
        let at = self.or_spilled::<SMALL>(slab, node.r, bin, node.key + 1);
        if at != self.heads + bin { Some(at) } else { self.first_from::<SMALL>(slab, bin + 1) }
    }

    /// The last block with a key below `below`.
    pub(crate) fn before<const SMALL: bool>(&self, slab: &Slab, below: u64) -> Option<u32> {
        let mut bin = bin_of::<SMALL>((below >> TOKEN_BITS).max(1));
        loop {
            let head = self.heads + bin;
            let mut at = slab[head].l;
            while at != head && slab[at].key >= below {
                at = slab[at].l;
            }
            let spilled = self.spill.range(bin_floor::<SMALL>(bin)..Self::bin_end::<SMALL>(bin).min(below)).next_back();
            match spilled {
                Some((&key, &slot)) if at == head || key > slab[at].key => return Some(slot),
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
    pub(crate) fn collect<const SMALL: bool>(&self, slab: &Slab) -> Vec<u32> {
        let mut all = Vec::new();
        let mut next = self.first_from::<SMALL>(slab, 0);
        while let Some(slot) = next {
            all.push(slot);
            next = self.successor::<SMALL>(slab, slot);
        }
        all
    }

    /// Brings the map in line after the address tokens of the arena's blocks have been renumbered. The order of
    /// blocks has not changed.
    pub(crate) fn rekey(&mut self, slab: &Slab) {
        self.spill = std::mem::take(&mut self.spill).into_values().map(|slot| (slab[slot].key, slot)).collect();
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
                        let node = Node { key, ..slab[slot] };
                        index.insert::<SMALL>(&mut slab, slot, node);
                        entry.insert(slot);
                    }
                } else if let Some((&key, &slot)) =
                    model.range(crate::slab::key(random(sizes * 37), random(1 << 20))..).next()
                {
                    index.remove::<SMALL>(&mut slab, slot);
                    slab.give(slot);
                    model.remove(&key);
                }
                let size = 1 + random(sizes.min(2048) * if SMALL { 1 } else { 37 });
                let want = model.range(key(size, 0)..).next().map(|(_, &slot)| slot);
                assert_eq!(index.best_fit::<SMALL>(&mut slab, size), want);
                let from = key(size, random(1 << 20));
                assert_eq!(index.at_least::<SMALL>(&slab, from), model.range(from..).next().map(|(_, &s)| s));
                assert_eq!(index.before::<SMALL>(&slab, from), model.range(..from).next_back().map(|(_, &s)| s));
                if step % 500 == 0 {
                    assert_eq!(index.collect::<SMALL>(&slab), model.values().copied().collect::<Vec<_>>());
                }
                assert_eq!(index.best_fit::<SMALL>(&mut slab, 1).is_none(), model.is_empty());
            }
        }
        run::<true>(3, 1);
        run::<true>(5_000, 2);
        run::<false>(3, 3);
        run::<false>(200, 4);
        run::<false>(500_000, 5);
    }
}
