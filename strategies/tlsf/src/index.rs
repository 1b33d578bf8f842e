//! Free blocks by size, in lists that two levels of bitmaps find in constant time.
//!
//! Sizes are in granules. An octave (a doubling) of sizes is cut into 2^b equal parts, and each part has a list:
//!
//! ```text
//! b = 2      first level: octaves   0  1  2  3                1 = some list of the octave has a block
//!                                  [0  1  0  1]
//!                                      │     └──────────┐
//!            second level          [0 0 1 0]         [1 0 0 1]
//!            lists of sizes         4 5 6 7      16-19 … … 28-31
//! ```
//!
//! Sizes below 2^b have lists of their own, in octave 0.

use crate::slab::Node;

/// First levels: octaves of any 64-bit size.
const LEVELS: usize = 64;

/// The lists. A head is a slot, 0 for an empty list.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    /// log2 of the lists in an octave.
    bits: u32,
    /// The octaves that have blocks.
    levels: u64,
    /// For each octave, its lists that have blocks.
    lists: [u32; LEVELS],
    heads: Vec<u32>,
}

impl Index {
    /// An empty index with 2^`bits` lists in an octave, 32 at most.
    pub(crate) fn new(bits: u32) -> Index {
        Index { bits, levels: 0, lists: [0; LEVELS], heads: vec![0; LEVELS << bits] }
    }

    /// The octave and the list of a size.
    #[inline]
    fn place(&self, size: u64) -> (usize, u32) {
        let log = (size | 1).ilog2();
        if log < self.bits {
            return (0, size as u32);
        }
        let part = (size >> (log - self.bits)) as u32;
        ((log - self.bits + 1) as usize, part & ((1 << self.bits) - 1))
    }

    #[inline]
    fn head(&self, (level, list): (usize, u32)) -> usize {
        (level << self.bits) + list as usize
    }

    /// Adds a block at the front of its list.
    #[inline]
    pub(crate) fn insert(&mut self, nodes: &mut [Node], slot: u32) {
        let place = self.place(nodes[slot as usize].size);
        let head = self.head(place);
        let first = std::mem::replace(&mut self.heads[head], slot);
        let node = &mut nodes[slot as usize];
        node.prev = 0;
        node.next = first;
        if first != 0 {
            nodes[first as usize].prev = slot;
        }
        self.lists[place.0] |= 1 << place.1;
        self.levels |= 1 << place.0;
    }

    /// Takes a block out of its list.
    #[inline]
    pub(crate) fn remove(&mut self, nodes: &mut [Node], slot: u32) {
        let Node { size, prev, next, .. } = nodes[slot as usize];
        if next != 0 {
            nodes[next as usize].prev = prev;
        }
        if prev != 0 {
            nodes[prev as usize].next = next;
            return;
        }
        let place = self.place(size);
        let head = self.head(place);
        self.heads[head] = next;
        if next == 0 {
            self.lists[place.0] &= !(1 << place.1);
            if self.lists[place.0] == 0 {
                self.levels &= !(1 << place.0);
            }
        }
    }

    /// The first list at or above a place that has blocks.
    #[inline]
    fn first_from(&self, (level, list): (usize, u32)) -> Option<(usize, u32)> {
        let here = self.lists[level] & (u32::MAX << list);
        if here != 0 {
            return Some((level, here.trailing_zeros()));
        }
        let higher = self.levels & ((u64::MAX << level) << 1);
        if higher == 0 {
            return None;
        }
        let level = higher.trailing_zeros() as usize;
        Some((level, self.lists[level].trailing_zeros()))
    }

    /// Good fit: the first block of the first list whose blocks all have `size` granules or more.
    #[inline]
    pub(crate) fn good_fit(&self, size: u64) -> Option<u32> {
        let log = size.max(1).ilog2();
        // Up to the lower bound of the next list, unless it is one.
        let slack = (1u64 << log.saturating_sub(self.bits)) - 1;
        let place = self.first_from(self.place(size.saturating_add(slack)))?;
        Some(self.heads[self.head(place)])
    }

    /// The first block of `size` granules or more in a list.
    fn scan(&self, nodes: &[Node], place: (usize, u32), size: u64) -> Option<u32> {
        self.blocks(nodes, place).find(|&slot| nodes[slot as usize].size >= size)
    }

