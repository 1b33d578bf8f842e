//! Where memory for a request comes from: a free chunk, else one miss step after another.
//!
//! ```text
//! hit     best fit among the stream's own chunks and the common ones
//! miss 1  streams that are idle: their free chunks become common
//!      2  a new region, twice as large as the last one
//!      3  a chunk of another stream; this stream waits for that one, the host does not
//!      4  regions without a live chunk go back to the device, then a new region
//!      5  the host waits: everything free becomes common and merges
//!      6  unused regions go back, and the new region is just as large as the request
//! ```
//!
//! With one stream only 2, 4 and 6 can do anything; 2 and 4 are the source's.

use crate::bins::Free;
use crate::chunks::{Chunk, Chunks, State};
use crate::params::Rules;
use allocator_core::{AllocError, Block, Device, DeviceError, Request, StreamId, StreamUses, Sync};

/// TensorFlow's best fit with coalescing.
#[derive(Clone, Debug)]
pub struct Bfc {
    pub(crate) rules: Rules,
    pub(crate) chunks: Chunks,
    uses: StreamUses,
    /// Size of the next region.
    region: u64,
    pub(crate) reserved: u64,
    pub(crate) in_use: u64,
    pub(crate) peak_in_use: u64,
    pub(crate) allocations: u64,
}

/// A request that no free chunk can serve.
struct Miss {
    lane: u32,
    stream: StreamId,
    size: u64,
}

fn lane_of(stream: StreamId) -> u32 {
    stream.0 + 1
}

pub(crate) fn stream_of(lane: u32) -> StreamId {
    StreamId(lane.saturating_sub(1))
}

impl Bfc {
    pub(crate) fn with_rules(rules: Rules) -> Bfc {
        Bfc {
            rules,
            chunks: Chunks::new(),
            uses: StreamUses::default(),
            region: rules.region,
            reserved: 0,
            in_use: 0,
            peak_in_use: 0,
            allocations: 0,
        }
    }

    /// The chunk of a block, or `None` if the block is not ours or not live any more.
    #[inline]
    pub(crate) fn find(&self, block: &Block) -> Option<&Chunk> {
        let live = |chunk: &&Chunk| chunk.state == State::Live && chunk.generation == block.generation();
        self.chunks.get(block.slot()).filter(live).filter(|chunk| chunk.ptr == block.ptr())
    }

    #[inline]
    pub(crate) fn serve(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        let size = req.size.checked_next_multiple_of(self.rules.unit).ok_or(AllocError::TooLarge)?;
        if self.uses.is_waiting() {
            self.settle(dev, StreamUses::FEW)?;
        }
        let lane = lane_of(req.stream);
        self.chunks.open_lane(lane);
        let found = match self.chunks.best_fit(lane, size) {
            Some(found) => found,
            None => self.miss(dev, &Miss { lane, stream: req.stream, size })?,
        };
        let rest = found.size - size;
        let keep = if rest >= size || rest >= self.rules.slack { size } else { found.size };
        let chunk = self.chunks.take(found, lane, keep);
        self.in_use += keep;
        self.peak_in_use = self.peak_in_use.max(self.in_use);
        self.allocations += 1;
        Block::new(chunk.ptr, found.slot, chunk.generation).ok_or(AllocError::AddressSpace)
    }

    /// Takes a live chunk back. After an error nothing has changed.
    #[inline]
    pub(crate) fn take_back(&mut self, dev: &mut dyn Device, slot: u32) -> Result<(), DeviceError> {
        let Some(&Chunk { size, shared, .. }) = self.chunks.get(slot) else { return Ok(()) };
        let waits = shared && self.uses.free(dev, slot)?;
        self.in_use -= size;
        if let Some(chunk) = self.chunks.get_mut(slot) {
            chunk.generation = chunk.generation.wrapping_add(1);
            chunk.state = State::Pending;
        }
        if !waits {
            self.chunks.release(slot);
        }
        Ok(())
    }

    /// Another stream uses a live chunk.
    pub(crate) fn share(&mut self, slot: u32, stream: StreamId) {
        if let Some(chunk) = self.chunks.get_mut(slot).filter(|chunk| stream_of(chunk.lane) != stream) {
            chunk.shared = true;
            self.uses.record(slot, stream);
        }
    }

    /// Frees the chunks that need not wait any more. So many streams are looked at.
    fn settle(&mut self, dev: &mut dyn Device, streams: usize) -> Result<(), DeviceError> {
        let polled = self.uses.poll(dev, streams);
        while let Some(slot) = self.uses.take_done() {
            if let Some(chunk) = self.chunks.get(slot) {
                dev.retired(chunk.ptr);
            }
            self.chunks.release(slot);
        }
        polled
    }

    #[cold]
    #[inline(never)]
    fn miss(&mut self, dev: &mut dyn Device, miss: &Miss) -> Result<Free, AllocError> {
        let &Miss { lane, size, .. } = miss;
        if size > self.rules.limit {
            return Err(AllocError::OutOfMemory);
        }
        self.welcome_idle(dev, lane)?;
        if let Some(found) = self.chunks.best_fit(lane, size) {
            return Ok(found);
        }
        if !self.extend(dev, size)? {
            if let Some(found) = self.borrow(dev, miss)? {
                return Ok(found);
            }
            if !self.collect(dev, size)? || !self.extend(dev, size)? {
                self.wait(dev)?;
                if self.chunks.best_fit(lane, size).is_none() {
                    self.last_resort(dev, size)?;
                }
            }
        }
        self.chunks.best_fit(lane, size).ok_or(AllocError::OutOfMemory)
    }

