//! The free list of one stream: best fit with two bit scans and a look into a small tree.
//!
//! ```text
//! octaves   1 bit for each power of two    ..1..1.
//! parts     8 bits for each octave           │  └──▶ .1....1.
//! trees     by size and address              └─────▶ ..1..│..        (96 KiB at 0x…, 96 KiB at 0x…, 100 KiB at 0x…)
//!                                                      └──┴──▶
//! ```
//!
//! The source walks over an address-ordered list and takes the smallest piece that is large enough, the first one of
//! equals. So does this, without the walk.

use crate::record::{NONE, Record};
use crate::tree;
use allocator_core::Fence;

const OCTAVES: usize = 64;
const PARTS: usize = 8;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct List {
    roots: Vec<u32>,
    octaves: u64,
    parts: [u8; OCTAVES],
    /// Covers all work on the list's pieces.
    pub fence: Option<Fence>,
}

/// The octave of a size and the part of the octave.
#[inline]
fn place(size: u64) -> (usize, usize) {
    let size = size.max(PARTS as u64);
    let octave = size.ilog2() as usize;
    (octave, (size >> (octave - 3)) as usize % PARTS)
}

impl List {
    pub(crate) fn new() -> List {
        List { roots: vec![NONE; OCTAVES * PARTS], octaves: 0, parts: [0; OCTAVES], fence: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.octaves == 0
    }

    /// The smallest piece of at least `size` bytes, of equal ones that with the lowest address; or [`NONE`].
    #[inline]
    pub(crate) fn best_fit(&self, table: &[Record], size: u64) -> u32 {
        let (octave, part) = place(size);
        let found = tree::best_fit(table, self.roots[octave * PARTS + part], size);
        if found != NONE {
            return found;
        }
        let above = u32::from(self.parts[octave]) >> (part + 1) << (part + 1);
        let (octave, part) = if above != 0 {
            (octave, above.trailing_zeros() as usize)
        } else {
            let above = self.octaves & (u64::MAX << octave << 1);
            if above == 0 {
                return NONE;
            }
            let octave = above.trailing_zeros() as usize;
            (octave, self.parts[octave].trailing_zeros() as usize)
        };
        tree::best_fit(table, self.roots[octave * PARTS + part], size)
    }

    #[inline]
    pub(crate) fn insert(&mut self, table: &mut [Record], slot: u32) {
        let (octave, part) = place(table[slot as usize].size);
        tree::insert(table, &mut self.roots[octave * PARTS + part], slot);
        self.parts[octave] |= 1 << part;
        self.octaves |= 1 << octave;
    }

    #[inline]
    pub(crate) fn remove(&mut self, table: &mut [Record], slot: u32) {
        let (octave, part) = place(table[slot as usize].size);
        let root = &mut self.roots[octave * PARTS + part];
        tree::remove(table, root, slot);
        if *root == NONE {
            self.parts[octave] &= !(1 << part);
            if self.parts[octave] == 0 {
                self.octaves &= !(1 << octave);
            }
        }
    }

    /// Takes all pieces out.
    pub(crate) fn drain(&mut self, table: &[Record]) -> Vec<u32> {
        let mut slots = Vec::new();
        self.roots.iter().for_each(|&root| tree::collect(table, root, &mut slots));
        self.roots.fill(NONE);
        (self.octaves, self.parts) = (0, [0; OCTAVES]);
        slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_grow_with_the_size() {
        let sizes = (3..64).flat_map(|bits| (0..8).map(move |part| (1u64 << bits) + (part << (bits - 3))));
        let places: Vec<_> = sizes.map(place).collect();
        assert!(places.is_sorted());
        assert_eq!(place(u64::MAX), (63, 7));
    }

    #[test]
    fn it_finds_what_a_walk_over_all_finds() {
        let (mut list, mut table) = (List::new(), Vec::new());
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let mut free: Vec<u32> = Vec::new();
        let mut found = 0;
        for slot in 0..20_000 {
            let size = ((1 + random() % 40) * 512) << (random() % 20);
            table.push(Record::new(random() << 9, size, 0, 0));
            if random() % 2 == 0 {
                list.insert(&mut table, slot);
                free.push(slot);
                continue;
            }
            let fits = free.iter().copied().filter(|&slot| table[slot as usize].size >= size);
            let best = fits.min_by_key(|&slot| table[slot as usize].key()).unwrap_or(NONE);
            assert_eq!(list.best_fit(&table, size), best);
            if best != NONE {
                found += 1;
                list.remove(&mut table, best);
                free.retain(|&slot| slot != best);
            }
        }
        assert!(found > 5_000 && !free.is_empty());
        let mut rest = list.drain(&table);
        rest.sort_unstable();
        assert_eq!(rest, free);
        assert!(list.is_empty() && list.best_fit(&table, 1) == NONE);
    }
}
