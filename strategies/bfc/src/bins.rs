//! The free chunks of one owner, in 21 bins, smallest and lowest first.
//!
//! Bin `b` holds chunks of 256·2^b bytes up to twice that, the last one everything from 256 MiB on. A search goes through
//! the request's own bin and the ones above, and takes the first chunk that is large enough. Since each bin is ordered by
//! size and address, that is the best fit overall.
//!
//! ```text
//! bins    1 bit a bin       ..1..1.     a chunk is found with two bit scans and a look at one short list
//! parts   32 bits a bin       │  └──▶ ...1.....1..
//! lists   ascending           └─────▶ .1..   │   └──▶ [96 KiB at 0x…, 96 KiB at 0x…, 97 KiB at 0x…]
//! rest    a tree                                                        and what is above in a part of too many
//! ```
//!
//! The source keeps a tree for each bin. Here a bin is cut into 32 parts of equal width, each a short sorted list, which is
//! the faster thing to search and to change. Where thousands of chunks are of one size, all but the first few dozen are in
//! a tree. The order is the same.

use std::collections::BTreeSet;

/// Bins, as in the source.
pub(crate) const BINS: usize = 21;
/// Lower end of the first bin, and what the source rounds sizes to.
pub(crate) const SMALLEST: u64 = 256;
const PARTS: usize = 32;
/// The most entries of a list.
const SHORT: usize = 64;

/// A free chunk: what it is ordered by, and which one it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Free {
    pub size: u64,
    pub ptr: u64,
    pub slot: u32,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Bins {
    /// The lowest entries of each part. None is empty where the part has entries.
    lists: Vec<Vec<Free>>,
    /// The others, of all parts.
    rest: BTreeSet<Free>,
    /// For each bin, which of its parts have entries in `rest`.
    long: [u32; BINS],
    /// For each bin, which of its parts have entries.
    parts: [u32; BINS],
    /// Which bins have entries.
    bins: u32,
}

/// The bin and the part for a size; both grow with it.
#[inline]
fn place(size: u64) -> (usize, usize) {
    let bin = ((size / SMALLEST).max(1).ilog2() as usize).min(BINS - 1);
    let part = size.saturating_sub(SMALLEST << bin) >> (bin + 3);
    (bin, (part as usize).min(PARTS - 1))
}

/// The lowest set bit at `from` or above.
#[inline]
fn bit_from(bits: u32, from: usize) -> Option<usize> {
    let above = u64::from(bits) >> from << from;
    (above != 0).then(|| above.trailing_zeros() as usize)
}

