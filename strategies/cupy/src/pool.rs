//! All memory: the streams' free chunks, and what is held of the device.
//!
//! ```text
//! hit     the stream's smallest free chunk that is large enough, cut to the request
//! miss 1  a new segment of just the request's size, if the limit and the device have room
//!      2  all segments that are one free chunk go back, those of all streams; then 1 again
//!      3  the host waits for chunks that other streams use; then they are looked through, and 2 again
//! ```
//!
//! Where 3 is, the source has Python's garbage collector look for arrays that nobody can reach any more.

use crate::index::Index;
use crate::slab::{Chunk, Slab, State};
use allocator_core::{AllocError, Block, Device, DeviceError, StreamId, StreamNumbers, StreamUses, Sync};

/// CuPy's memory pool. A block's slot is that of its record.
#[derive(Clone, Debug)]
pub struct Cupy {
    /// Log2 of what sizes are rounded to.
    unit_log: u32,
    /// Bytes that may be reserved.
    pub(crate) limit: u64,
    pub(crate) slab: Slab,
    lanes: Vec<Lane>,
    numbers: StreamNumbers,
    /// Streams that have come to hold memory so far.
    arrivals: u64,
    pub(crate) uses: StreamUses,
    pub(crate) reserved: u64,
}

/// A stream.
#[derive(Clone, Debug)]
struct Lane {
    stream: StreamId,
    free: Index,
    segments: u32,
    /// Its number among the arrivals: streams give memory back in that order.
    arrival: u64,
}

fn failed(error: DeviceError) -> AllocError {
    match error {
        DeviceError::OutOfMemory => AllocError::OutOfMemory,
        other => other.into(),
    }
}

impl Cupy {
    /// A pool without memory.
    pub(crate) fn empty(unit_log: u32, limit: u64) -> Cupy {
        let (slab, uses) = (Slab::new(), StreamUses::default());
        let (lanes, numbers) = (Vec::new(), StreamNumbers::default());
        Cupy { unit_log, limit, slab, lanes, numbers, arrivals: 0, uses, reserved: 0 }
    }

    /// The index of a stream.
    #[inline]
    fn lane(&mut self, stream: StreamId) -> u32 {
        self.numbers.get(stream).unwrap_or_else(|| {
            self.lanes.push(Lane { stream, free: Index::new(), segments: 0, arrival: 0 });
            self.numbers.add(stream)
        })
    }

    pub(crate) fn stream(&self, chunk: &Chunk) -> StreamId {
        self.lanes[chunk.lane as usize].stream
    }

    pub(crate) fn bytes(&self, chunk: &Chunk) -> u64 {
        chunk.size << self.unit_log
    }

    /// The block's record, or `None` if the block is not ours or not live any more.
    #[inline]
    pub(crate) fn find(&mut self, block: &Block) -> Option<&mut Chunk> {
        let chunk = self.slab.chunks.get_mut(block.slot() as usize)?;
        let is_live = matches!(chunk.state, State::Live | State::Shared);
        let is_same = chunk.generation == block.generation() && chunk.ptr == block.ptr();
        (is_live && is_same).then_some(chunk)
    }

    /// Serves a request of `bytes`, which are not 0.
    #[inline]
    pub(crate) fn serve(&mut self, dev: &mut dyn Device, bytes: u64, stream: StreamId) -> Result<Block, AllocError> {
        let mask = (1u64 << self.unit_log) - 1;
        let size = bytes.checked_add(mask).ok_or(AllocError::TooLarge)? >> self.unit_log;
        if self.uses.is_waiting() {
            self.settle(dev, StreamUses::FEW).map_err(failed)?;
        }
        let lane = self.lane(stream);
        let slot = match self.take(lane, size) {
            Some(slot) => slot,
            None => self.miss(dev, lane, size)?,
        };
        let chunk = &mut self.slab.chunks[slot as usize];
        chunk.state = State::Live;
        chunk.generation = chunk.generation.wrapping_add(1);
        Block::new(chunk.ptr, slot, chunk.generation).ok_or(AllocError::AddressSpace)
    }

    /// Takes a free chunk out of the stream's index, cut to `size` units.
    #[inline]
    fn take(&mut self, lane: u32, size: u64) -> Option<u32> {
        let index = &mut self.lanes[lane as usize].free;
        let slot = index.take_best(&mut self.slab.chunks, size)?;
        if self.slab.chunks[slot as usize].size > size {
            let rest = self.slab.split(slot, size, self.unit_log);
            index.insert(&mut self.slab.chunks, rest);
        }
        Some(slot)
    }

