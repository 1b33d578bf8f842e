//! Two-level segregated fit: free blocks in lists by size, found in constant time by two levels of bitmaps.
//!
//! ```text
//! free blocks by size    …│ 2-2.06 MiB │ 2.06-2.13 │ 2.13-2.19 │…      32 lists a doubling
//!                              b           (none)       c, d
//!
//! allocate 2.05 MiB ── first list whose blocks all fit ──▶ c is cut: [ 2.05 │ rest ]
//! free                                    ──▶ [ ◀─ merged with both neighbours ─▶ ], in the list of the whole
//! a segment without a block in use        ──▶ the first is kept, the next one goes back to the device
//! ```
//!
//! That b may have fitted is the price of not looking at it. The parameter `search` says where else to look, and when.
//! Memory stays with its stream until its segment goes back.

mod heap;
mod index;
mod memory;
mod params;
mod slab;

pub use params::Params;

use crate::memory::Memory;
use crate::slab::State;
use allocator_core::{
    AllocError, Block, ConfigError, Configure, Device, DeviceError, DeviceInfo, FreeError, FreeFailure, PoolId,
    Request, Span, Strategy, StreamId, StreamUses, Sync,
};

/// The strategy. A block's slot is that of its record; records are used again, last one first.
#[derive(Clone, Debug)]
pub struct Tlsf {
    memory: Memory,
    uses: StreamUses,
}

fn failed(error: DeviceError) -> AllocError {
    match error {
        DeviceError::OutOfMemory => AllocError::OutOfMemory,
        other => other.into(),
    }
}

impl Tlsf {
    /// Frees blocks whose fences have all passed. So many streams are looked at.
    fn settle(&mut self, dev: &mut dyn Device, streams: usize, gives_back: bool) -> Result<(), DeviceError> {
        let mut outcome = self.uses.poll(dev, streams);
        while let Some(slot) = self.uses.take_done() {
            dev.retired(self.memory.slab.nodes[slot as usize].ptr);
            if let Err(error) = self.memory.put(dev, slot, gives_back) {
                // The device would not take the segment: it stays, as an empty one too many.
                outcome = Err(error);
                self.memory.put(dev, slot, false)?;
            }
        }
        outcome
    }

    /// Waits for all that is queued, and frees every block that waited. No segment goes back.
    fn settle_all(&mut self, dev: &mut dyn Device) -> Result<(), DeviceError> {
        if !self.uses.is_waiting() {
            return Ok(());
        }
        dev.sync(Sync::Device)?;
        self.settle(dev, usize::MAX, false)
    }

    /// A free block in a new segment. When the device has no memory, blocks that wait are waited for, then all empty
    /// segments go back, and the device is asked once more.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, dev: &mut dyn Device, heap: u32, size: u64) -> Result<u32, AllocError> {
        if let Some(slot) = self.memory.grow(dev, heap, size)? {
            return Ok(slot);
        }
        self.settle_all(dev).map_err(failed)?;
        if let Some(slot) = self.memory.find(heap, size) {
            return Ok(slot);
        }
        self.memory.give_back(dev, 0).map_err(failed)?;
        self.memory.grow(dev, heap, size)?.ok_or(AllocError::OutOfMemory)
    }
}

impl Strategy for Tlsf {
    fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        if req.pool != PoolId::DEFAULT {
            return Err(AllocError::UnknownPool);
        }
        if req.size == 0 {
            return Ok(Block::empty());
        }
        let log = self.memory.rules.granule_log;
        let size = req.size.checked_next_multiple_of(1 << log).ok_or(AllocError::TooLarge)? >> log;
        if self.uses.is_waiting() {
            self.settle(dev, StreamUses::FEW, true).map_err(failed)?;
        }
        let heap = self.memory.heap(req.stream);
        let slot = match self.memory.find(heap, size) {
            Some(slot) => slot,
            None => self.grow(dev, heap, size)?,
        };
        self.memory.take(slot, size).ok_or(AllocError::AddressSpace)
    }

    fn free(&mut self, dev: &mut dyn Device, block: Block) -> Result<(), FreeError> {
        let Some(slot) = self.memory.live(&block) else {
            return if block.is_empty() { Ok(()) } else { Err(FreeError { block, reason: FreeFailure::NotLive }) };
        };
        let waits = match self.memory.slab.nodes[slot as usize].state {
            State::Shared => self.uses.free(dev, slot),
            _ => Ok(false),
        };
        let done = match waits {
            Ok(true) => {
                self.memory.slab.nodes[slot as usize].state = State::Pending;
                Ok(())
            }
            Ok(false) => self.memory.put(dev, slot, true),
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            return Err(FreeError { block, reason: error.into() });
        }
        // The record may stand for nothing by now, or for a larger block: its generation is its own either way.
        let generation = &mut self.memory.slab.nodes[slot as usize].generation;
        *generation = generation.wrapping_add(1);
        Ok(())
    }

    fn record_stream(&mut self, _: &mut dyn Device, block: &Block, stream: StreamId) -> Result<(), AllocError> {
        let Some(slot) = self.memory.live(block) else {
            return if block.is_empty() { Ok(()) } else { Err(AllocError::NotLive) };
        };
        if self.memory.stream(slot) != stream {
            self.memory.slab.nodes[slot as usize].state = State::Shared;
            self.uses.record(slot, stream);
        }
        Ok(())
    }

    fn trim(&mut self, dev: &mut dyn Device, keep: u64) -> Result<u64, AllocError> {
        let before = self.memory.reserved;
        if before > keep {
            self.settle_all(dev)?;
            self.memory.give_back(dev, keep)?;
        }
        Ok(before - self.memory.reserved)
    }

    fn inspect(&self, visit: &mut dyn FnMut(Span)) {
        self.memory.inspect(visit);
    }
}

impl Configure for Tlsf {
    const NAME: &'static str = "tlsf";
    const ABOUT: &'static str = "two-level bitmaps of free blocks, found in constant time";
    type Params = Params;

    fn new(params: Params, device: &DeviceInfo) -> Result<Self, ConfigError> {
        let memory = Memory::new(params.rules(device)?);
        Ok(Tlsf { memory, uses: StreamUses::default() })
    }
}