impl Bins {
    pub(crate) fn new() -> Bins {
        let lists = vec![Vec::new(); BINS * PARTS];
        Bins { lists, rest: BTreeSet::new(), long: [0; BINS], parts: [0; BINS], bins: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bins == 0
    }

    #[inline]
    pub(crate) fn insert(&mut self, chunk: Free) {
        let (bin, part) = place(chunk.size);
        let list = &mut self.lists[bin * PARTS + part];
        let at = list.partition_point(|other| *other < chunk);
        if at == list.len() && self.long[bin] >> part & 1 != 0 {
            self.rest.insert(chunk);
            return;
        }
        list.insert(at, chunk);
        if list.len() > SHORT {
            self.rest.extend(list.pop());
            self.long[bin] |= 1 << part;
        }
        self.parts[bin] |= 1 << part;
        self.bins |= 1 << bin;
    }

    #[inline]
    pub(crate) fn remove(&mut self, chunk: Free) {
        let (bin, part) = place(chunk.size);
        let list = &mut self.lists[bin * PARTS + part];
        let found = list.binary_search(&chunk).map(|at| list.remove(at));
        if self.long[bin] >> part & 1 != 0 && (found.is_err() || list.is_empty()) {
            self.rest.remove(&chunk);
            self.refill(bin, part);
        } else if list.is_empty() {
            self.parts[bin] &= !(1 << part);
            if self.parts[bin] == 0 {
                self.bins &= !(1 << bin);
            }
        }
    }

    /// Puts the next of a part's other entries into its list, if that is empty.
    #[cold]
    fn refill(&mut self, bin: usize, part: usize) {
        let list = &mut self.lists[bin * PARTS + part];
        let first = Free { size: (SMALLEST << bin) + ((part as u64) << (bin + 3)), ptr: 0, slot: 0 };
        let mut others = self.rest.range(first..).take_while(|chunk| place(chunk.size) == (bin, part)).copied();
        let wanted = if list.is_empty() { SHORT / 2 } else { 0 };
        list.extend(others.by_ref().take(wanted));
        if others.next().is_none() {
            self.long[bin] &= !(1 << part);
        }
        for chunk in list.iter().take(wanted) {
            self.rest.remove(chunk);
        }
    }

    /// The smallest chunk of at least `size` bytes; of equal ones that with the lowest address.
    #[inline]
    pub(crate) fn best_fit(&self, size: u64) -> Option<Free> {
        if self.bins == 0 {
            return None;
        }
        let (bin, part) = place(size);
        let list = &self.lists[bin * PARTS + part];
        let at = list.partition_point(|chunk| chunk.size < size);
        if let Some(chunk) = list.get(at) {
            return Some(*chunk);
        }
        if self.long[bin] >> part & 1 != 0 {
            let other = self.rest.range(Free { size, ptr: 0, slot: 0 }..).next();
            if let Some(&chunk) = other.filter(|chunk| place(chunk.size) == (bin, part)) {
                return Some(chunk);
            }
        }
        let (bin, part) = match bit_from(self.parts[bin], part + 1) {
            Some(part) => (bin, part),
            None => {
                let bin = bit_from(self.bins, bin + 1)?;
                (bin, bit_from(self.parts[bin], 0)?)
            }
        };
        self.lists[bin * PARTS + part].first().copied()
    }

    /// Takes everything out, in order.
    pub(crate) fn drain(&mut self) -> Vec<Free> {
        (self.long, self.parts, self.bins) = ([0; BINS], [0; BINS], 0);
        let mut chunks: Vec<Free> = self.lists.iter_mut().flat_map(|list| list.drain(..)).collect();
        chunks.extend(std::mem::take(&mut self.rest));
        chunks.sort_unstable();
        chunks
    }

    /// The size of the largest chunk, 0 if there is none.
    pub(crate) fn largest(&self) -> u64 {
        let last = self.lists.iter().rev().find_map(|list| list.last());
        last.max(self.rest.last()).map_or(0, |chunk| chunk.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_bin_is_an_octave_from_256_bytes_to_256_mib() {
        let bins = [1, 256, 511, 512, 1024, (256 << 20) - 1, 256 << 20, 1 << 40, u64::MAX].map(|size| place(size).0);
        assert_eq!(bins, [0, 0, 0, 1, 2, 19, 20, 20, 20]);
    }

    #[test]
    fn places_grow_with_the_size() {
        let sizes = (8..40).flat_map(|bits| (0..64).map(move |part| (1u64 << bits) + (part << bits >> 6)));
        let places: Vec<_> = sizes.map(place).collect();
        assert!(places.is_sorted() && places.iter().all(|&(bin, part)| bin < BINS && part < PARTS));
    }

    /// Random insertions and removals beside an ordered set. Sizes are up to `sizes` multiples of 256 bytes above `base`,
    /// shifted by less than `shifts` bits. The most entries that were not in a list.
    fn compare(base: u64, sizes: u64, shifts: u64) -> usize {
        let (mut bins, mut set) = (Bins::new(), BTreeSet::new());
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> 33
        };
        let (mut found, mut longest) = (0, 0);
        for slot in 0..20_000 {
            let size = (base + (1 + random() % sizes) * 256) << (random() % shifts);
            // More and more, then fewer and fewer.
            if random() % 8 < if slot / 4000 % 2 == 0 { 6 } else { 2 } {
                let chunk = Free { size, ptr: random() << 8, slot };
                bins.insert(chunk);
                set.insert(chunk);
            } else {
                let wanted = set.range(Free { size, ptr: 0, slot: 0 }..).next().copied();
                assert_eq!(bins.best_fit(size), wanted);
                // Also one that no request would find now.
                let any = set.range(Free { size, ptr: random() << 8, slot: 0 }..).next().copied();
                for chunk in wanted.into_iter().chain(any.filter(|&any| wanted != Some(any))) {
                    found += 1;
                    bins.remove(chunk);
                    set.remove(&chunk);
                }
            }
            longest = longest.max(bins.rest.len());
            assert_eq!(bins.largest(), set.last().map_or(0, |chunk| chunk.size));
            assert_eq!(bins.is_empty(), set.is_empty());
        }
        assert!(found > 5_000 && !set.is_empty());
        assert_eq!(bins.drain(), set.into_iter().collect::<Vec<_>>());
        assert!(bins.is_empty() && bins.best_fit(1).is_none());
        longest
    }

    #[test]
    fn the_same_chunk_is_found_as_in_an_ordered_set() {
        compare(0, 4000, 14);
    }

    #[test]
    fn also_where_many_share_a_part() {
        for (base, sizes) in [(0, 1), (1 << 20, 300), (1 << 33, 1000)] {
            let others = compare(base, sizes, 1);
            assert!(others > 500, "{others} of sizes from {base} on");
        }
    }
}
