//! The strategy: which arena serves a request, when the host waits, and where the one block comes from.
//!
//! ```text
//! up to 1 MiB   the stream's arena ─ miss ─▶ a superblock of the global one ─┐
//! above         the global arena ────────────────────────────────────────────┤ miss
//!                                                                            ▼
//!               the host waits for the device, all arenas return their superblocks, once more
//! ```
//!
//! Memory of the global arena may go to every stream, so whoever frees into it waits, on the host, for its stream. So does
//! whoever frees into the arena of another stream, where the superblock went in the meantime.

use crate::classes::class;
use crate::heap::{GLOBAL, Heap, SUPERBLOCK};
use crate::params::Params;
use crate::piece::{Piece, State};
use allocator_core::{
    AllocError, Block, ConfigError, Configure, Device, DeviceError, DeviceInfo, FreeError, FreeFailure, PoolId,
    Request, Span, SpanState, Strategy, StreamId, StreamUses, Sync,
};

/// RMM's arena resource.
#[derive(Clone, Debug)]
pub struct Arena {
    unit: u64,
    size: Option<u64>,
    has_classes: bool,
    /// Address and size of the device's block.
    block: Option<(u64, u64)>,
    heap: Heap,
    uses: StreamUses,
}

/// The arena of a stream, as an owner of superblocks.
#[inline]
fn arena_of(stream: StreamId) -> u32 {
    stream.0 + 1
}

impl Arena {
    /// The piece of a block, or `None` if the block is not ours or not live any more.
    #[inline]
    fn find(&self, block: &Block) -> Option<&Piece> {
        let piece = self.heap.get(block.slot())?;
        let is_live = matches!(piece.state, State::Live | State::Shared);
        (is_live && piece.generation == block.generation() && piece.ptr == block.ptr()).then_some(piece)
    }

    #[inline]
    fn round(&self, size: u64) -> Result<u64, AllocError> {
        let size = size.checked_next_multiple_of(self.unit).ok_or(AllocError::TooLarge)?;
        if !self.has_classes {
            return Ok(size);
        }
        // No device has as much as the last class; a smaller one that is not a multiple of the unit is rounded again.
        let class = class(size).ok_or(AllocError::OutOfMemory)?;
        class.checked_next_multiple_of(self.unit).ok_or(AllocError::TooLarge)
    }

    /// Takes the one block from the device. Where that has no room, half as much has to do, and so on.
    #[cold]
    fn start(&mut self, dev: &mut dyn Device) -> Result<(), AllocError> {
        let mut size = match self.size {
            Some(size) => size,
            None => dev.memory_info()?.free / 2 / self.unit * self.unit,
        };
        while size >= SUPERBLOCK {
            match dev.malloc(size) {
                Ok(ptr) => {
                    self.block = Some((ptr, size));
                    self.heap.start(ptr, size);
                    return Ok(());
                }
                Err(DeviceError::OutOfMemory) => size = size / 2 / self.unit * self.unit,
                Err(other) => return Err(other.into()),
            }
        }
        Err(AllocError::OutOfMemory)
    }

    #[inline]
    fn take(&mut self, stream: StreamId, size: u64) -> Option<u32> {
        if size > SUPERBLOCK { self.heap.take_large(size) } else { self.heap.take_small(arena_of(stream), size) }
    }

    /// All arenas return their superblocks.
    #[cold]
    #[inline(never)]
    fn defragment(&mut self, dev: &mut dyn Device) -> Result<(), DeviceError> {
        self.wait(dev)?;
        self.heap.collect();
        Ok(())
    }

    /// The host waits for the device, and what waited for other streams is free.
    fn wait(&mut self, dev: &mut dyn Device) -> Result<(), DeviceError> {
        dev.sync(Sync::Device)?;
        self.settle(dev, usize::MAX)
    }

    /// Frees those pieces that need not wait any more.
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

