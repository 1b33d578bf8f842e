//! The arenas of one stream: where the lowest free block of an order lies.
//!
//! Arenas are tried in the order of their numbers, and a new one gets the lowest number that is vacant. So the same arenas
//! are filled again and again, and the later ones have a chance to become unused as a whole.

use crate::arena::Arena;
use crate::bits::Bits;

/// A block within a stream's arenas.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) arena: u32,
    pub(crate) order: u32,
    /// Its number among those of its order.
    pub(crate) number: u32,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Heap {
    arenas: Vec<Option<Arena>>,
    /// By order: the arenas that have a free block of it.
    holders: Vec<Bits>,
    /// How many arenas `holders` has room for.
    room: usize,
    /// Bit k: some arena has a free block of order k.
    orders: u64,
    /// Whether blocks were put back without merging since the last [`Heap::coalesce`].
    unmerged: bool,
}

impl Heap {
    /// A heap without arenas, for arenas of at most `max_order`.
    pub(crate) fn new(max_order: u32) -> Heap {
        let room = 64;
        let holders = vec![Bits::new(room); max_order as usize + 1];
        Heap { arenas: Vec::new(), holders, room, orders: 0, unmerged: false }
    }

    /// Takes a block: of the smallest order that serves, the lowest number in the first arena that has one.
    #[inline]
    pub(crate) fn take(&mut self, order: u32) -> Option<Place> {
        let serves = self.orders >> order << order;
        let from = serves.trailing_zeros();
        let at = self.holders.get(from as usize)?.first()?;
        let arena = self.arenas[at as usize].as_mut()?;
        let before = arena.orders();
        let number = arena.take(order, from)?;
        let after = arena.orders();
        self.note(at, before, after);
        Some(Place { arena: at, order, number })
    }

    /// Puts a block back.
    #[inline]
    pub(crate) fn give(&mut self, place: Place, merge: bool) {
        let Some(arena) = &mut self.arenas[place.arena as usize] else { return };
        let before = arena.orders();
        arena.give(place.order, place.number, merge);
        let after = arena.orders();
        self.unmerged |= !merge;
        self.note(place.arena, before, after);
    }

    /// The address of a block's arena, and the number of its first unit therein.
    #[inline]
    pub(crate) fn locate(&self, place: Place) -> Option<(u64, u64)> {
        let arena = self.arenas.get(place.arena as usize)?.as_ref()?;
        Some((arena.base, u64::from(place.number) << place.order))
    }

    /// Merges all free buddies. `false` if there was nothing to look at.
    pub(crate) fn coalesce(&mut self) -> bool {
        if !std::mem::take(&mut self.unmerged) {
            return false;
        }
        for at in 0..self.arenas.len() {
            let Some(arena) = &mut self.arenas[at] else { continue };
            let before = arena.orders();
            arena.coalesce();
            let after = arena.orders();
            self.note(at as u32, before, after);
        }
        true
    }

    /// Adds an arena that is one free block.
    pub(crate) fn add(&mut self, arena: Arena) {
        let vacant = self.arenas.iter().position(Option::is_none);
        let at = vacant.unwrap_or_else(|| {
            self.arenas.push(None);
            self.arenas.len() - 1
        });
        if at >= self.room {
            self.room *= 2;
            for holders in &mut self.holders {
                let mut wider = Bits::new(self.room);
                holders.iter().for_each(|arena| wider.insert(arena));
                *holders = wider;
            }
        }
        let after = arena.orders();
        self.arenas[at] = Some(arena);
        self.note(at as u32, 0, after);
    }

    /// How many numbers of arenas are or were in use.
    pub(crate) fn len(&self) -> usize {
        self.arenas.len()
    }

    /// The arena of that number, if there is one.
    pub(crate) fn arena(&self, at: usize) -> Option<&Arena> {
        self.arenas.get(at)?.as_ref()
    }

