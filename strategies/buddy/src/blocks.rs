//! The blocks that were handed out, by slot.
//!
//! The slots of freed blocks are used again, last one first, each time with another generation, so that a stale block is
//! told from the one that has its slot now.

use crate::heap::Place;
use allocator_core::{Block, StreamId};

/// What a block is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Home {
    /// A block of one of its stream's arenas.
    Arena(Place),
    /// A segment that the driver gave for it.
    Segment { base: u64, size: u64 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Live,
    /// Freed, and other streams may still use it.
    Waiting,
    Vacant,
}

/// What is known of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) ptr: u64,
    pub(crate) home: Home,
    pub(crate) stream: StreamId,
    generation: u32,
    pub(crate) state: State,
    /// Whether other streams use it too.
    pub(crate) is_shared: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks {
    entries: Vec<Entry>,
    vacant: Vec<u32>,
}

impl Blocks {
    /// A live block. `None` if there is none at that address.
    #[inline]
    pub(crate) fn enter(&mut self, ptr: u64, home: Home, stream: StreamId) -> Option<Block> {
        let entry = Entry { ptr, home, stream, generation: 0, state: State::Live, is_shared: false };
        let Some(slot) = self.vacant.pop() else {
            self.entries.push(entry);
            return Block::new(ptr, (self.entries.len() - 1) as u32, 0);
        };
        let generation = self.entries[slot as usize].generation;
        self.entries[slot as usize] = Entry { generation, ..entry };
        Block::new(ptr, slot, generation)
    }

    /// The entry of a block, if it is ours and live.
    #[inline]
    pub(crate) fn live(&self, block: &Block) -> Option<&Entry> {
        self.entries.get(block.slot() as usize).filter(|entry| entry.is(block))
    }

    pub(crate) fn live_mut(&mut self, block: &Block) -> Option<&mut Entry> {
        self.entries.get_mut(block.slot() as usize).filter(|entry| entry.is(block))
    }

    /// A block is freed, and its memory not yet.
    pub(crate) fn set_waiting(&mut self, slot: u32) {
        self.entries[slot as usize].state = State::Waiting;
    }

    /// The slot may be used again; what was in it.
    #[inline]
    pub(crate) fn vacate(&mut self, slot: u32) -> Option<Entry> {
        let entry = self.entries.get_mut(slot as usize)?;
        entry.state = State::Vacant;
        entry.generation = entry.generation.wrapping_add(1);
        self.vacant.push(slot);
        Some(*entry)
    }

    /// All slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }
}

impl Entry {
    #[inline]
    fn is(&self, block: &Block) -> bool {
        self.generation == block.generation() && self.state == State::Live && self.ptr == block.ptr()
    }
}
