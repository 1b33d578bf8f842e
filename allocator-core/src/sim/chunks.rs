//! Whole driver pages, taken from chunks of address space.

use super::arena::PAGE;
use super::maxima::Maxima;
use std::collections::{BTreeMap, BTreeSet};

/// Pages of the smallest chunk. Larger ones are multiples of it.
const UNIT_PAGES: u32 = 16;
const UNIT: u64 = UNIT_PAGES as u64 * PAGE;
/// Chunks lie below this address.
const TOP: u64 = 0x7fff_0000_0000;
/// Units of the address space, down to where virtual memory begins.
const UNITS: u32 = ((TOP - 0x7000_0000_0000) / UNIT) as u32;
/// Gaps that a CUDA context has when it is fresh, where it keeps its own things: address and pages, oldest first.
const OF_THE_CONTEXT: [(u64, u32); 2] = [(TOP + (488 << 20), 12), (TOP + (414 << 20), 1)];

/// See [`super::arena`].
#[derive(Clone, Debug)]
pub(super) struct Chunks {
    /// By age: the newest has the highest number.
    chunks: BTreeMap<u32, Chunk>,
    /// Their numbers, by address.
    at: BTreeMap<u64, u32>,
    /// The longest gap of each.
    room: Maxima,
    space: Space,
}

/// A piece of address space.
#[derive(Clone, Debug)]
struct Chunk {
    start: u64,
    pages: u32,
    /// Whether it is the context's, and stays.
    stays: bool,
    /// Lengths of the gaps, by first page.
    gaps: BTreeMap<u32, u32>,
    /// The same, by length.
    by_len: BTreeSet<(u32, u32)>,
}

impl Default for Chunks {
    fn default() -> Chunks {
        let none = (BTreeMap::new(), BTreeMap::new());
        let mut all = Chunks { chunks: none.0, at: none.1, room: Maxima::default(), space: Space::default() };
        for (start, pages) in OF_THE_CONTEXT {
            all.add(start, pages, true);
        }
        all
    }
}

impl Chunks {
    /// Takes pages; their address, or `None` if there are no addresses left.
    pub(super) fn take(&mut self, pages: u32) -> Option<u64> {
        let number = match self.room.last_at_least(pages) {
            Some(number) => number,
            None => {
                let units = pages.div_ceil(UNIT_PAGES);
                let start = self.space.take(units)?;
                self.add(start, units * UNIT_PAGES, false)
            }
        };
        let chunk = self.chunks.get_mut(&number)?;
        let &(len, first) = chunk.by_len.range((pages, 0)..).next()?;
        chunk.remove_gap(first, len);
        if len > pages {
            chunk.add_gap(first + pages, len - pages);
        }
        self.room.set(number, chunk.longest());
        Some(chunk.start + u64::from(first) * PAGE)
    }

    /// Gives back what `take` returned.
    pub(super) fn give(&mut self, ptr: u64, pages: u32) {
        let Some(&number) = self.at.range(..=ptr).next_back().map(|(_, number)| number) else { return };
        let Some(chunk) = self.chunks.get_mut(&number) else { return };
        let (mut first, mut len) = (((ptr - chunk.start) / PAGE) as u32, pages);
        if let Some(&after) = chunk.gaps.get(&(first + len)) {
            chunk.remove_gap(first + len, after);
            len += after;
        }
        let before = chunk.gaps.range(..first).next_back().map(|(&start, &len)| (start, len));
        if let Some((start, before)) = before.filter(|(start, len)| start + len == first) {
            chunk.remove_gap(start, before);
            (first, len) = (start, before + len);
        }
        if len == chunk.pages && !chunk.stays {
            let (start, units) = (chunk.start, chunk.pages / UNIT_PAGES);
            self.chunks.remove(&number);
            self.at.remove(&start);
            self.room.set(number, 0);
            self.space.give(start, units);
        } else {
            chunk.add_gap(first, len);
            self.room.set(number, chunk.longest());
        }
    }

    fn add(&mut self, start: u64, pages: u32, stays: bool) -> u32 {
        let next = self.chunks.last_key_value().map_or(0, |(number, _)| number + 1);
        let number = if next as usize > 2 * self.chunks.len() + 64 { self.renumber() } else { next };
        let mut chunk = Chunk { start, pages, stays, gaps: BTreeMap::new(), by_len: BTreeSet::new() };
        chunk.add_gap(0, pages);
        self.room.set(number, pages);
        self.at.insert(start, number);
        self.chunks.insert(number, chunk);
        number
    }