    /// Forgets an arena.
    pub(crate) fn remove(&mut self, at: usize) {
        if let Some(arena) = self.arenas.get_mut(at).and_then(Option::take) {
            self.note(at as u32, arena.orders(), 0);
        }
    }

    /// An arena has free blocks of other orders than before.
    #[inline]
    fn note(&mut self, at: u32, before: u64, after: u64) {
        let mut changed = before ^ after;
        while changed != 0 {
            let order = changed.trailing_zeros();
            let holders = &mut self.holders[order as usize];
            if after >> order & 1 != 0 {
                holders.insert(at);
                self.orders |= 1 << order;
            } else {
                holders.remove(at);
                if holders.is_empty() {
                    self.orders &= !(1 << order);
                }
            }
            changed &= changed - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heap(arenas: u64) -> Heap {
        let mut heap = Heap::new(3);
        (0..arenas).for_each(|at| heap.add(Arena::new(at << 20, 3)));
        heap
    }

    /// What `take` must find, by looking everywhere.
    fn expected(heap: &Heap, order: u32) -> Option<Place> {
        let arenas = (0..heap.len()).filter_map(|at| Some((at as u32, heap.arena(at)?)));
        let blocks = arenas.flat_map(|(at, arena)| arena.free_blocks().map(move |(k, number)| (k, at, number)));
        let (from, arena, number) = blocks.filter(|&(k, ..)| k >= order).min()?;
        Some(Place { arena, order, number: number << (from - order) })
    }

    #[test]
    fn the_smallest_block_of_the_first_arena_is_taken() {
        for (seed, merge) in [(1, true), (2, true), (3, false), (4, false)] {
            let mut heap = heap(5);
            let (mut taken, mut state) = (Vec::new(), seed);
            for round in 0..3000_u32 {
                state = u64::wrapping_mul(state, 6_364_136_223_846_793_005).wrapping_add(1);
                let choice = (state >> 33) as usize;
                if choice.is_multiple_of(2) || taken.is_empty() {
                    let order = (choice / 2 % 4) as u32;
                    let expected = expected(&heap, order);
                    assert_eq!(heap.take(order), expected);
                    taken.extend(expected);
                } else {
                    heap.give(taken.swap_remove(choice / 2 % taken.len()), merge);
                }
                if round.is_multiple_of(50) {
                    assert_eq!(heap.coalesce(), !merge && round > 0, "frees without merging, and none with");
                }
                // An unused arena goes and another one comes, under the lowest vacant number.
                if let Some(at) = (0..heap.len()).find(|&at| heap.arena(at).is_some_and(Arena::is_unused)) {
                    heap.remove(at);
                    assert!(heap.arena(at).is_none());
                    heap.add(Arena::new(u64::from(round) << 30, 3));
                    assert_eq!((heap.len(), heap.arena(at).map(|arena| arena.base >> 30)), (5, Some(round.into())));
                }
            }
        }
    }

    #[test]
    fn there_may_be_more_arenas_than_a_word_has_bits() {
        let mut heap = heap(200);
        for arena in 0..200 {
            let place = Place { arena, order: 3, number: 0 };
            assert_eq!(heap.take(3), Some(place));
            assert_eq!(heap.locate(place), Some((u64::from(arena) << 20, 0)));
        }
        assert_eq!(heap.take(0), None);
        heap.give(Place { arena: 150, order: 3, number: 0 }, true);
        assert_eq!(heap.take(2), Some(Place { arena: 150, order: 2, number: 0 }));
        assert_eq!(heap.locate(heap.clone().take(2).unwrap()), Some((150 << 20, 4)));
    }

    #[test]
    fn arenas_of_less_than_the_greatest_order_serve_what_they_can() {
        let mut heap = Heap::new(3);
        heap.add(Arena::new(0, 1));
        assert_eq!((heap.take(2), heap.take(1)), (None, Some(Place { arena: 0, order: 1, number: 0 })));
    }
}
