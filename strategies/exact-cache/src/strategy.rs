//! The strategy: pieces of device memory that are live, wait for other streams, or lie in a list.

use crate::heads::{Heads, NONE};
use crate::params::Params;
use crate::rounding::Rounder;
use allocator_core::{
    AllocError, Block, ConfigError, Configure, Device, DeviceError, DeviceInfo, FreeError, FreeFailure, PoolId,
    Request, Span, SpanState, Strategy, StreamId, StreamUses, Sync,
};

/// So many fences may be found not to have passed in one request.
const POLLS: usize = 4;

/// The strategy. A piece of memory keeps its slot, its index in `pieces`, from its `malloc` to its return to the device.
#[derive(Clone, Debug)]
pub struct ExactCache {
    rounder: Rounder,
    reserve_percent: u64,
    pieces: Vec<Piece>,
    /// Slots without memory.
    vacant: Vec<u32>,
    lanes: Vec<Lane>,
    uses: StreamUses,
    reserved: u64,
}

/// The free memory of a stream.
#[derive(Clone, Debug)]
struct Lane {
    stream: StreamId,
    heads: Heads,
}

/// What one `malloc` gave.
#[derive(Clone, Copy, Debug)]
struct Piece {
    ptr: u64,
    size: u64,
    /// The stream it belongs to, as an index.
    lane: u32,
    /// The next one in its list.
    next: u32,
    generation: u32,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Live,
    /// Live, and used on further streams.
    Shared,
    Pending,
    Cached,
    /// The device has it back.
    Gone,
}

impl ExactCache {
    /// The block's piece, or `None` if the block is not ours or not live any more.
    #[inline]
    fn find(&mut self, block: &Block) -> Option<&mut Piece> {
        let piece = self.pieces.get_mut(block.slot() as usize)?;
        let is_live = matches!(piece.state, State::Live | State::Shared);
        let is_same = piece.generation == block.generation() && piece.ptr == block.ptr();
        (is_live && is_same).then_some(piece)
    }

    /// The index of a stream. Programs have few streams.
    #[inline]
    fn lane(&mut self, stream: StreamId) -> u32 {
        let known = self.lanes.iter().position(|lane| lane.stream == stream);
        let at = known.unwrap_or_else(|| {
            self.lanes.push(Lane { stream, heads: Heads::default() });
            self.lanes.len() - 1
        });
        at as u32
    }

    /// Puts a piece on its list.
    #[inline]
    fn push(&mut self, slot: u32) {
        let piece = &mut self.pieces[slot as usize];
        let class = self.rounder.class(piece.size);
        let heads = &mut self.lanes[piece.lane as usize].heads;
        piece.next = heads.get(class);
        piece.state = State::Cached;
        heads.set(class, slot);
    }

    /// Puts those pieces on their lists that need not wait any more.
    fn settle(&mut self, dev: &mut dyn Device, polls: usize) -> Result<(), DeviceError> {
        let polled = self.uses.poll(dev, polls);
        while let Some(slot) = self.uses.take_done() {
            dev.retired(self.pieces[slot as usize].ptr);
            self.push(slot);
        }
        polled
    }

    /// Gives listed pieces back, the largest first, until at most `keep` bytes are reserved or no list has one.
    fn release(&mut self, dev: &mut dyn Device, keep: u64) -> Result<(), DeviceError> {
        for lane in &mut self.lanes {
            let mut last = u64::MAX;
            while self.reserved > keep
                && let Some(class) = lane.heads.largest(last)
            {
                last = class;
                let slot = lane.heads.get(class);
                let piece = &mut self.pieces[slot as usize];
                dev.free(piece.ptr)?;
                piece.state = State::Gone;
                self.reserved -= piece.size;
                self.vacant.push(slot);
                lane.heads.set(class, piece.next);
            }
        }
        Ok(())
    }

    /// A new piece from the device. The cache goes back first if the device would have too little left, or has nothing.
    #[cold]
    fn grow(&mut self, dev: &mut dyn Device, size: u64, lane: u32) -> Result<u32, AllocError> {
        if self.reserve_percent > 0 {
            let memory = dev.memory_info()?;
            let reserve = u128::from(memory.total) * u128::from(self.reserve_percent) / 100;
            if u128::from(memory.free) < u128::from(size) + reserve {
                self.trim(dev, 0)?;
            }
        }
        let mut answer = dev.malloc(size);
        if answer == Err(DeviceError::OutOfMemory) && self.trim(dev, 0)? > 0 {
            answer = dev.malloc(size);
        }
        let ptr = match answer {
            Ok(ptr) => ptr,
            Err(DeviceError::OutOfMemory) => return Err(AllocError::OutOfMemory),
            Err(other) => return Err(other.into()),
        };
        self.reserved += size;
        let piece = Piece { ptr, size, lane, next: NONE, generation: 0, state: State::Live };
        Ok(match self.vacant.pop() {
            Some(slot) => {
                let generation = self.pieces[slot as usize].generation;
                self.pieces[slot as usize] = Piece { generation, ..piece };
                slot
            }
            None => {
                self.pieces.push(piece);
                (self.pieces.len() - 1) as u32
            }
        })
    }
}