    /// Takes a live piece back. After an error nothing has changed.
    #[inline]
    fn take_back(&mut self, dev: &mut dyn Device, slot: u32) -> Result<(), DeviceError> {
        let Some(&piece) = self.heap.get(slot) else { return Ok(()) };
        let stream = StreamId(piece.stream);
        if piece.size > SUPERBLOCK || self.heap.owner(&piece) != arena_of(stream) {
            dev.sync(Sync::Stream(stream))?;
        }
        let waits = piece.state == State::Shared && self.uses.free(dev, slot)?;
        if let Some(piece) = self.heap.get_mut(slot) {
            piece.generation = piece.generation.wrapping_add(1);
            piece.state = State::Pending;
        }
        if !waits {
            self.heap.release(slot);
        }
        Ok(())
    }
}

impl Strategy for Arena {
    fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        if req.pool != PoolId::DEFAULT {
            return Err(AllocError::UnknownPool);
        }
        if req.size == 0 {
            return Ok(Block::empty());
        }
        let size = self.round(req.size)?;
        if self.block.is_none() {
            self.start(dev)?;
        }
        if self.uses.is_waiting() {
            self.settle(dev, StreamUses::FEW)?;
        }
        self.heap.open(arena_of(req.stream));
        let slot = match self.take(req.stream, size) {
            Some(slot) => slot,
            None => {
                self.defragment(dev)?;
                self.take(req.stream, size).ok_or(AllocError::OutOfMemory)?
            }
        };
        let Some(piece) = self.heap.get_mut(slot) else { return Err(AllocError::OutOfMemory) };
        piece.stream = req.stream.0;
        Block::new(piece.ptr, slot, piece.generation).ok_or(AllocError::AddressSpace)
    }

    fn free(&mut self, dev: &mut dyn Device, block: Block) -> Result<(), FreeError> {
        if block.is_empty() {
            return Ok(());
        }
        if self.find(&block).is_none() {
            return Err(FreeError { block, reason: FreeFailure::NotLive });
        }
        match self.take_back(dev, block.slot()) {
            Ok(()) => Ok(()),
            Err(error) => Err(FreeError { block, reason: error.into() }),
        }
    }

    fn record_stream(&mut self, _: &mut dyn Device, block: &Block, stream: StreamId) -> Result<(), AllocError> {
        if block.is_empty() {
            return Ok(());
        }
        let piece = self.find(block).ok_or(AllocError::NotLive)?;
        if piece.stream != stream.0 {
            self.uses.record(block.slot(), stream);
            if let Some(piece) = self.heap.get_mut(block.slot()) {
                piece.state = State::Shared;
            }
        }
        Ok(())
    }

    fn trim(&mut self, dev: &mut dyn Device, keep: u64) -> Result<u64, AllocError> {
        let Some((ptr, size)) = self.block.filter(|&(_, size)| size > keep) else { return Ok(0) };
        if self.heap.is_used() && self.uses.is_waiting() {
            self.wait(dev)?;
        }
        if self.heap.is_used() {
            return Ok(0);
        }
        dev.free(ptr)?;
        self.heap.stop();
        self.block = None;
        Ok(size)
    }

    /// Free memory of the global arena is shown on the default stream.
    fn inspect(&self, visit: &mut dyn FnMut(Span)) {
        let segment = self.block.map_or(0, |(ptr, _)| ptr);
        self.heap.visit(&mut |superblock, piece| {
            let (state, stream) = match piece.state {
                State::Live | State::Shared => (SpanState::Live, piece.stream),
                State::Pending => (SpanState::Pending, piece.stream),
                State::Free | State::Vacant if superblock.owner == GLOBAL => (SpanState::Cached, 0),
                State::Free | State::Vacant => (SpanState::Cached, superblock.owner - 1),
            };
            let Piece { ptr, size, .. } = *piece;
            visit(Span { segment, ptr, size, state, stream: StreamId(stream), pool: PoolId::DEFAULT });
        });
    }
}

impl Configure for Arena {
    const NAME: &'static str = "arena";
    const ABOUT: &'static str =
        "RMM's arena: one block of fixed size, superblocks lent to streams, first fit by address";
    type Params = Params;

    fn new(params: Params, device: &DeviceInfo) -> Result<Self, ConfigError> {
        params.check(device)?;
        let Params { arena_size: size, size_classes: has_classes } = params;
        let (heap, uses) = (Heap::default(), StreamUses::default());
        Ok(Arena { unit: device.alignment, size, has_classes, block: None, heap, uses })
    }
}
