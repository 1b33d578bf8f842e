//! The free chunks of one stream, ordered by size and, among equal ones, by the number of their record.
//!
//! Sizes are cut into lists, 64 for each doubling; up to 127 units each size has a list of its own. Two levels of bits say
//! which lists have chunks. A list is a search tree whose shape comes from the records' fixed ranks (a treap), so that
//! neither many chunks in a list nor equal sizes cost more than a logarithm. Its links are in the chunks:
//!
//! ```text
//! words   ..1..1.        one bit a word
//! lists     │  └──▶ ...1......1..      one bit a list
//! trees     └─────▶ .1..   │   └──▶     80 KiB #7
//!                          ▼           ╱         ╲
//!                                80 KiB #3    80.5 KiB #2
//! ```

use crate::slab::Chunk;

/// Log2 of the lists in a doubling, which are the bits of a word.
const LISTS_LOG: u32 = 6;
/// Enough for any 64-bit size in units of 512 bytes.
const WORDS: usize = 50;

/// See the module. Slot 0 stands for no chunk.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    words: u64,
    lists: [u64; WORDS],
    roots: Vec<u32>,
}

/// Where a tree keeps the number of a chunk: a link of its parent, or the root if the parent is 0.
#[derive(Clone, Copy)]
struct Place {
    list: usize,
    parent: u32,
    side: usize,
}

const LEFT: usize = 0;
const RIGHT: usize = 1;

/// The list of a size. Larger sizes have the same one or a later one.
#[inline]
fn list_of(size: u64) -> usize {
    let shift = (size | 1 << LISTS_LOG).ilog2() - LISTS_LOG;
    ((shift as usize) << LISTS_LOG) + (size >> shift) as usize
}

/// The lowest set bit above bit `below`.
#[inline]
fn bit_above(bits: u64, below: usize) -> Option<usize> {
    let above = bits & !(u64::MAX >> (63 - below));
    (above != 0).then_some(above.trailing_zeros() as usize)
}

/// Whether a chunk comes before another one.
#[inline]
fn is_before(chunks: &[Chunk], one: u32, other: u32) -> bool {
    (chunks[one as usize].size, one) < (chunks[other as usize].size, other)
}

impl Index {
    pub(crate) fn new() -> Index {
        Index { words: 0, lists: [0; WORDS], roots: vec![0; WORDS << LISTS_LOG] }
    }

    #[inline]
    fn set(&mut self, chunks: &mut [Chunk], place: Place, slot: u32) {
        match place.parent {
            0 => self.roots[place.list] = slot,
            parent => chunks[parent as usize].child[place.side] = slot,
        }
    }

    /// Adds a chunk.
    #[inline]
    pub(crate) fn insert(&mut self, chunks: &mut [Chunk], slot: u32) {
        let Chunk { size, rank, .. } = chunks[slot as usize];
        let list = list_of(size);
        let mut at = self.roots[list];
        if at == 0 {
            let word = list >> LISTS_LOG;
            self.lists[word] |= 1 << (list & 63);
            self.words |= 1 << word;
        }
        // Down to where its rank belongs.
        let mut place = Place { list, parent: 0, side: LEFT };
        while at != 0 && chunks[at as usize].rank >= rank {
            let side = usize::from(is_before(chunks, at, slot));
            place = Place { list, parent: at, side };
            at = chunks[at as usize].child[side];
        }
        self.set(chunks, place, slot);
        // What was there is parted into the chunks before it and those behind it.
        let mut ends = [LEFT, RIGHT].map(|side| (slot, side));
        while at != 0 {
            let side = usize::from(!is_before(chunks, at, slot));
            let (parent, link) = std::mem::replace(&mut ends[side], (at, 1 - side));
            chunks[parent as usize].child[link] = at;
            at = chunks[at as usize].child[1 - side];
        }
        for (parent, link) in ends {
            chunks[parent as usize].child[link] = 0;
        }
    }

    /// Takes a chunk out. It must be here.
    #[inline]
    pub(crate) fn remove(&mut self, chunks: &mut [Chunk], slot: u32) {
        let list = list_of(chunks[slot as usize].size);
        let mut place = Place { list, parent: 0, side: LEFT };
        let mut at = self.roots[list];
        while at != slot && at != 0 {
            let side = usize::from(is_before(chunks, at, slot));
            place = Place { list, parent: at, side };
            at = chunks[at as usize].child[side];
        }
        self.cut(chunks, place, at);
    }

    /// Takes out the first chunk of at least `size` units.
    #[inline]
    pub(crate) fn take_best(&mut self, chunks: &mut [Chunk], size: u64) -> Option<u32> {
        let own = list_of(size);
        let (place, slot) = match self.first_from(chunks, own, size) {
            Some(found) => found,
            None => self.first_from(chunks, self.list_above(own)?, 0)?,
        };
        self.cut(chunks, place, slot);
        Some(slot)
    }

    /// The next list with chunks.
    #[inline]
    fn list_above(&self, list: usize) -> Option<usize> {
        let word = list >> LISTS_LOG;
        let (word, bit) = match bit_above(self.lists[word], list & 63) {
            Some(bit) => (word, bit),
            None => {
                let word = bit_above(self.words, word)?;
                (word, self.lists[word].trailing_zeros() as usize)
            }
        };
        Some(word << LISTS_LOG | bit)
    }

