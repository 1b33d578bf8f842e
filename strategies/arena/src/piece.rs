//! Pieces of superblocks, as records in one table. A piece goes by its index there, its slot.

/// No slot, no superblock.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// The record stands for nothing.
    Vacant,
    Free,
    Live,
    /// Live, and used on further streams.
    Shared,
    /// Freed by its owner, waiting for other streams.
    Pending,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub ptr: u64,
    pub size: u64,
    /// The largest size in the tree below, this piece included.
    pub max: u64,
    /// The piece below in the superblock.
    pub prev: u32,
    /// The piece above in the superblock.
    pub next: u32,
    /// Where it hangs in a tree.
    pub left: u32,
    pub right: u32,
    pub parent: u32,
    pub superblock: u32,
    /// The stream of a block.
    pub stream: u32,
    /// How often the record had been handed out when it is handed out.
    pub generation: u32,
    pub state: State,
}

impl Piece {
    /// A free piece without neighbours, in no tree.
    pub(crate) fn new(ptr: u64, size: u64, superblock: u32) -> Piece {
        let (prev, next, left, right, parent) = (NONE, NONE, NONE, NONE, NONE);
        let (stream, generation, state) = (0, 0, State::Free);
        Piece { ptr, size, max: size, prev, next, left, right, parent, superblock, stream, generation, state }
    }
}
