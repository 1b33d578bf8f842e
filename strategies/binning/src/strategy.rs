//! The strategy: which requests go to a bin, where a bin gets blocks from, and what goes to the pool.
//!
//! Blocks of bins have the top bit of the slot set. All others are the pool's own, and go through as they are.

use crate::bins::{Bins, Record, State};
use crate::params::Params;
use allocator_core::{
    AllocError, Block, ConfigError, Configure, Device, DeviceError, DeviceInfo, FreeError, FreeFailure, PoolId,
    Request, Span, SpanState, Strategy, StreamId, StreamUses, Sync,
};
use std::collections::BTreeMap;
use strategy_pool::Pool;

const BINNED: u32 = 1 << 31;

/// RMM's binning resource over fixed-size resources over a pool.
#[derive(Debug)]
pub struct Binning {
    pool: Pool,
    bins: Bins,
    /// The next bin to get its first chunk.
    unfilled: u32,
    uses: StreamUses,
    /// For each bin the bytes that the pool held when it last refused a chunk. With as many it refuses the next one too,
    /// and asking costs calls of the device.
    refused: Vec<u64>,
}

/// The block of a bin's record.
#[inline]
fn block((slot, record): (u32, Record)) -> Result<Block, AllocError> {
    Block::new(record.ptr, slot | BINNED, record.generation).ok_or(AllocError::AddressSpace)
}

impl Binning {
    /// Number and record of a bin's block, or `None` if it is not ours or not live any more.
    #[inline]
    fn find(&self, block: &Block) -> Option<(u32, &Record)> {
        let slot = block.slot() & !BINNED;
        let record = self.bins.get(slot)?;
        let is_live = matches!(record.state, State::Live | State::Shared);
        let is_same = record.generation == block.generation() && record.ptr == block.ptr();
        (is_live && is_same).then_some((slot, record))
    }

    /// Puts those blocks into their queues that need not wait any more.
    fn settle(&mut self, dev: &mut dyn Device, polls: usize) -> Result<(), DeviceError> {
        let polled = self.uses.poll(dev, polls);
        while let Some(slot) = self.uses.take_done() {
            if let Some(record) = self.bins.get(slot) {
                dev.retired(record.ptr);
            }
            self.bins.push(slot);
        }
        polled
    }

    /// Gives every bin its first chunk. Where there is no memory for all of them, the source cannot be set up; here
    /// the chunks go back to the device, and bins get theirs when they are asked for blocks.
    #[cold]
    fn fill(&mut self, dev: &mut dyn Device) -> Result<(), AllocError> {
        while self.unfilled < self.bins.count() {
            if !self.grow(dev, self.unfilled, StreamId::DEFAULT)? {
                self.give_back(dev)?;
                self.pool.trim(dev, 0)?;
                self.unfilled = self.bins.count();
                break;
            }
            self.unfilled += 1;
        }
        Ok(())
    }

    /// A chunk for a bin, if the pool has one. It is not asked where that is known to be in vain.
    fn grow(&mut self, dev: &mut dyn Device, bin: u32, stream: StreamId) -> Result<bool, AllocError> {
        let (size, refused) = (self.bins.chunk_size(bin), &mut self.refused[bin as usize]);
        if !self.bins.has_room() || !self.pool.may_have(size, *refused) {
            return Ok(false);
        }
        match self.pool.allocate_at_once(dev, Request::new(size, stream)) {
            Ok(block) => {
                self.bins.open(stream);
                self.bins.add(block, bin, stream.0);
                Ok(true)
            }
            Err(AllocError::OutOfMemory) => {
                *refused = self.pool.reserved();
                Ok(false)
            }
            Err(other) => Err(other),
        }
    }

    /// A block that another stream freed; this one waits for that one.
    fn borrow(
        &mut self,
        dev: &mut dyn Device,
        bin: u32,
        stream: StreamId,
    ) -> Result<Option<(u32, Record)>, DeviceError> {
        let Some(other) = self.bins.any(bin) else { return Ok(None) };
        if other != stream.0 {
            let fence = match self.bins.fence(bin, other) {
                Some(fence) => fence,
                None => dev.fence(StreamId(other))?,
            };
            self.bins.set_fence(bin, fence);
            dev.order_after(stream, fence)?;
        }
        Ok(self.bins.pop(bin, other, stream.0))
    }

    /// A block for a stream that has none in the bin. The host waits only where nothing else helps.
    #[cold]
    #[inline(never)]
    fn miss(&mut self, dev: &mut dyn Device, bin: u32, req: Request) -> Result<Block, AllocError> {
        match self.search(dev, bin, req) {
            Err(AllocError::OutOfMemory) if self.uses.is_waiting() || self.pool.is_waiting() => {
                self.pool.wait(dev)?;
                self.settle(dev, usize::MAX)?;
                self.search(dev, bin, req)
            }
            answer => answer,
        }
    }

    /// Another stream's block, else one of a new chunk; and where the source is out of memory, the request's own bytes.
    fn search(&mut self, dev: &mut dyn Device, bin: u32, req: Request) -> Result<Block, AllocError> {
        if let Some(found) = self.borrow(dev, bin, req.stream)? {
            return block(found);
        }
        if self.grow(dev, bin, req.stream)?
            && let Some(found) = self.bins.pop(bin, req.stream.0, req.stream.0)
        {
            return block(found);
        }
        self.pool.allocate_at_once(dev, req)
    }