    /// Makes the free memory of streams that have nothing to do common.
    fn welcome_idle(&mut self, dev: &mut dyn Device, own: u32) -> Result<(), DeviceError> {
        let mut idle = Vec::new();
        for lane in self.chunks.other_lanes(own) {
            let fence = dev.fence(stream_of(lane))?;
            if dev.poll(fence)? {
                idle.push(lane);
            }
        }
        self.chunks.make_common(&idle, own);
        Ok(())
    }

    /// The best fit among other streams' chunks. The stream of the request waits for the one that it came from.
    fn borrow(&mut self, dev: &mut dyn Device, miss: &Miss) -> Result<Option<Free>, DeviceError> {
        let lanes = self.chunks.other_lanes(miss.lane).into_iter();
        let fits = lanes.filter_map(|lane| Some((self.chunks.best_fit(lane, miss.size)?, lane)));
        let Some((found, lane)) = fits.min() else { return Ok(None) };
        let fence = dev.fence(stream_of(lane))?;
        dev.order_after(miss.stream, fence)?;
        Ok(Some(found))
    }

    /// A new region with room for `size` bytes, unless the limit or the device forbids it.
    fn extend(&mut self, dev: &mut dyn Device, size: u64) -> Result<bool, DeviceError> {
        let available = self.rules.limit.saturating_sub(self.reserved);
        if size > available {
            return Ok(false);
        }
        let mut has_doubled = false;
        while self.region < size {
            self.region = self.region.saturating_mul(2);
            has_doubled = true;
        }
        let mut bytes = self.region.min(available);
        let mut is_new = self.add_region(dev, bytes)?;
        while !is_new {
            bytes = self.smaller(bytes);
            if bytes < size {
                break;
            }
            is_new = self.add_region(dev, bytes)?;
        }
        if is_new && !has_doubled {
            self.region = self.region.saturating_mul(2);
        }
        Ok(is_new)
    }

    /// What to ask for after the device refused a region of `bytes`. The source's arithmetic, which stays at 9 units and
    /// below; here it goes on by one.
    fn smaller(&self, bytes: u64) -> u64 {
        let unit = self.rules.unit;
        ((bytes as f32 * 0.9) as u64).next_multiple_of(unit).min(bytes - unit)
    }

    /// Takes a region of `bytes` from the device, if it has room.
    fn add_region(&mut self, dev: &mut dyn Device, bytes: u64) -> Result<bool, DeviceError> {
        match dev.malloc(bytes) {
            Ok(ptr) => {
                self.chunks.add_region(ptr, bytes);
                self.reserved += bytes;
                Ok(true)
            }
            Err(DeviceError::OutOfMemory) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// The source's garbage collection: gives all unused regions back, if the limit then has room for `size` bytes.
    fn collect(&mut self, dev: &mut dyn Device, size: u64) -> Result<bool, DeviceError> {
        let unused: u64 = self.chunks.unused_regions().iter().map(|(_, region)| region.size).sum();
        let room = self.rules.limit.saturating_sub(self.reserved) + unused;
        if !self.rules.garbage_collection || unused == 0 || size > room {
            return Ok(false);
        }
        self.release_unused(dev, 0)?;
        Ok(true)
    }

    /// The host waits for the device. Nothing uses free memory any more, and what waited is free.
    fn wait(&mut self, dev: &mut dyn Device) -> Result<(), DeviceError> {
        dev.sync(Sync::Device)?;
        self.settle(dev, usize::MAX)?;
        self.chunks.make_all_common();
        Ok(())
    }

    /// Everything unused goes back to the device, which is then asked for no more than is needed.
    fn last_resort(&mut self, dev: &mut dyn Device, size: u64) -> Result<(), DeviceError> {
        self.release_unused(dev, 0)?;
        if size <= self.rules.limit.saturating_sub(self.reserved) {
            self.add_region(dev, size)?;
        }
        Ok(())
    }

    /// Gives unused regions back, the largest first, until at most `keep` bytes are reserved. The device's free waits for
    /// all work, so it does not matter which streams used them.
    fn release_unused(&mut self, dev: &mut dyn Device, keep: u64) -> Result<(), DeviceError> {
        for (at, region) in self.chunks.unused_regions() {
            if self.reserved <= keep {
                break;
            }
            dev.free(region.ptr)?;
            self.chunks.remove_region(at);
            self.reserved -= region.size;
        }
        Ok(())
    }

    /// Gives memory back until at most `keep` bytes are reserved; the bytes given back.
    pub(crate) fn shrink(&mut self, dev: &mut dyn Device, keep: u64) -> Result<u64, DeviceError> {
        let before = self.reserved;
        self.release_unused(dev, keep)?;
        if self.reserved > keep && self.uses.is_waiting() {
            self.wait(dev)?;
            self.release_unused(dev, keep)?;
        }
        if self.reserved == 0 {
            self.region = self.rules.region;
        }
        Ok(before - self.reserved)
    }
}
