//! Pieces of regions, as records in one table. A piece goes by its index there, its slot.

/// No slot.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// The record stands for nothing.
    Vacant,
    /// In the free list of its stream.
    Free,
    Live,
    /// Live, and used on further streams.
    Shared,
    /// Freed by its owner, waiting for other streams.
    Pending,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub ptr: u64,
    pub size: u64,
    /// The piece below in the region.
    pub prev: u32,
    /// The piece above in the region.
    pub next: u32,
    /// Where it hangs in a free list's tree.
    pub left: u32,
    pub right: u32,
    pub region: u32,
    /// The stream whose list it is in, or whose block it is.
    pub stream: u32,
    /// How often the record had been handed out when it is handed out.
    pub generation: u32,
    pub state: State,
}

impl Record {
    /// A free piece without neighbours.
    pub(crate) fn new(ptr: u64, size: u64, region: u32, stream: u32) -> Record {
        let (prev, next, left, right) = (NONE, NONE, NONE, NONE);
        Record { ptr, size, prev, next, left, right, region, stream, generation: 0, state: State::Free }
    }

    /// What free lists are ordered by.
    #[inline]
    pub(crate) fn key(&self) -> (u64, u64) {
        (self.size, self.ptr)
    }
}
