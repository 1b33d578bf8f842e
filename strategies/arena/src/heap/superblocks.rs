//! How superblocks are cut, lent and joined.

use super::{GLOBAL, Heap, SUPERBLOCK, Superblock};
use crate::piece::{NONE, Piece, State};
use crate::tree;

impl Heap {
    /// A superblock with room for `size` bytes goes over to an arena; the free piece.
    pub(super) fn acquire(&mut self, owner: u32, size: u64) -> Option<u32> {
        let slot = tree::first_fit(&self.table, self.roots[GLOBAL as usize], size);
        let &piece = self.table.get(slot as usize)?;
        if self.is_divisible(&piece, SUPERBLOCK) {
            let slot = self.divide(slot, SUPERBLOCK, owner);
            tree::insert(&mut self.table, &mut self.roots[owner as usize], slot);
            return Some(slot);
        }
        self.hand_over(piece.superblock, owner);
        Some(slot)
    }

    /// Whether the piece is all of a superblock that leaves another one when `size` bytes are cut off.
    #[inline]
    pub(super) fn is_divisible(&self, piece: &Piece, size: u64) -> bool {
        let superblock = &self.superblocks[piece.superblock as usize];
        superblock.used == 0 && superblock.size - SUPERBLOCK.min(superblock.size) >= size
    }

    /// Cuts the lower end off an empty superblock, as a superblock of its own with one piece, which is in no tree yet.
    #[inline]
    pub(super) fn divide(&mut self, slot: u32, size: u64, owner: u32) -> u32 {
        let piece = self.table[slot as usize];
        let upper = piece.superblock;
        let prev = self.superblocks[upper as usize].prev;
        let lower = self.add_superblock(piece.ptr, size, owner, prev, upper);
        match self.superblocks.get_mut(prev as usize) {
            Some(below) => below.next = lower,
            None => self.lowest = Some(lower),
        }
        let rest = &mut self.superblocks[upper as usize];
        (rest.ptr, rest.size, rest.prev) = (rest.ptr + size, rest.size - size, lower);
        let first = self.record(Piece::new(piece.ptr, size, lower));
        self.superblocks[lower as usize].first = first;
        self.shrink(slot, size);
        first
    }

    /// Joins an empty superblock of the global arena with those beside it; the one that is left.
    pub(super) fn merge(&mut self, at: u32) -> u32 {
        let joins = |at: u32| {
            let superblock = self.superblocks.get(at as usize);
            superblock.is_some_and(|superblock| superblock.owner == GLOBAL && superblock.used == 0)
        };
        let Superblock { prev, next, .. } = self.superblocks[at as usize];
        let (joins_below, joins_above) = (joins(prev), joins(next));
        if joins_above {
            self.join(at, next);
        }
        if joins_below {
            self.join(prev, at);
            return prev;
        }
        at
    }

    /// Joins two neighbouring empty superblocks.
    fn join(&mut self, lower: u32, upper: u32) {
        let gone = self.superblocks[upper as usize];
        tree::remove(&mut self.table, &mut self.roots[GLOBAL as usize], gone.first);
        self.vacate(gone.first);
        self.vacant_superblocks.push(upper);
        let superblock = &mut self.superblocks[lower as usize];
        (superblock.size, superblock.next) = (superblock.size + gone.size, gone.next);
        let (first, size) = (superblock.first, superblock.size);
        if let Some(beyond) = self.superblocks.get_mut(gone.next as usize) {
            beyond.prev = lower;
        }
        self.table[first as usize].size = size;
        tree::resized(&mut self.table, first);
    }

    /// Moves a superblock, with its free pieces, from one owner to another.
    fn hand_over(&mut self, at: u32, owner: u32) {
        let superblock = &mut self.superblocks[at as usize];
        let from = std::mem::replace(&mut superblock.owner, owner);
        let mut slot = superblock.first;
        while let Some(&Piece { next, state, .. }) = self.table.get(slot as usize) {
            if state == State::Free {
                tree::remove(&mut self.table, &mut self.roots[from as usize], slot);
                tree::insert(&mut self.table, &mut self.roots[owner as usize], slot);
            }
            slot = next;
        }
    }

    /// All superblocks of all streams go back to the global arena. The device has waited for all work.
    pub(crate) fn collect(&mut self) {
        let mut at = self.lowest.unwrap_or(NONE);
        while let Some(&Superblock { owner, used, .. }) = self.superblocks.get(at as usize) {
            if owner != GLOBAL {
                self.hand_over(at, GLOBAL);
                if used == 0 {
                    at = self.merge(at);
                }
            }
            at = self.superblocks[at as usize].next;
        }
    }

    /// A record for a superblock.
    pub(super) fn add_superblock(&mut self, ptr: u64, size: u64, owner: u32, prev: u32, next: u32) -> u32 {
        let superblock = Superblock { ptr, size, owner, first: NONE, used: 0, prev, next };
        match self.vacant_superblocks.pop() {
            Some(at) => {
                self.superblocks[at as usize] = superblock;
                at
            }
            None => {
                self.superblocks.push(superblock);
                (self.superblocks.len() - 1) as u32
            }
        }
    }
}