    /// A chunk becomes free and merges with its free neighbours.
    #[inline]
    pub(crate) fn put(&mut self, mut slot: u32) {
        let Chunk { above, below, lane, .. } = self.slab.chunks[slot as usize];
        let index = &mut self.lanes[lane as usize].free;
        if self.slab.chunks[above as usize].state == State::Free {
            index.remove(&mut self.slab.chunks, above);
            self.slab.absorb_above(slot);
        }
        if self.slab.chunks[below as usize].state == State::Free {
            index.remove(&mut self.slab.chunks, below);
            self.slab.absorb_above(below);
            slot = below;
        }
        self.slab.chunks[slot as usize].state = State::Free;
        index.insert(&mut self.slab.chunks, slot);
    }

    /// Frees those chunks that need not wait any more.
    fn settle(&mut self, dev: &mut dyn Device, polls: usize) -> Result<(), DeviceError> {
        let polled = self.uses.poll(dev, polls);
        while let Some(slot) = self.uses.take_done() {
            dev.retired(self.slab.chunks[slot as usize].ptr);
            self.put(slot);
        }
        polled
    }

    #[cold]
    #[inline(never)]
    fn miss(&mut self, dev: &mut dyn Device, lane: u32, size: u64) -> Result<u32, AllocError> {
        if size > self.limit >> self.unit_log {
            return Err(AllocError::OutOfMemory);
        }
        let entry = &mut self.lanes[lane as usize];
        if entry.segments == 0 {
            entry.arrival = self.arrivals;
            self.arrivals += 1;
        }
        if let Some(slot) = self.grow(dev, lane, size)? {
            return Ok(slot);
        }
        self.release(dev, 0).map_err(failed)?;
        if let Some(slot) = self.grow(dev, lane, size)? {
            return Ok(slot);
        }
        if self.uses.is_waiting() {
            self.wait(dev).map_err(failed)?;
            if let Some(slot) = self.take(lane, size) {
                return Ok(slot);
            }
            self.release(dev, 0).map_err(failed)?;
            if let Some(slot) = self.grow(dev, lane, size)? {
                return Ok(slot);
            }
        }
        Err(AllocError::OutOfMemory)
    }

    /// A new segment of `size` units, if the limit and the device have room for it.
    fn grow(&mut self, dev: &mut dyn Device, lane: u32, size: u64) -> Result<Option<u32>, AllocError> {
        let bytes = size << self.unit_log;
        if bytes > self.limit.saturating_sub(self.reserved) {
            return Ok(None);
        }
        let ptr = match dev.malloc(bytes) {
            Ok(ptr) => ptr,
            Err(DeviceError::OutOfMemory) => return Ok(None),
            Err(other) => return Err(other.into()),
        };
        if ptr == 0 || ptr.checked_add(bytes).is_none() {
            dev.free(ptr)?;
            return Err(AllocError::AddressSpace);
        }
        self.reserved += bytes;
        self.lanes[lane as usize].segments += 1;
        Ok(Some(self.slab.take(Chunk { ptr, size, lane, ..Chunk::default() })))
    }

    /// The host waits for the device. No chunk waits any more.
    fn wait(&mut self, dev: &mut dyn Device) -> Result<(), DeviceError> {
        dev.sync(Sync::Device)?;
        self.settle(dev, usize::MAX)
    }

    /// Gives segments back that are one free chunk, until at most `keep` bytes are reserved: stream by stream, the
    /// smallest first.
    fn release(&mut self, dev: &mut dyn Device, keep: u64) -> Result<(), DeviceError> {
        let mut order: Vec<usize> = (0..self.lanes.len()).filter(|&lane| self.lanes[lane].segments > 0).collect();
        order.sort_unstable_by_key(|&lane| self.lanes[lane].arrival);
        for lane in order {
            let lane = &mut self.lanes[lane];
            for slot in lane.free.in_order(&self.slab.chunks) {
                if self.reserved <= keep {
                    return Ok(());
                }
                let chunk = self.slab.chunks[slot as usize];
                if chunk.is_whole() {
                    dev.free(chunk.ptr)?;
                    self.reserved -= chunk.size << self.unit_log;
                    lane.segments -= 1;
                    lane.free.remove(&mut self.slab.chunks, slot);
                    self.slab.give(slot);
                }
            }
        }
        Ok(())
    }

    /// Gives memory back until at most `keep` bytes are reserved; the bytes given back.
    pub(crate) fn shrink(&mut self, dev: &mut dyn Device, keep: u64) -> Result<u64, DeviceError> {
        let before = self.reserved;
        self.release(dev, keep)?;
        if self.reserved > keep && self.uses.is_waiting() {
            self.wait(dev)?;
            self.release(dev, keep)?;
        }
        Ok(before - self.reserved)
    }
}
