//! Frees that wait for other streams.
//!
//! A block that further streams used is freed in two steps: its owner frees it, a fence is set on each of those
//! streams, and when all fences have passed the block goes to the cache. Fences are polled when memory is next asked
//! for. PyTorch visits the streams in the order of a hash map; here polling goes on until a whole round over the
//! streams completes nothing, so that a device that plays back a recording decides the order.

use crate::engine::Caching;
use crate::rules::Rules;
use crate::slab::USED;
use allocator_core::{AllocError, Block, Device, DeviceError, Fence, PoolId, StreamId, Sync};
use std::collections::VecDeque;

/// The further streams of a block.
#[derive(Clone, Default)]
pub(crate) struct Uses {
    /// Streams without a fence so far, ascending.
    streams: Vec<StreamId>,
    /// Those of them that used it while a pool context was open.
    captured: Vec<StreamId>,
    /// Fences that have not been seen to pass.
    fences: usize,
}

/// Fences in the order they were set, by stream.
#[derive(Clone, Default)]
pub(crate) struct EventQueues {
    /// Ascending by stream.
    queues: Vec<(StreamId, VecDeque<(Fence, u32)>)>,
    waiting: usize,
}

impl EventQueues {
    fn push(&mut self, fence: Fence, slot: u32) {
        let at = match self.queues.binary_search_by_key(&fence.stream, |queue| queue.0) {
            Ok(at) => at,
            Err(at) => {
                self.queues.insert(at, (fence.stream, VecDeque::new()));
                at
            }
        };
        self.queues[at].1.push_back((fence, slot));
        self.waiting += 1;
    }

    fn front(&self, queue: usize) -> Option<(Fence, u32)> {
        self.queues[queue].1.front().copied()
    }

    fn pop(&mut self, queue: usize) {
        if self.queues[queue].1.pop_front().is_some() {
            self.waiting -= 1;
        }
    }
}

impl<R: Rules> Caching<R> {
    pub(crate) fn use_on(&mut self, block: &Block, stream: StreamId) -> Result<(), AllocError> {
        let Some(node) = self.live(block) else {
            return if block.is_empty() { Ok(()) } else { Err(AllocError::NotLive) };
        };
        let slot = block.slot();
        if self.arenas[node.arena()].stream == stream {
            return Ok(());
        }
        self.slab[slot].meta |= USED;
        let uses = self.uses.entry(slot).or_default();
        if let Err(at) = uses.streams.binary_search(&stream) {
            uses.streams.insert(at, stream);
        }
        if !self.pools.captures.is_empty() && !uses.captured.contains(&stream) {
            uses.captured.push(stream);
        }
        Ok(())
    }

    /// Sets a fence on each stream that used the block. On an error nothing has changed.
    pub(crate) fn insert_events(&mut self, dev: &mut dyn Device, slot: u32) -> Result<(), DeviceError> {
        let Some(uses) = self.uses.get_mut(&slot) else { return Ok(()) };
        let fences = uses.streams.iter().map(|&stream| dev.fence(stream)).collect::<Result<Vec<_>, _>>()?;
        uses.streams.clear();
        uses.fences += fences.len();
        for fence in fences {
            self.events.push(fence, slot);
        }
        Ok(())
    }

    /// Blocks that were freed while a context was open get their fences now. What used them only within the context
    /// is ordered by the graph that was captured.
    fn settle_deferred(&mut self, dev: &mut dyn Device) -> Result<(), DeviceError> {
        while let Some(&slot) = self.deferred.first() {
            if let Some(uses) = self.uses.get_mut(&slot) {
                let captured = std::mem::take(&mut uses.captured);
                uses.streams.retain(|stream| !captured.contains(stream));
            }
            self.insert_events(dev, slot)?;
            self.deferred.remove(0);
            if self.uses.get(&slot).is_none_or(|uses| uses.fences == 0) {
                self.complete(dev, slot);
            }
        }
        Ok(())
    }

    /// Frees the blocks whose fences have passed. Not to be called while a context is open.
    pub(crate) fn process_events(&mut self, dev: &mut dyn Device) -> Result<(), DeviceError> {
        self.settle_deferred(dev)?;
        while self.events.waiting > 0 {
            let mut progress = false;
            for queue in 0..self.events.queues.len() {
                while let Some((fence, slot)) = self.events.front(queue) {
                    if !dev.poll(fence)? {
                        break;
                    }
                    self.events.pop(queue);
                    self.passed(dev, slot);
                    progress = true;
                }
            }
            if !progress {
                break;
            }
        }
        Ok(())
    }

    /// Waits for the fences of all blocks, or of those of one pool. Not to be called while a context is open.
    pub(crate) fn synchronize(&mut self, dev: &mut dyn Device, only: Option<PoolId>) -> Result<(), DeviceError> {
        self.stats.num_sync_all_streams += 1;
        match only {
            // What has passed already completes in the device's order.
            None => self.process_events(dev)?,
            Some(_) => self.settle_deferred(dev)?,
        }
        for queue in 0..self.events.queues.len() {
            let mut at = 0;
            while let Some(&(fence, slot)) = self.events.queues[queue].1.get(at) {
                let pool = self.arenas[self.slab[slot].arena()].pool;
                if only.is_some_and(|only| only != pool) {
                    at += 1;
                    continue;
                }
                dev.sync(Sync::Fence(fence))?;
                self.events.queues[queue].1.remove(at);
                self.events.waiting -= 1;
                self.passed(dev, slot);
            }
        }
        Ok(())
    }

    /// One fence of a block has passed.
    fn passed(&mut self, dev: &mut dyn Device, slot: u32) {
        if let Some(uses) = self.uses.get_mut(&slot) {
            uses.fences -= 1;
            if uses.fences > 0 {
                return;
            }
        }
        self.complete(dev, slot);
    }

    fn complete(&mut self, dev: &mut dyn Device, slot: u32) {
        self.uses.remove(&slot);
        let arena = self.slab[slot].arena();
        dev.retired(self.arenas[arena].address(&self.slab, slot));
        self.make_free(slot, true);
    }
}
