//! Chunks as records in one vector, and the chain of neighbours in a segment.
//!
//! ```text
//! segment   [ a | free | b | free ]      below ◀── record ──▶ above; 0 at both ends
//! ```
//!
//! Slot 0 stands for "none" and is never free, so a neighbour can be looked at without asking whether there is one.

use allocator_core::rank;

/// What a record stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum State {
    /// Nothing.
    #[default]
    Unused,
    /// A chunk in its stream's index.
    Free,
    /// A chunk that was handed out.
    Live,
    /// The same, used on further streams.
    Shared,
    /// A chunk that was freed and waits for other streams.
    Pending,
}

/// One chunk. Sizes are counted in units.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chunk {
    /// Address of the first byte.
    pub ptr: u64,
    pub size: u64,
    /// The neighbour at lower addresses.
    pub below: u32,
    /// The neighbour at higher addresses.
    pub above: u32,
    /// Free: the two subtrees in the index. Unused: the next unused record is the first of them.
    pub child: [u32; 2],
    /// The record's rank in the index, the same all its life.
    pub rank: u32,
    /// How often the record had been handed out.
    pub generation: u32,
    /// The number of its stream.
    pub lane: u32,
    pub state: State,
}

impl Chunk {
    /// Whether it is all of its segment.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        self.below | self.above == 0
    }
}

/// The records.
#[derive(Clone, Debug)]
pub(crate) struct Slab {
    pub chunks: Vec<Chunk>,
    /// The last record that became unused; 0 if there is none.
    unused: u32,
}

impl Slab {
    pub(crate) fn new() -> Slab {
        Slab { chunks: vec![Chunk::default()], unused: 0 }
    }

    /// A record for a chunk, the last one that became unused if there is one. It keeps its rank and its generation.
    #[inline]
    pub(crate) fn take(&mut self, chunk: Chunk) -> u32 {
        let slot = self.unused;
        if slot == 0 {
            let slot = self.chunks.len() as u32;
            self.chunks.push(Chunk { rank: rank(slot), generation: 0, ..chunk });
            return slot;
        }
        let record = &mut self.chunks[slot as usize];
        self.unused = record.child[0];
        *record = Chunk { rank: record.rank, generation: record.generation, ..chunk };
        slot
    }

    /// Gives a record back.
    #[inline]
    pub(crate) fn give(&mut self, slot: u32) {
        let chunk = &mut self.chunks[slot as usize];
        chunk.state = State::Unused;
        chunk.child[0] = self.unused;
        self.unused = slot;
    }

    /// Cuts what is above the first `size` units off a larger chunk. The new chunk is free, and in no index.
    #[inline]
    pub(crate) fn split(&mut self, slot: u32, size: u64, unit_log: u32) -> u32 {
        let chunk = self.chunks[slot as usize];
        let ptr = chunk.ptr + (size << unit_log);
        let rest = Chunk { ptr, size: chunk.size - size, below: slot, state: State::Free, ..chunk };
        let rest = self.take(rest);
        if chunk.above != 0 {
            self.chunks[chunk.above as usize].below = rest;
        }
        let chunk = &mut self.chunks[slot as usize];
        chunk.size = size;
        chunk.above = rest;
        rest
    }

    /// Adds the neighbour above, which is in no index, to a chunk.
    #[inline]
    pub(crate) fn absorb_above(&mut self, slot: u32) {
        let gone = self.chunks[slot as usize].above;
        let Chunk { size, above, .. } = self.chunks[gone as usize];
        let chunk = &mut self.chunks[slot as usize];
        chunk.size += size;
        chunk.above = above;
        if above != 0 {
            self.chunks[above as usize].below = slot;
        }
        self.give(gone);
    }

    /// The chunks of a segment by address, given the lowest.
    pub(crate) fn segment(&self, first: u32) -> impl Iterator<Item = &Chunk> {
        std::iter::successors(Some(&self.chunks[first as usize]), |chunk| {
            (chunk.above != 0).then(|| &self.chunks[chunk.above as usize])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_chunk_is_whole_again_when_its_parts_are_joined() {
        let mut slab = Slab::new();
        let first = slab.take(Chunk { ptr: 1 << 20, size: 10, state: State::Live, ..Chunk::default() });
        let third = slab.split(first, 7, 9);
        let second = slab.split(first, 3, 9);
        let parts: Vec<_> = slab.segment(first).map(|chunk| ((chunk.ptr - (1 << 20)) >> 9, chunk.size)).collect();
        assert_eq!(parts, [(0, 3), (3, 4), (7, 3)]);
        assert_eq!((slab.chunks[third as usize].below, slab.chunks[second as usize].below), (second, first));
        slab.absorb_above(second);
        slab.absorb_above(first);
        assert_eq!(slab.segment(first).map(|chunk| chunk.size).collect::<Vec<_>>(), [10]);
        assert!(slab.chunks[first as usize].is_whole());
        assert_eq!([0; 3].map(|_| slab.take(Chunk::default())), [second, third, second + 1], "the last one first");
    }

    #[test]
    fn a_record_keeps_its_rank_and_its_generation() {
        let mut slab = Slab::new();
        let slot = slab.take(Chunk::default());
        let rank = slab.chunks[slot as usize].rank;
        slab.chunks[slot as usize].generation = 7;
        slab.give(slot);
        assert_eq!(slab.take(Chunk { rank: 3, generation: 3, ..Chunk::default() }), slot);
        let chunk = &slab.chunks[slot as usize];
        assert_eq!((chunk.rank, chunk.generation), (rank, 7));
    }
}
