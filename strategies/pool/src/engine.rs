//! Where memory for a request comes from, in the order of the source.
//!
//! ```text
//! 1  best fit in the stream's own list
//! 2  best fit in another stream's list: the stream waits for the point of that list's last free
//! 3  other lists go over to the own one, one after another, until the best fit there is large enough
//! 4  a new region: as large as all that is held, or half of what the maximum leaves; halved where the device refuses
//! ```
//!
//! Waiting is on the device. The host waits when all that has failed, for pieces that other streams use, and goes through
//! it again.

use crate::heap::Heap;
use crate::params::Params;
use crate::record::{Record, State};
use allocator_core::{AllocError, Block, Device, DeviceError, Request, StreamId, StreamUses, Sync};

/// RMM's pool.
#[derive(Clone, Debug)]
pub struct Pool {
    unit: u64,
    initial: u64,
    maximum: Option<u64>,
    pub(crate) heap: Heap,
    uses: StreamUses,
    reserved: u64,
}

impl Pool {
    /// Bytes that the pool holds from the device.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Whether blocks have been freed that other streams use.
    pub fn is_waiting(&self) -> bool {
        self.uses.is_waiting()
    }

    /// Whether `size` bytes, which were refused when so many were reserved, could be had now without waiting: less is
    /// reserved, or would be after what the maximum gives back, so that the device may have them; or as much is free in
    /// one place, in whatever lists.
    pub fn may_have(&self, size: u64, reserved_then: u64) -> bool {
        let unused = match self.maximum {
            Some(maximum) if size <= maximum => self.heap.unused_regions().iter().map(|(_, region)| region.size).sum(),
            _ => 0,
        };
        self.reserved - unused < reserved_then || self.heap.has_run(size)
    }

    pub(crate) fn with(params: &Params, unit: u64) -> Pool {
        let Params { initial_pool_size: initial, maximum_pool_size: maximum } = *params;
        Pool { unit, initial, maximum, heap: Heap::default(), uses: StreamUses::default(), reserved: 0 }
    }

    /// The piece of a block, or `None` if the block is not ours or not live any more.
    #[inline]
    pub(crate) fn find(&self, block: &Block) -> Option<&Record> {
        let piece = self.heap.get(block.slot())?;
        let is_live = matches!(piece.state, State::Live | State::Shared);
        (is_live && piece.generation == block.generation() && piece.ptr == block.ptr()).then_some(piece)
    }

    #[inline]
    pub(crate) fn serve(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        match self.allocate_at_once(dev, req) {
            Err(AllocError::OutOfMemory) if self.uses.is_waiting() => {
                self.wait(dev)?;
                self.allocate_at_once(dev, req)
            }
            answer => answer,
        }
    }

    /// Serves a request for more than 0 bytes of the default pool, and does not let the host wait for anything.
    #[inline]
    pub fn allocate_at_once(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        let size = req.size.checked_next_multiple_of(self.unit).ok_or(AllocError::TooLarge)?;
        if self.uses.is_waiting() {
            self.settle(dev, StreamUses::FEW)?;
        }
        let stream = req.stream.0;
        self.heap.open(stream);
        let slot = match self.heap.best_fit(stream, size) {
            Some(slot) => slot,
            None => self.miss(dev, stream, size)?,
        };
        let Record { ptr, generation, .. } = self.heap.take(slot, stream, size);
        Block::new(ptr, slot, generation).ok_or(AllocError::AddressSpace)
    }

    /// Takes a live piece back. After an error nothing has changed.
    #[inline]
    pub(crate) fn take_back(&mut self, dev: &mut dyn Device, slot: u32) -> Result<(), DeviceError> {
        let Some(&Record { stream, state, .. }) = self.heap.get(slot) else { return Ok(()) };
        let fence = dev.fence(StreamId(stream))?;
        let waits = state == State::Shared && self.uses.free(dev, slot)?;
        self.heap.set_fence(stream, fence);
        if let Some(piece) = self.heap.get_mut(slot) {
            piece.generation = piece.generation.wrapping_add(1);
            piece.state = State::Pending;
        }
        if !waits {
            self.heap.release(slot);
        }
        Ok(())
    }

    /// Another stream uses a live piece.
    pub(crate) fn share(&mut self, slot: u32, stream: StreamId) {
        if let Some(piece) = self.heap.get_mut(slot).filter(|piece| piece.stream != stream.0) {
            piece.state = State::Shared;
            self.uses.record(slot, stream);
        }
    }

    /// Puts those pieces into their lists that need not wait any more.
    fn settle(&mut self, dev: &mut dyn Device, polls: usize) -> Result<(), DeviceError> {
        let polled = self.uses.poll(dev, polls);
        while let Some(slot) = self.uses.take_done() {
            if let Some(piece) = self.heap.get(slot) {
                dev.retired(piece.ptr);
            }
            self.heap.release(slot);
        }
        polled
    }

    /// The host waits for the device, and what waited for other streams is free.
    pub fn wait(&mut self, dev: &mut dyn Device) -> Result<(), DeviceError> {
        dev.sync(Sync::Device)?;
        self.settle(dev, usize::MAX)
    }

