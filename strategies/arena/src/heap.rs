//! One block of the device, tiled by superblocks, which are tiled by pieces.
//!
//! A superblock belongs to the arena of a stream or to the global one. Only its owner hands out its free pieces.
//!
//! ```text
//! block        ├────────────────────────────────────────────────────────────────────────────────┤
//! superblocks  [ stream 0, 1 MiB ][ global, 5 MiB ][ stream 1, 1 MiB ][ global, the rest        ]
//! pieces       [ live ][ free ][l][ live          ][ free            ][ free                    ]
//! ```
//!
//! Free pieces of a superblock merge at once. Superblocks merge when both are empty and global.

mod superblocks;

use crate::piece::{NONE, Piece, State};
use crate::tree;

/// Superblocks are no smaller, and smaller requests are served by the arena of their stream.
pub(crate) const SUPERBLOCK: u64 = 1 << 20;
/// The global arena, as an owner.
pub(crate) const GLOBAL: u32 = 0;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Superblock {
    ptr: u64,
    size: u64,
    pub owner: u32,
    /// The lowest piece.
    first: u32,
    /// Pieces that are not free.
    used: u32,
    prev: u32,
    next: u32,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heap {
    table: Vec<Piece>,
    vacant: Vec<u32>,
    superblocks: Vec<Superblock>,
    vacant_superblocks: Vec<u32>,
    /// The lowest superblock, if there is a block.
    lowest: Option<u32>,
    /// The free pieces of each owner.
    roots: Vec<u32>,
    /// Pieces that are not free.
    used: u32,
}

impl Heap {
    /// Makes sure that the owner has a tree.
    #[inline]
    pub(crate) fn open(&mut self, owner: u32) {
        if self.roots.len() <= owner as usize {
            self.roots.resize(owner as usize + 1, NONE);
        }
    }

    /// Takes the device's block, as one empty superblock of the global arena.
    pub(crate) fn start(&mut self, ptr: u64, size: u64) {
        self.open(GLOBAL);
        let superblock = self.add_superblock(ptr, size, GLOBAL, NONE, NONE);
        let first = self.record(Piece::new(ptr, size, superblock));
        self.superblocks[superblock as usize].first = first;
        tree::insert(&mut self.table, &mut self.roots[GLOBAL as usize], first);
        self.lowest = Some(superblock);
    }

    /// The device has its block back; nothing in it was used.
    pub(crate) fn stop(&mut self) {
        self.roots.fill(NONE);
        let mut at = self.lowest.take().unwrap_or(NONE);
        while let Some(&Superblock { first, next, .. }) = self.superblocks.get(at as usize) {
            let mut slot = first;
            while let Some(&Piece { next, .. }) = self.table.get(slot as usize) {
                self.vacate(slot);
                slot = next;
            }
            at = next;
        }
        self.superblocks.clear();
        self.vacant_superblocks.clear();
    }

    /// Whether any piece is live or pending.
    pub(crate) fn is_used(&self) -> bool {
        self.used > 0
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&Piece> {
        self.table.get(slot as usize)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut Piece> {
        self.table.get_mut(slot as usize)
    }

    #[inline]
    pub(crate) fn owner(&self, piece: &Piece) -> u32 {
        self.superblocks[piece.superblock as usize].owner
    }

    /// A piece of up to [`SUPERBLOCK`] bytes from an arena, which gets another superblock if it has none that fits.
    #[inline]
    pub(crate) fn take_small(&mut self, owner: u32, size: u64) -> Option<u32> {
        match tree::first_fit(&self.table, self.roots[owner as usize], size) {
            NONE => {
                let slot = self.acquire(owner, size)?;
                Some(self.cut(slot, size))
            }
            slot => Some(self.cut(slot, size)),
        }
    }

    /// A piece of more than [`SUPERBLOCK`] bytes from the global arena. If it comes from an empty superblock, that is cut
    /// to its size, unless too little would be left.
    #[inline]
    pub(crate) fn take_large(&mut self, size: u64) -> Option<u32> {
        let slot = tree::first_fit(&self.table, self.roots[GLOBAL as usize], size);
        let &piece = self.table.get(slot as usize)?;
        if !self.is_divisible(&piece, size) {
            return Some(self.cut(slot, size));
        }
        let slot = self.divide(slot, size, GLOBAL);
        self.mark_used(slot);
        Some(slot)
    }

    /// A free piece loses its lower end.
    #[inline]
    fn shrink(&mut self, slot: u32, size: u64) {
        let piece = &mut self.table[slot as usize];
        (piece.ptr, piece.size) = (piece.ptr + size, piece.size - size);
        tree::resized(&mut self.table, slot);
    }

    /// Cuts the lower end off a free piece of a tree; the part that is not free any more.
    #[inline]
    fn cut(&mut self, slot: u32, size: u64) -> u32 {
        let piece = self.table[slot as usize];
        let superblock = piece.superblock as usize;
        let taken = if piece.size == size {
            let root = &mut self.roots[self.superblocks[superblock].owner as usize];
            tree::remove(&mut self.table, root, slot);
            slot
        } else {
            let lower = Piece { prev: piece.prev, next: slot, ..Piece::new(piece.ptr, size, piece.superblock) };
            let taken = self.record(lower);
            match self.table.get_mut(piece.prev as usize) {
                Some(below) => below.next = taken,
                None => self.superblocks[superblock].first = taken,
            }
            self.table[slot as usize].prev = taken;
            self.shrink(slot, size);
            taken
        };
        self.mark_used(taken);
        taken
    }

    #[inline]
    fn mark_used(&mut self, slot: u32) {
        let piece = &mut self.table[slot as usize];
        piece.state = State::Live;
        self.superblocks[piece.superblock as usize].used += 1;
        self.used += 1;
    }

    /// A live or pending piece is free.
    #[inline]
    pub(crate) fn release(&mut self, slot: u32) {
        let piece = self.table[slot as usize];
        let superblock = &mut self.superblocks[piece.superblock as usize];
        superblock.used -= 1;
        self.used -= 1;
        let (is_empty, owner) = (superblock.used == 0, superblock.owner);
        let is_free = |slot: u32| self.table.get(slot as usize).is_some_and(|piece| piece.state == State::Free);
        match (is_free(piece.prev), is_free(piece.next)) {
            (true, joins_above) => {
                let mut size = piece.size;
                let mut next = piece.next;
                if joins_above {
                    tree::remove(&mut self.table, &mut self.roots[owner as usize], piece.next);
                    let above = self.table[piece.next as usize];
                    (size, next) = (size + above.size, above.next);
                    self.vacate(piece.next);
                }
                self.vacate(slot);
                let below = &mut self.table[piece.prev as usize];
                (below.size, below.next) = (below.size + size, next);
                if let Some(beyond) = self.table.get_mut(next as usize) {
                    beyond.prev = piece.prev;
                }
                tree::resized(&mut self.table, piece.prev);
            }
            (false, true) => {
                let above = &mut self.table[piece.next as usize];
                (above.ptr, above.size, above.prev) = (piece.ptr, above.size + piece.size, piece.prev);
                match self.table.get_mut(piece.prev as usize) {
                    Some(below) => below.next = piece.next,
                    None => self.superblocks[piece.superblock as usize].first = piece.next,
                }
                self.vacate(slot);
                tree::resized(&mut self.table, piece.next);
            }
            (false, false) => {
                self.table[slot as usize].state = State::Free;
                tree::insert(&mut self.table, &mut self.roots[owner as usize], slot);
            }
        }
        if is_empty && owner == GLOBAL {
            self.merge(piece.superblock);
        }
    }

    /// Every piece with its superblock, by address.
    pub(crate) fn visit(&self, visit: &mut dyn FnMut(&Superblock, &Piece)) {
        let mut at = self.lowest.unwrap_or(NONE);
        while let Some(superblock) = self.superblocks.get(at as usize) {
            let mut slot = superblock.first;
            while let Some(piece) = self.table.get(slot as usize) {
                visit(superblock, piece);
                slot = piece.next;
            }
            at = superblock.next;
        }
    }

    /// A record for a piece. Its generation goes on from the record's last use.
    #[inline]
    fn record(&mut self, piece: Piece) -> u32 {
        match self.vacant.pop() {
            Some(slot) => {
                let generation = self.table[slot as usize].generation;
                self.table[slot as usize] = Piece { generation, ..piece };
                slot
            }
            None => {
                self.table.push(piece);
                (self.table.len() - 1) as u32
            }
        }
    }

    #[inline]
    fn vacate(&mut self, slot: u32) {
        self.table[slot as usize].state = State::Vacant;
        self.vacant.push(slot);
    }
}

#[cfg(test)]
mod tests;