    /// Closes the holes that chunks left in the numbers; the next number.
    fn renumber(&mut self) -> u32 {
        self.room = Maxima::default();
        let chunks = std::mem::take(&mut self.chunks);
        for (number, (_, chunk)) in (0..).zip(chunks) {
            self.room.set(number, chunk.longest());
            self.at.insert(chunk.start, number);
            self.chunks.insert(number, chunk);
        }
        self.chunks.len() as u32
    }

    /// The longest gap of each chunk, oldest first.
    #[cfg(test)]
    pub(super) fn longest_gaps(&self) -> Vec<u32> {
        self.chunks.values().map(Chunk::longest).collect()
    }
}

impl Chunk {
    fn add_gap(&mut self, first: u32, len: u32) {
        self.gaps.insert(first, len);
        self.by_len.insert((len, first));
    }

    fn remove_gap(&mut self, first: u32, len: u32) {
        self.gaps.remove(&first);
        self.by_len.remove(&(len, first));
    }

    fn longest(&self) -> u32 {
        self.by_len.last().map_or(0, |&(len, _)| len)
    }
}

/// Address space in units, counted from the top down: the highest hole that fits, and its upper end.
///
/// A hole fits if it is one unit longer than what is taken from it. This is how addresses come out when the driver asks
/// the kernel for one unit more, to align what it gets.
#[derive(Clone, Debug, Default)]
struct Space {
    /// Lengths of what is taken, by first unit.
    taken: BTreeMap<u32, u32>,
    /// Lengths of the holes between, by first unit.
    holes: Maxima,
    /// Units from here on were never taken, or are free again up to the end.
    end: u32,
}

impl Space {
    fn take(&mut self, units: u32) -> Option<u64> {
        let first = match self.holes.first_at_least(units + 1) {
            Some(first) => {
                let len = self.holes.get(first);
                self.holes.set(first, 0);
                self.holes.set(first + units, len - units);
                first
            }
            None if units <= UNITS - self.end => {
                self.end += units;
                self.end - units
            }
            None => return None,
        };
        self.taken.insert(first, units);
        Some(TOP - u64::from(first + units) * UNIT)
    }

    fn give(&mut self, start: u64, units: u32) {
        let first = ((TOP - start) / UNIT) as u32 - units;
        self.taken.remove(&first);
        let before = self.taken.range(..first).next_back();
        let hole = before.map_or(0, |(first, len)| first + len);
        if hole < first {
            self.holes.set(hole, 0);
        }
        match self.taken.range(first..).next() {
            Some((&after, _)) => {
                self.holes.set(first + units, 0);
                self.holes.set(hole, after - hole);
            }
            None => self.end = hole,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_found_from_the_top_and_need_one_unit_more() {
        let mut space = Space::default();
        let at = |unit: u32| TOP - u64::from(unit) * UNIT;
        assert_eq!(
            [space.take(2), space.take(3), space.take(1), space.take(1)],
            [2, 5, 6, 7].map(|unit| Some(at(unit)))
        );
        space.give(at(5), 3);
        assert_eq!(space.take(3), Some(at(10)), "a hole of three is too short for three");
        assert_eq!(space.take(2), Some(at(4)));
        space.give(at(2), 2);
        space.give(at(4), 2);
        assert_eq!(space.take(4), Some(at(4)), "neighbours join");
        for (unit, units) in [(4, 4), (6, 1), (7, 1), (10, 3)] {
            space.give(at(unit), units);
        }
        assert_eq!((space.end, space.holes.first_at_least(1)), (0, None));
        assert_eq!(space.take(UNITS), Some(at(UNITS)));
        assert_eq!(space.take(1), None);
    }

    #[test]
    fn numbers_stay_few_and_in_order() {
        let mut chunks = Chunks::default();
        let old = chunks.take(UNIT_PAGES - 2).unwrap();
        for _ in 0..10_000 {
            let ptr = chunks.take(5 * UNIT_PAGES).unwrap();
            chunks.give(ptr, 5 * UNIT_PAGES);
        }
        assert!(chunks.chunks.keys().all(|&number| number < 200));
        let new = chunks.take(UNIT_PAGES - 2).unwrap();
        assert_eq!(chunks.take(2), Some(new + u64::from(UNIT_PAGES - 2) * PAGE), "the newest first");
        assert_eq!(chunks.take(2), Some(old + u64::from(UNIT_PAGES - 2) * PAGE));
    }
}