    /// A free piece for a request that the stream's own list cannot serve.
    #[cold]
    #[inline(never)]
    fn miss(&mut self, dev: &mut dyn Device, stream: u32, size: u64) -> Result<u32, AllocError> {
        if self.reserved == 0 && self.initial > 0 {
            self.heap.open(StreamId::DEFAULT.0);
            self.add_region(dev, self.initial, StreamId::DEFAULT.0)?;
        }
        self.search(dev, stream, size)?.ok_or(AllocError::OutOfMemory)
    }

    /// The steps of the module's picture.
    fn search(&mut self, dev: &mut dyn Device, stream: u32, size: u64) -> Result<Option<u32>, DeviceError> {
        if let Some(slot) = self.heap.best_fit(stream, size) {
            return Ok(Some(slot));
        }
        let mut from = 0;
        while let Some(other) = self.heap.other_list(from, stream) {
            if let Some(slot) = self.heap.best_fit(other, size) {
                self.follow(dev, stream, other)?;
                return Ok(Some(slot));
            }
            from = other + 1;
        }
        while let Some(other) = self.heap.other_list(0, stream) {
            if self.follow(dev, stream, other)? {
                let fence = dev.fence(StreamId(stream))?;
                self.heap.set_fence(stream, fence);
            }
            self.heap.absorb(other, stream);
            if let Some(slot) = self.heap.best_fit(stream, size) {
                return Ok(Some(slot));
            }
        }
        self.grow(dev, stream, size)?;
        Ok(self.heap.best_fit(stream, size))
    }

    /// A stream waits for the work on another one's free memory; `false` if there was none.
    fn follow(&mut self, dev: &mut dyn Device, stream: u32, other: u32) -> Result<bool, DeviceError> {
        let fence = self.heap.fence(other);
        if let Some(fence) = fence {
            dev.order_after(StreamId(stream), fence)?;
        }
        Ok(fence.is_some())
    }

    /// A new region with room for `size` bytes in the stream's list, unless the maximum or the device forbids it.
    fn grow(&mut self, dev: &mut dyn Device, stream: u32, size: u64) -> Result<(), DeviceError> {
        if self.maximum.is_some_and(|maximum| size <= maximum) {
            self.reclaim(dev, stream, size)?;
        }
        let Some(mut bytes) = self.growth(size) else { return Ok(()) };
        while !self.add_region(dev, bytes, stream)? && bytes > size {
            bytes = size.max(bytes / 2);
        }
        Ok(())
    }

    /// How much the source would like to take for a request, or `None` if the maximum has no room for it.
    fn growth(&self, size: u64) -> Option<u64> {
        let Some(maximum) = self.maximum else { return Some(size.max(self.reserved)) };
        let left = maximum.saturating_sub(self.reserved);
        // The source's unit is 256 bytes, and it halves what is left of whole units.
        (size <= left).then(|| size.max(left.next_multiple_of(256) / 2))
    }

    /// Gives regions back that are free as a whole, by address, until the maximum has room for `size` bytes. All free
    /// memory is in the stream's list by now.
    fn reclaim(&mut self, dev: &mut dyn Device, stream: u32, size: u64) -> Result<(), DeviceError> {
        if self.growth(size).is_some() {
            return Ok(());
        }
        for (at, region) in self.heap.regions() {
            if self.heap.is_whole(&region, stream) {
                self.give_back(dev, at, region.ptr, region.size)?;
                if self.growth(size).is_some() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Takes a region of `bytes` from the device, if it has room.
    fn add_region(&mut self, dev: &mut dyn Device, bytes: u64, stream: u32) -> Result<bool, DeviceError> {
        match dev.malloc(bytes) {
            Ok(ptr) => {
                self.heap.add_region(ptr, bytes, stream);
                self.reserved += bytes;
                Ok(true)
            }
            Err(DeviceError::OutOfMemory) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// Gives an unused region back. The device's free waits for all work, so it does not matter who used it.
    fn give_back(&mut self, dev: &mut dyn Device, at: usize, ptr: u64, size: u64) -> Result<(), DeviceError> {
        dev.free(ptr)?;
        self.heap.remove_region(at);
        self.reserved -= size;
        Ok(())
    }

    fn release_unused(&mut self, dev: &mut dyn Device, keep: u64) -> Result<(), DeviceError> {
        for (at, region) in self.heap.unused_regions() {
            if self.reserved <= keep {
                break;
            }
            self.give_back(dev, at, region.ptr, region.size)?;
        }
        Ok(())
    }

    /// Gives unused regions back, the largest first, until at most `keep` bytes are reserved; the bytes given back.
    pub(crate) fn shrink(&mut self, dev: &mut dyn Device, keep: u64) -> Result<u64, DeviceError> {
        let before = self.reserved;
        self.release_unused(dev, keep)?;
        if self.reserved > keep && self.uses.is_waiting() {
            self.wait(dev)?;
            self.release_unused(dev, keep)?;
        }
        Ok(before - self.reserved)
    }
}
