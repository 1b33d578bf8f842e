//! The simulated stream-ordered pool: memory that is freed in the order of a stream.
//!
//! It keeps nothing and never runs ahead: a freed block goes back to the device as a whole when its stream has come to
//! the free, and is seen to have done so at the next call that takes memory from the pool, trims it or waits. What the
//! driver makes of its settings, and reuse before the stream has come so far, are not modelled.

use super::clock::Clock;
use crate::device::Fence;
use crate::request::StreamId;
use std::collections::{BTreeMap, VecDeque};

/// The pool's blocks, by address.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool {
    /// All that are not back yet, and whether they are live.
    blocks: BTreeMap<u64, bool>,
    /// Those that were freed, by the stream that has to come to the free, oldest first.
    freed: BTreeMap<StreamId, VecDeque<(Fence, u64)>>,
}

impl Pool {
    pub(super) fn take(&mut self, ptr: u64) {
        self.blocks.insert(ptr, true);
    }

    pub(super) fn is_live(&self, ptr: u64) -> bool {
        self.blocks.get(&ptr) == Some(&true)
    }

    /// Whether the block is not back yet.
    pub(super) fn has(&self, ptr: u64) -> bool {
        self.blocks.contains_key(&ptr)
    }

    /// A live block is freed at this point of a stream.
    pub(super) fn give(&mut self, ptr: u64, point: Fence) {
        self.blocks.insert(ptr, false);
        self.freed.entry(point.stream).or_default().push_back((point, ptr));
    }

    /// Takes out a block whose free was reached.
    pub(super) fn next_reached(&mut self, clock: &mut Clock) -> Option<u64> {
        let queue = self
            .freed
            .values_mut()
            .find(|queue| queue.front().is_some_and(|&(point, _)| clock.poll(point) == Some(true)))?;
        let (_, ptr) = queue.pop_front()?;
        self.blocks.remove(&ptr);
        Some(ptr)
    }
}