    /// The first chunk of a list with at least `size` units.
    #[inline]
    fn first_from(&self, chunks: &[Chunk], list: usize, size: u64) -> Option<(Place, u32)> {
        let mut found = None;
        let mut place = Place { list, parent: 0, side: LEFT };
        let mut at = self.roots[list];
        while at != 0 {
            let chunk = &chunks[at as usize];
            let side = usize::from(chunk.size < size);
            if side == LEFT {
                found = Some((place, at));
            }
            place = Place { list, parent: at, side };
            at = chunk.child[side];
        }
        found
    }

    /// Takes out the chunk at a place. Its two subtrees become one.
    #[inline]
    fn cut(&mut self, chunks: &mut [Chunk], mut place: Place, slot: u32) {
        let list = place.list;
        let [mut left, mut right] = chunks[slot as usize].child;
        while left != 0 && right != 0 {
            let (upper, side) = if chunks[left as usize].rank >= chunks[right as usize].rank {
                (&mut left, RIGHT)
            } else {
                (&mut right, LEFT)
            };
            self.set(chunks, place, *upper);
            place = Place { list, parent: *upper, side };
            *upper = chunks[*upper as usize].child[side];
        }
        self.set(chunks, place, left | right);
        if self.roots[list] == 0 {
            let word = list >> LISTS_LOG;
            self.lists[word] &= !(1 << (list & 63));
            if self.lists[word] == 0 {
                self.words &= !(1 << word);
            }
        }
    }

    /// All chunks, in order.
    pub(crate) fn in_order(&self, chunks: &[Chunk]) -> Vec<u32> {
        let (mut order, mut above) = (Vec::new(), Vec::new());
        for &root in self.roots.iter().filter(|&&root| root != 0) {
            let mut at = root;
            while at != 0 || !above.is_empty() {
                while at != 0 {
                    above.push(at);
                    at = chunks[at as usize].child[LEFT];
                }
                if let Some(slot) = above.pop() {
                    order.push(slot);
                    at = chunks[slot as usize].child[RIGHT];
                }
            }
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Slab;
    use std::collections::BTreeSet;

    #[test]
    fn lists_follow_the_order_of_sizes() {
        let sizes = (1..300).chain((9..55).flat_map(|log| [(1 << log) - 1, 1 << log, (1 << log) + (1 << (log - 1))]));
        let lists: Vec<usize> = sizes.map(list_of).collect();
        assert!(lists.is_sorted());
        assert_eq!(lists[..128], (1..=128).collect::<Vec<_>>());
        assert_eq!(list_of(u64::MAX >> 9), (WORDS << LISTS_LOG) - 1);
    }

    #[test]
    fn bits_are_found_from_the_next_one_on() {
        assert_eq!(
            [0, 2, 3, 62, 63].map(|below| bit_above(1 << 63 | 0b1001, below)),
            [Some(3), Some(3), Some(63), Some(63), None]
        );
    }

    /// A chunk of `size` units in a segment of its own.
    fn chunk(slab: &mut Slab, size: u64) -> u32 {
        slab.take(Chunk { size, ..Chunk::default() })
    }

    #[test]
    fn it_is_an_ordered_set() {
        let (mut index, mut slab, mut model) = (Index::new(), Slab::new(), BTreeSet::new());
        let mut seed = 1u64;
        let mut random = move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed >> 33
        };
        let mut found = 0;
        for step in 0..60_000 {
            // Few sizes, so that many are equal, some of them large; at times more comes in, at times more goes.
            let size = (1 + random() % 40) << [0, 0, 3, 17, 40][(random() % 5) as usize];
            match (random() % 5 + step / 20_000 % 2, random() % 2) {
                (0..=2, _) => {
                    let slot = chunk(&mut slab, size);
                    index.insert(&mut slab.chunks, slot);
                    model.insert((size, slot));
                }
                (_, 0) => {
                    let wanted = model.range((size, 0)..).next().copied();
                    assert_eq!(index.take_best(&mut slab.chunks, size), wanted.map(|(_, slot)| slot));
                    if let Some(entry) = wanted {
                        found += 1;
                        model.remove(&entry);
                        slab.give(entry.1);
                    }
                }
                _ => {
                    let at = (size, random() as u32 % 1_000);
                    if let Some(&entry) = model.range(at..).next() {
                        model.remove(&entry);
                        index.remove(&mut slab.chunks, entry.1);
                        slab.give(entry.1);
                    }
                }
            }
            if step % 512 == 0 {
                let order: Vec<u32> = model.iter().map(|&(_, slot)| slot).collect();
                assert_eq!(index.in_order(&slab.chunks), order);
            }
        }
        assert!(found > 5_000 && model.len() > 1_000, "{found} {}", model.len());
    }

    #[test]
    fn a_tree_of_equal_chunks_stays_flat() {
        // Also where only every 1,024th record is in it.
        for stride in [1, 1024] {
            let (mut index, mut slab) = (Index::new(), Slab::new());
            for _ in 0..1024 * stride {
                let slot = chunk(&mut slab, 1);
                if slot.is_multiple_of(stride) {
                    index.insert(&mut slab.chunks, slot);
                }
            }
            let depth_of = |slot: u32| {
                let (mut depth, mut at) = (0, index.roots[1]);
                while at != slot {
                    at = slab.chunks[at as usize].child[usize::from(at < slot)];
                    depth += 1;
                }
                depth
            };
            let depths: Vec<u32> = index.in_order(&slab.chunks).into_iter().map(depth_of).collect();
            let deepest = depths.iter().max().copied().unwrap_or(0);
            assert!(depths.len() > 1_000 && deepest < 40, "{stride}: {} chunks, {deepest} deep", depths.len());
        }
    }
}