    fn blocks<'a>(&self, nodes: &'a [Node], place: (usize, u32)) -> impl Iterator<Item = u32> + use<'a> {
        let mut slot = self.heads[self.head(place)];
        std::iter::from_fn(move || {
            let this = slot;
            slot = nodes[this as usize].next;
            (this != 0).then_some(this)
        })
    }

    /// A block of `size` granules or more from the list of that very size, whose blocks may be smaller. Its length is
    /// the cost.
    pub(crate) fn own_list(&self, nodes: &[Node], size: u64) -> Option<u32> {
        self.scan(nodes, self.place(size), size)
    }

    /// The same, from the next list above that has blocks if that one has none.
    pub(crate) fn nearest_list(&self, nodes: &[Node], size: u64) -> Option<u32> {
        self.scan(nodes, self.first_from(self.place(size))?, size)
    }

    /// The block of `size` granules or more at the lowest address. Looks at all blocks of such lists.
    pub(crate) fn lowest(&self, nodes: &[Node], size: u64) -> Option<u32> {
        let mut best: Option<u32> = None;
        let mut place = self.first_from(self.place(size));
        while let Some((level, list)) = place {
            let fits = self.blocks(nodes, (level, list)).filter(|&slot| nodes[slot as usize].size >= size);
            best = fits.chain(best).min_by_key(|&slot| nodes[slot as usize].ptr);
            place = if list + 1 < 1 << self.bits {
                self.first_from((level, list + 1))
            } else if level + 1 < LEVELS {
                self.first_from((level + 1, 0))
            } else {
                None
            };
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a size has to be, to be in the list behind that of `size`.
    fn lower_bound_of_next(bits: u32, size: u64) -> u64 {
        if size < 1 << bits {
            return size + 1;
        }
        let step = 1 << (size.ilog2() - bits);
        (size / step + 1) * step
    }

    #[test]
    fn lists_follow_each_other_without_gap() {
        for bits in 1..=5 {
            let index = Index::new(bits);
            let mut last = index.place(1);
            for size in 2..5000 {
                let place = index.place(size);
                let next = if last.1 + 1 == 1 << bits { (last.0 + 1, 0) } else { (last.0, last.1 + 1) };
                let is_next = lower_bound_of_next(bits, size - 1) == size;
                assert_eq!(place, if is_next { next } else { last }, "bits {bits}, size {size}");
                last = place;
            }
            let (level, list) = index.place(u64::MAX);
            assert_eq!((level, list), ((64 - bits) as usize, (1 << bits) - 1));
        }
    }

    /// Random insertions and removals beside a plain list of what is in the index.
    #[test]
    fn finds_what_a_search_through_all_blocks_finds() {
        for bits in 1..=5 {
            let mut index = Index::new(bits);
            let mut nodes = vec![Node::default()];
            let mut inside: Vec<u32> = Vec::new();
            let mut state = 88_172_645_463_325_252u64;
            let mut random = |below: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % below
            };
            for step in 0..4000u64 {
                if random(5) < 3 {
                    let log = random(14);
                    let size = 1 + random(1 << log);
                    let slot = nodes.len() as u32;
                    nodes.push(Node { ptr: 1 + random(1 << 40), size, ..Node::default() });
                    inside.push(slot);
                    index.insert(&mut nodes, slot);
                } else if !inside.is_empty() {
                    let slot = inside.swap_remove(random(inside.len() as u64) as usize);
                    index.remove(&mut nodes, slot);
                }
                let log = random(14);
                let wanted = 1 + random(1 << log);
                let size = |slot: u32| nodes[slot as usize].size;
                let fits: Vec<u32> = inside.iter().copied().filter(|&slot| size(slot) >= wanted).collect();
                let lowest = fits.iter().copied().min_by_key(|&slot| nodes[slot as usize].ptr);
                assert_eq!(index.lowest(&nodes, wanted), lowest, "bits {bits}, step {step}");

                // Any block of the first list whose blocks all fit; the latest of them, in fact.
                let place = |slot: u32| index.place(size(slot));
                let whole =
                    |slot: u32| place(slot) > index.place(wanted) || index.place(wanted - 1) < index.place(wanted);
                let expected = fits.iter().copied().filter(|&slot| whole(slot)).map(place).min();
                assert_eq!(index.good_fit(wanted).map(place), expected, "bits {bits}, step {step}, size {wanted}");

                let own = fits.iter().copied().find(|&slot| place(slot) == index.place(wanted));
                let found = index.own_list(&nodes, wanted);
                assert_eq!(found.is_some(), own.is_some(), "bits {bits}, step {step}");
                assert!(found.is_none_or(|slot| fits.contains(&slot) && place(slot) == index.place(wanted)));

                let nearest = inside.iter().copied().map(place).filter(|&at| at >= index.place(wanted)).min();
                let expected = fits.iter().any(|&slot| Some(place(slot)) == nearest);
                let found = index.nearest_list(&nodes, wanted);
                assert_eq!(found.is_some(), expected, "bits {bits}, step {step}");
                assert!(found.is_none_or(|slot| fits.contains(&slot) && Some(place(slot)) == nearest));
            }
            assert!(inside.len() > 100);
            for slot in inside {
                index.remove(&mut nodes, slot);
            }
            assert_eq!((index.levels, index.lists, index.heads.iter().sum::<u32>()), (0, [0; LEVELS], 0));
        }
    }
}