impl Strategy for ExactCache {
    fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        if req.pool != PoolId::DEFAULT {
            return Err(AllocError::UnknownPool);
        }
        if req.size == 0 {
            return Ok(Block::empty());
        }
        if self.uses.is_waiting() {
            self.settle(dev, POLLS)?;
        }
        let size = self.rounder.round(req.size).ok_or(AllocError::TooLarge)?;
        let class = self.rounder.class(size);
        let lane = self.lane(req.stream);
        let heads = &mut self.lanes[lane as usize].heads;
        let slot = match heads.get(class) {
            NONE => self.grow(dev, size, lane)?,
            slot => {
                heads.set(class, self.pieces[slot as usize].next);
                slot
            }
        };
        let piece = &mut self.pieces[slot as usize];
        piece.state = State::Live;
        piece.generation = piece.generation.wrapping_add(1);
        Block::new(piece.ptr, slot, piece.generation).ok_or(AllocError::AddressSpace)
    }

    fn free(&mut self, dev: &mut dyn Device, block: Block) -> Result<(), FreeError> {
        if block.is_empty() {
            return Ok(());
        }
        let Some(piece) = self.find(&block) else {
            return Err(FreeError { block, reason: FreeFailure::NotLive });
        };
        if piece.state == State::Shared {
            match self.uses.free(dev, block.slot()) {
                Ok(true) => {
                    self.pieces[block.slot() as usize].state = State::Pending;
                    return Ok(());
                }
                Ok(false) => {}
                Err(error) => return Err(FreeError { block, reason: error.into() }),
            }
        }
        self.push(block.slot());
        Ok(())
    }

    fn record_stream(&mut self, _: &mut dyn Device, block: &Block, stream: StreamId) -> Result<(), AllocError> {
        if block.is_empty() {
            return Ok(());
        }
        let lane = self.find(block).ok_or(AllocError::NotLive)?.lane;
        if self.lanes[lane as usize].stream != stream {
            self.pieces[block.slot() as usize].state = State::Shared;
            self.uses.record(block.slot(), stream);
        }
        Ok(())
    }

    fn trim(&mut self, dev: &mut dyn Device, keep: u64) -> Result<u64, AllocError> {
        let before = self.reserved;
        self.release(dev, keep)?;
        if self.reserved > keep && self.uses.is_waiting() {
            dev.sync(Sync::Device)?;
            self.settle(dev, usize::MAX)?;
            self.release(dev, keep)?;
        }
        Ok(before - self.reserved)
    }

    fn inspect(&self, visit: &mut dyn FnMut(Span)) {
        let mut held: Vec<&Piece> = self.pieces.iter().filter(|piece| piece.state != State::Gone).collect();
        held.sort_unstable_by_key(|piece| piece.ptr);
        for &Piece { ptr, size, lane, state, .. } in held {
            let stream = self.lanes[lane as usize].stream;
            let state = match state {
                State::Live | State::Shared => SpanState::Live,
                State::Pending => SpanState::Pending,
                State::Cached | State::Gone => SpanState::Cached,
            };
            visit(Span { segment: ptr, ptr, size, state, stream, pool: PoolId::DEFAULT });
        }
    }
}

impl Configure for ExactCache {
    const NAME: &'static str = "exact-cache";
    const ABOUT: &'static str = "free lists by exact rounded size, never split (MXNet)";
    type Params = Params;

    fn new(params: Params, device: &DeviceInfo) -> Result<Self, ConfigError> {
        params.check(device)?;
        let Params { rounding, page, cutoff, reserve_percent } = params;
        Ok(ExactCache {
            rounder: Rounder::new(rounding, page, cutoff),
            reserve_percent,
            pieces: Vec::new(),
            vacant: Vec::new(),
            lanes: Vec::new(),
            uses: StreamUses::default(),
            reserved: 0,
        })
    }
}
