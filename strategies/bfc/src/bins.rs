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
//! ```
//!
//! The source keeps a tree for each bin. Here a bin is cut into 32 parts of equal width, each a sorted list. The order is
//! the same.

/// Bins, as in the source.
pub(crate) const BINS: usize = 21;
/// Lower end of the first bin, and what the source rounds sizes to.
pub(crate) const SMALLEST: u64 = 256;
const PARTS: usize = 32;

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
    lists: Vec<Vec<Free>>,
    /// For each bin, which of its lists have entries.
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
        Bins { lists: vec![Vec::new(); BINS * PARTS], parts: [0; BINS], bins: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bins == 0
    }

    #[inline]
    pub(crate) fn insert(&mut self, chunk: Free) {
        let (bin, part) = place(chunk.size);
        let list = &mut self.lists[bin * PARTS + part];
        let at = list.partition_point(|other| *other < chunk);
        list.insert(at, chunk);
        self.parts[bin] |= 1 << part;
        self.bins |= 1 << bin;
    }

    #[inline]
    pub(crate) fn remove(&mut self, chunk: Free) {
        let (bin, part) = place(chunk.size);
        let list = &mut self.lists[bin * PARTS + part];
        if let Ok(at) = list.binary_search(&chunk) {
            list.remove(at);
        }
        if list.is_empty() {
            self.parts[bin] &= !(1 << part);
            if self.parts[bin] == 0 {
                self.bins &= !(1 << bin);
            }
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
        (self.parts, self.bins) = ([0; BINS], 0);
        self.lists.iter_mut().flat_map(|list| list.drain(..)).collect()
    }

    /// The size of the largest chunk, 0 if there is none.
    pub(crate) fn largest(&self) -> u64 {
        let last = self.lists.iter().rev().find_map(|list| list.last());
        last.map_or(0, |chunk| chunk.size)
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

    #[test]
    fn the_same_chunk_is_found_as_in_an_ordered_set() {
        let (mut bins, mut set) = (Bins::new(), BTreeSet::new());
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> 33
        };
        let mut found = 0;
        for slot in 0..20_000 {
            let size = ((1 + random() % 4000) * 256) << (random() % 14);
            if random() % 2 == 0 {
                let chunk = Free { size, ptr: random() << 8, slot };
                bins.insert(chunk);
                set.insert(chunk);
            } else {
                let wanted = set.range(Free { size, ptr: 0, slot: 0 }..).next().copied();
                assert_eq!(bins.best_fit(size), wanted);
                if let Some(chunk) = wanted {
                    found += 1;
                    bins.remove(chunk);
                    set.remove(&chunk);
                }
            }
            assert_eq!(bins.largest(), set.last().map_or(0, |chunk| chunk.size));
        }
        assert!(found > 5_000 && !set.is_empty());
        assert_eq!(bins.drain(), set.into_iter().collect::<Vec<_>>());
        assert!(bins.is_empty() && bins.best_fit(1).is_none());
    }
}
