//! A small strategy for the tests of devices and adaptors: exact-size reuse, cross-stream frees, a flush when full.

use crate::device::{Device, Fence};
use crate::error::{AllocError, DeviceError, FreeError, FreeFailure};
use crate::request::{Block, Request, StreamId};
use crate::strategy::{Span, Strategy};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Live,
    Pending(Fence),
    Cached,
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    ptr: u64,
    size: u64,
    generation: u32,
    state: State,
    other: Option<StreamId>,
}

/// Pieces by slot. Slots are never reused for other memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Toy {
    pieces: Vec<Piece>,
}

impl Toy {
    fn live(&mut self, block: &Block) -> Option<&mut Piece> {
        let piece = self.pieces.get_mut(block.slot() as usize)?;
        (piece.state == State::Live && piece.generation == block.generation()).then_some(piece)
    }
}

impl Strategy for Toy {
    fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        if req.size == 0 {
            return Ok(Block::empty());
        }
        for piece in &mut self.pieces {
            if let State::Pending(fence) = piece.state
                && dev.poll(fence)?
            {
                piece.state = State::Cached;
                dev.retired(piece.ptr);
            }
        }
        let is_fit = |piece: &Piece| piece.state == State::Cached && piece.size == req.size;
        let slot = match self.pieces.iter().position(is_fit) {
            Some(slot) => slot,
            None => {
                let mut outcome = dev.malloc(req.size);
                if outcome == Err(DeviceError::OutOfMemory) && self.trim(dev, 0)? > 0 {
                    outcome = dev.malloc(req.size);
                }
                let ptr = outcome.map_err(|error| match error {
                    DeviceError::OutOfMemory => AllocError::OutOfMemory,
                    error => AllocError::Device(error),
                })?;
                self.pieces.push(Piece { ptr, size: req.size, generation: 0, state: State::Cached, other: None });
                self.pieces.len() - 1
            }
        };
        let piece = &mut self.pieces[slot];
        *piece = Piece { generation: piece.generation + 1, state: State::Live, other: None, ..*piece };
        Block::new(piece.ptr, slot as u32, piece.generation).ok_or(AllocError::AddressSpace)
    }

    fn free(&mut self, dev: &mut dyn Device, block: Block) -> Result<(), FreeError> {
        if block.is_empty() {
            return Ok(());
        }
        let Some(piece) = self.live(&block) else { return Err(FreeError { block, reason: FreeFailure::NotLive }) };
        piece.state = match piece.other.map(|stream| dev.fence(stream)) {
            None => State::Cached,
            Some(Ok(fence)) => State::Pending(fence),
            Some(Err(error)) => return Err(FreeError { block, reason: error.into() }),
        };
        Ok(())
    }

    fn record_stream(&mut self, _dev: &mut dyn Device, block: &Block, stream: StreamId) -> Result<(), AllocError> {
        if !block.is_empty() {
            self.live(block).ok_or(AllocError::NotLive)?.other = Some(stream);
        }
        Ok(())
    }

    fn trim(&mut self, dev: &mut dyn Device, _keep: u64) -> Result<u64, AllocError> {
        let mut released = 0;
        for piece in self.pieces.iter_mut().filter(|piece| piece.state == State::Cached) {
            dev.free(piece.ptr)?;
            piece.state = State::Gone;
            released += piece.size;
        }
        Ok(released)
    }

    fn inspect(&self, _visit: &mut dyn FnMut(Span)) {}
}
