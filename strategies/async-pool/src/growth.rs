//! How contiguous memory comes about, and how memory goes back: pieces move, are created, or leave.
//!
//! ```text
//! place     [ live ][ free ][ hole      ][ free ][ hole …      the row where the least is missing
//! stock up  out of the stock, then pieces that are free as a whole elsewhere, then a new one
//! map       [ live ][ the request                ] …
//! ```

use crate::index::Key;
use crate::parts::{COMMON, State};
use crate::pool::AsyncPool;
use allocator_core::{Device, DeviceError};

/// A piece in a free part.
struct FreePiece {
    seq: u64,
    from: u64,
    to: u64,
    slot: u32,
}

/// Addresses for a request, and how many of their bytes have no memory.
struct Place {
    start: u64,
    end: u64,
    missing: u64,
}

impl AsyncPool {
    /// Makes contiguous memory: chooses addresses, and brings pieces there out of the stock, from other addresses, and from
    /// the device, in that order.
    pub(crate) fn remap(&mut self, dev: &mut dyn Device, lane: u32, size: u64) -> Result<Option<Key>, DeviceError> {
        let Some(place) = self.place(lane, size) else { return Ok(None) };
        while let Some((slot, hole)) = self.parts.hole_in(place.start, place.end) {
            let from = hole.ptr.max(place.start);
            let need = self.up(place.end.min(hole.end())) - from;
            let room = hole.end() - from;
            if !self.stock_up(dev, lane, &place, need, room)? {
                return Ok(None);
            }
            let bytes = self.pieces.map(dev, from, need, room)?;
            self.parts.fill(slot, from, from + bytes, lane);
        }
        Ok(self.parts.best_fit(lane, size))
    }

    /// The first page boundary at or above an address in the range.
    fn up(&self, ptr: u64) -> u64 {
        self.base + (ptr - self.base).next_multiple_of(self.rules.page)
    }

    /// Where the least memory is missing; of equals the lowest. A place is a row of holes and of free parts that the stream
    /// may use.
    fn place(&self, lane: u32, size: u64) -> Option<Place> {
        let usable = |slot: u32| {
            let part = self.parts.get(slot)?;
            let is_free = part.state == State::Free && (part.lane == lane || part.lane == COMMON);
            (is_free || part.state == State::Hole).then_some(part)
        };
        let mut best: Option<Place> = None;
        let mut reached = 0;
        for (ptr, hole) in self.parts.holes() {
            if ptr < reached {
                continue;
            }
            let (mut slot, mut start, mut part) = (hole, ptr, self.parts.get(hole)?);
            while let Some(before) = usable(part.prev).filter(|before| before.ptr >= reached) {
                (slot, start, part) = (part.prev, before.ptr, before);
            }
            let end = start + size;
            let mut missing = 0;
            reached = start;
            while let Some(part) = usable(slot).filter(|_| reached < end) {
                if part.state == State::Hole {
                    missing += (end.min(part.end()) - part.ptr).next_multiple_of(self.rules.page);
                }
                (reached, slot) = (part.end(), part.next);
            }
            if reached >= end && best.as_ref().is_none_or(|best| missing < best.missing) {
                best = Some(Place { start, end, missing });
            }
        }
        best
    }

    /// Sees to it that the stock has `need` bytes for a hole of `room`. False: there are not enough.
    fn stock_up(
        &mut self,
        dev: &mut dyn Device,
        lane: u32,
        place: &Place,
        need: u64,
        room: u64,
    ) -> Result<bool, DeviceError> {
        let mut stocked = self.pieces.stocked(need, room);
        if stocked >= need {
            return Ok(true);
        }
        // A piece that fits beside what the stock can give adds to it: the stock gives its last pieces first, and those
        // that had no room have none beside one more.
        for piece in self.free_pieces(&[COMMON, lane], Some(place)) {
            if piece.to - piece.from <= room - stocked {
                let bytes = self.unmap(dev, &piece)?;
                (stocked, self.counts.moved) = (stocked + bytes, self.counts.moved + bytes);
                if stocked >= need {
                    return Ok(true);
                }
            }
        }
        let missing = need - stocked;
        let left = self.rules.limit.saturating_sub(self.pieces.reserved);
        let step = missing.next_multiple_of(self.rules.chunk).min(room - stocked);
        let is_enough = (step <= left && self.pieces.create(dev, step)?)
            || (missing < step && missing <= left && self.pieces.create(dev, missing)?);
        self.counts.reserved_high = self.counts.reserved_high.max(self.pieces.reserved);
        Ok(is_enough)
    }

    /// Pieces in free parts of these lanes that no work uses, but for those of a place, the longest free first, and of one
    /// part the last one first.
    fn free_pieces(&self, lanes: &[u32], place: Option<&Place>) -> Vec<FreePiece> {
        let mut found = Vec::new();
        let is_apart = |from: u64, to: u64| place.is_none_or(|place| to <= place.start || place.end <= from);
        for &lane in lanes {
            let done = if lane == COMMON { u64::MAX } else { self.lanes.done(lane) };
            self.parts.visit_free(lane, self.rules.page, &mut |slot, part| {
                if part.seq <= done {
                    let pieces = self.pieces.within(part.ptr, part.end()).filter(|&(from, to)| is_apart(from, to));
                    found.extend(pieces.map(|(from, to)| FreePiece { seq: part.seq, from, to, slot }));
                }
            });
        }
        found.sort_unstable_by_key(|piece| (piece.seq, std::cmp::Reverse(piece.from)));
        found
    }

    /// Takes a free piece into the stock; its bytes.
    fn unmap(&mut self, dev: &mut dyn Device, piece: &FreePiece) -> Result<u64, DeviceError> {
        let bytes = self.pieces.unmap(dev, piece.from)?;
        self.parts.drain(piece.slot, piece.from, piece.to);
        Ok(bytes)
    }

    /// Gives pieces that no work uses back to the device, until at most `keep` bytes are reserved.
    pub(crate) fn give_back(&mut self, dev: &mut dyn Device, keep: u64) -> Result<(), DeviceError> {
        self.pieces.release(dev, keep)?;
        if self.pieces.reserved <= keep {
            return Ok(());
        }
        let lanes: Vec<u32> = std::iter::once(COMMON).chain(self.lanes.all()).collect();
        for piece in self.free_pieces(&lanes, None) {
            if self.pieces.reserved <= keep {
                break;
            }
            self.unmap(dev, &piece)?;
            self.pieces.release(dev, keep)?;
        }
        Ok(())
    }
}
