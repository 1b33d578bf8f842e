//! A block of the stream-ordered pool for each request, with switches that break it.

use allocator_core::{
    AllocError, Block, Device, DeviceError, FreeError, FreeFailure, PoolId, Request, Span, SpanState, Strategy,
    StreamId, Sync,
};
use std::collections::BTreeMap;

/// One line done wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    FreesOnDefaultStream,
    IgnoresOtherStreams,
    FreesWhileLive,
    TrimsWithoutWait,
    LosesBlockOnFailedFree,
    FreesTwice,
}

#[derive(Clone, Debug)]
struct Piece {
    ptr: u64,
    size: u64,
    stream: StreamId,
    others: Vec<StreamId>,
}

/// See the module. Slots are never used twice.
#[derive(Debug, Default)]
pub struct Ordered {
    bug: Option<Bug>,
    live: BTreeMap<u32, Piece>,
    next_slot: u32,
}

impl Ordered {
    pub fn new(bug: Option<Bug>) -> Ordered {
        Ordered { bug, ..Ordered::default() }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn is_live(&self, block: &Block) -> bool {
        self.live.get(&block.slot()).is_some_and(|piece| piece.ptr == block.ptr() && block.generation() == 0)
    }

    fn give(&self, dev: &mut dyn Device, piece: &Piece) -> Result<(), DeviceError> {
        let stream = if self.has(Bug::FreesOnDefaultStream) { StreamId::DEFAULT } else { piece.stream };
        for &other in piece.others.iter().filter(|_| !self.has(Bug::IgnoresOtherStreams)) {
            let fence = dev.fence(other)?;
            dev.order_after(stream, fence)?;
        }
        dev.free_async(piece.ptr, stream)?;
        if self.has(Bug::FreesTwice) { dev.free_async(piece.ptr, stream) } else { Ok(()) }
    }
}

impl Strategy for Ordered {
    fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        if req.size == 0 {
            return Ok(Block::empty());
        }
        let ptr = dev.malloc_async(req.size, req.stream).map_err(|error| match error {
            DeviceError::OutOfMemory => AllocError::OutOfMemory,
            other => other.into(),
        })?;
        let slot = self.next_slot;
        self.next_slot += 1;
        self.live.insert(slot, Piece { ptr, size: req.size, stream: req.stream, others: Vec::new() });
        if self.has(Bug::FreesWhileLive) {
            dev.free_async(ptr, req.stream)?;
        }
        Block::new(ptr, slot, 0).ok_or(AllocError::AddressSpace)
    }

    fn free(&mut self, dev: &mut dyn Device, block: Block) -> Result<(), FreeError> {
        if block.is_empty() {
            return Ok(());
        }
        if !self.is_live(&block) {
            return Err(FreeError { block, reason: FreeFailure::NotLive });
        }
        let Some(piece) = self.live.remove(&block.slot()) else { return Ok(()) };
        if let Err(error) = self.give(dev, &piece) {
            if !self.has(Bug::LosesBlockOnFailedFree) {
                self.live.insert(block.slot(), piece);
            }
            return Err(FreeError { block, reason: error.into() });
        }
        Ok(())
    }

    fn record_stream(&mut self, _: &mut dyn Device, block: &Block, stream: StreamId) -> Result<(), AllocError> {
        if block.is_empty() {
            return Ok(());
        }
        if !self.is_live(block) {
            return Err(AllocError::NotLive);
        }
        if let Some(piece) = self.live.get_mut(&block.slot()) {
            piece.others.push(stream);
        }
        Ok(())
    }

    fn trim(&mut self, dev: &mut dyn Device, keep: u64) -> Result<u64, AllocError> {
        if keep == 0 && !self.has(Bug::TrimsWithoutWait) {
            dev.sync(Sync::Device)?;
        }
        dev.trim_async(keep)?;
        Ok(0)
    }

    fn inspect(&self, visit: &mut dyn FnMut(Span)) {
        let mut pieces: Vec<&Piece> = self.live.values().collect();
        pieces.sort_unstable_by_key(|piece| piece.ptr);
        for &Piece { ptr, size, stream, .. } in pieces {
            visit(Span { segment: ptr, ptr, size, state: SpanState::Live, stream, pool: PoolId::DEFAULT });
        }
    }
}