    /// Takes a live block of a bin back. After an error nothing has changed.
    #[inline]
    fn take_back(&mut self, dev: &mut dyn Device, slot: u32) -> Result<(), DeviceError> {
        let Some(&Record { bin, stream, state, .. }) = self.bins.get(slot) else { return Ok(()) };
        let fence = dev.fence(StreamId(stream))?;
        let waits = state == State::Shared && self.uses.free(dev, slot)?;
        self.bins.set_fence(bin, fence);
        if let Some(record) = self.bins.get_mut(slot) {
            record.generation = record.generation.wrapping_add(1);
            record.state = State::Pending;
        }
        if !waits {
            self.bins.push(slot);
        }
        Ok(())
    }

    /// Gives chunks whose blocks are all free back to the pool. The host has waited for the device.
    fn give_back(&mut self, dev: &mut dyn Device) -> Result<(), AllocError> {
        let mut result = Ok(());
        for at in self.bins.unused_chunks() {
            let Some(chunk) = self.bins.remove(at) else { continue };
            if let Err(FreeError { block, reason }) = self.pool.free(dev, chunk.block) {
                self.bins.restore(at, crate::bins::Chunk { block, bin: chunk.bin });
                result = Err(match reason {
                    FreeFailure::Device(error) => error.into(),
                    FreeFailure::NotLive => AllocError::NotLive,
                });
                break;
            }
        }
        self.bins.purge();
        result
    }
}

impl Strategy for Binning {
    fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        if req.pool != PoolId::DEFAULT {
            return Err(AllocError::UnknownPool);
        }
        if req.size == 0 {
            return Ok(Block::empty());
        }
        if self.uses.is_waiting() {
            self.settle(dev, StreamUses::FEW)?;
        }
        if self.unfilled < self.bins.count() {
            self.fill(dev)?;
        }
        let Some(bin) = self.bins.bin(req.size) else { return self.pool.allocate(dev, req) };
        self.bins.open(req.stream);
        match self.bins.pop(bin, req.stream.0, req.stream.0) {
            Some(found) => block(found),
            None => self.miss(dev, bin, req),
        }
    }

    fn free(&mut self, dev: &mut dyn Device, block: Block) -> Result<(), FreeError> {
        if block.is_empty() {
            return Ok(());
        }
        if block.slot() & BINNED == 0 {
            return self.pool.free(dev, block);
        }
        let Some((slot, _)) = self.find(&block) else {
            return Err(FreeError { block, reason: FreeFailure::NotLive });
        };
        match self.take_back(dev, slot) {
            Ok(()) => Ok(()),
            Err(error) => Err(FreeError { block, reason: error.into() }),
        }
    }

    fn record_stream(&mut self, dev: &mut dyn Device, block: &Block, stream: StreamId) -> Result<(), AllocError> {
        if block.is_empty() {
            return Ok(());
        }
        if block.slot() & BINNED == 0 {
            return self.pool.record_stream(dev, block, stream);
        }
        let (slot, record) = self.find(block).ok_or(AllocError::NotLive)?;
        if record.stream != stream.0 {
            self.uses.record(slot, stream);
            if let Some(record) = self.bins.get_mut(slot) {
                record.state = State::Shared;
            }
        }
        Ok(())
    }

    fn trim(&mut self, dev: &mut dyn Device, keep: u64) -> Result<u64, AllocError> {
        let before = self.pool.reserved();
        // Who trims may know that others have given memory back to the device.
        self.refused.fill(u64::MAX);
        self.pool.trim(dev, keep)?;
        if self.pool.reserved() > keep {
            dev.sync(Sync::Device)?;
            self.settle(dev, usize::MAX)?;
            self.give_back(dev)?;
            self.pool.trim(dev, keep)?;
        }
        if self.pool.reserved() == 0 {
            self.unfilled = 0;
        }
        Ok(before - self.pool.reserved())
    }

    fn inspect(&self, visit: &mut dyn FnMut(Span)) {
        let chunks: BTreeMap<u64, _> = self.bins.chunks().map(|(ptr, size, records)| (ptr, (size, records))).collect();
        self.pool.inspect(&mut |span| match chunks.get(&span.ptr) {
            Some((size, records)) => {
                for record in *records {
                    let state = match record.state {
                        State::Live | State::Shared => SpanState::Live,
                        State::Pending => SpanState::Pending,
                        State::Free | State::Gone => SpanState::Cached,
                    };
                    visit(Span { ptr: record.ptr, size: *size, state, stream: StreamId(record.stream), ..span });
                }
            }
            None => visit(span),
        });
    }

    /// The pool's.
    fn counters(&self, visit: &mut dyn FnMut(&str, i64)) {
        self.pool.counters(visit);
    }
}

impl Configure for Binning {
    const NAME: &'static str = "binning";
    const ABOUT: &'static str = "RMM's binning: a queue of equal blocks for each power of two, over RMM's pool";
    type Params = Params;

    fn new(params: Params, device: &DeviceInfo) -> Result<Self, ConfigError> {
        params.check(device)?;
        let bins = Bins::new(params.min_size_exponent..=params.max_size_exponent, params.blocks_to_preallocate);
        Ok(Binning {
            pool: Pool::new(params.pool(), device)?,
            refused: vec![u64::MAX; bins.count() as usize],
            bins,
            unfilled: 0,
            uses: StreamUses::default(),
        })
    }
}
