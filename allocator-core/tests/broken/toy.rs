//! A small caching allocator with switches that break it, one rule each.
//!
//! Segments are cut into pieces and joined again; a request takes the first piece, by address, of its stream and
//! pool that is large enough. Blocks that further streams used wait for a fence on each of them.

use allocator_core::{
    AllocError, Block, Control, ControlError, Device, DeviceError, Fence, FreeError, FreeFailure, PoolId, Request,
    Span, SpanState, Strategy, StreamId, Sync,
};
use std::collections::{BTreeMap, HashSet};

/// One line of the toy done wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    RefusesZero,
    RoundsTo256,
    CutsOffTooLittle,
    JoinsLiveNeighbours,
    TakesAnyPiece,
    LosesBlockOnFailedFence,
    LosesSegmentOnFailedFree,
    GivesAnotherBlockBack,
    StaysOutOfMemory,
    KeepsLastSegment,
    TrimsTooMuch,
    TrimSaysNothing,
    TrimLeavesWaiting,
    IgnoresUses,
    IgnoresOwnStream,
    IgnoresTickets,
    WaitsForFirstFence,
    FencesTooEarly,
    ForgetsGenerations,
    ForgetsAddresses,
    ReplacesForeignBlock,
    RefusesUsedBlocks,
    HidesCached,
    ShowsWaitingAsLive,
    ShowsWrongStream,
    ShowsFromTheEnd,
    MixesPools,
    PassesOutOfMemoryOn,
    IgnoresLimit,
    FreesTwice,
    Overflows,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    Live,
    Waiting,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    size: u64,
    segment: u64,
    stream: StreamId,
    pool: PoolId,
    state: State,
}

#[derive(Debug, Default)]
struct Slot {
    /// The live block's address.
    ptr: Option<u64>,
    generation: u32,
    users: Vec<StreamId>,
    early: Vec<Fence>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Toy {
    bug: Option<Bug>,
    /// Sizes of the segments, by address.
    segments: BTreeMap<u64, u64>,
    pieces: BTreeMap<u64, Piece>,
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    /// Freed blocks and the fences they wait for.
    waiting: Vec<(u64, Vec<Fence>)>,
    /// Users of each private pool.
    pools: BTreeMap<PoolId, u32>,
    reserved: u64,
    limit: Option<u64>,
    exhausted: bool,
}

impl Toy {
    pub fn new(bug: Option<Bug>) -> Toy {
        Toy { bug, ..Toy::default() }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn find(&self, size: u64, req: &Request) -> Option<u64> {
        let fits = |piece: &Piece| {
            piece.state == State::Free
                && piece.size >= size
                && (piece.stream == req.stream || self.has(Bug::IgnoresOwnStream))
                && (piece.pool == req.pool || self.has(Bug::MixesPools))
        };
        let mut fitting = self.pieces.iter().filter(|(_, piece)| fits(piece)).map(|(&ptr, _)| ptr);
        if self.has(Bug::TakesAnyPiece) {
            return fitting.collect::<HashSet<u64>>().into_iter().next();
        }
        fitting.next()
    }

    fn grow(&mut self, dev: &mut dyn Device, size: u64, req: &Request) -> Result<u64, DeviceError> {
        let size = size.checked_next_multiple_of(2 << 20).ok_or(DeviceError::OutOfMemory)?;
        let over = self.limit.is_some_and(|limit| self.reserved.saturating_add(size) > limit);
        if over && !self.has(Bug::IgnoresLimit) {
            return Err(DeviceError::OutOfMemory);
        }
        let ptr = dev.malloc(size)?;
        self.reserved += size;
        self.segments.insert(ptr, size);
        self.pieces.insert(ptr, Piece { size, segment: ptr, stream: req.stream, pool: req.pool, state: State::Free });
        Ok(ptr)
    }

    /// Lets blocks go whose fences are done, or waits until all are.
    fn settle(&mut self, dev: &mut dyn Device, wait: bool) -> Result<(), DeviceError> {
        for at in (0..self.waiting.len()).rev() {
            let (ptr, fences) = &self.waiting[at];
            let ptr = *ptr;
            let mut done = true;
            for &fence in fences {
                if wait {
                    dev.sync(Sync::Fence(fence))?;
                } else {
                    done &= dev.poll(fence)?;
                }
                if self.has(Bug::WaitsForFirstFence) {
                    break;
                }
            }
            if done {
                self.waiting.remove(at);
                dev.retired(ptr);
                self.join(ptr);
            }
        }
        Ok(())
    }

    /// Makes a piece free and joins it with free neighbours.
    fn join(&mut self, ptr: u64) {
        let Some(mut piece) = self.pieces.remove(&ptr) else { return };
        let mut start = ptr;
        let joins = |other: &Piece| other.segment == piece.segment && other.state == State::Free;
        if let Some((&before, other)) = self.pieces.range(..ptr).next_back()
            && joins(other)
        {
            start = before;
        }
        let mut end = ptr + piece.size;
        if let Some(other) = self.pieces.get(&end)
            && (joins(other) || self.has(Bug::JoinsLiveNeighbours) && other.segment == piece.segment)
        {
            end += other.size;
        }
        self.pieces.retain(|&at, _| at < start || at >= end);
        piece.size = end - start;
        piece.state = State::Free;
        self.pieces.insert(start, piece);
    }

    /// Gives segments without blocks back until at most `keep` bytes are reserved.
    fn release(&mut self, dev: &mut dyn Device, keep: u64) -> Result<(), DeviceError> {
        let whole =
            |piece: &Piece| piece.state == State::Free && self.segments.get(&piece.segment) == Some(&piece.size);
        let in_use = |piece: &Piece| self.pools.contains_key(&piece.pool);
        let empty: Vec<u64> =
            self.pieces.values().filter(|piece| whole(piece) && !in_use(piece)).map(|p| p.segment).collect();
        for ptr in empty {
            let size = self.segments[&ptr];
            if self.reserved <= keep && !self.has(Bug::TrimsTooMuch)
                || self.has(Bug::KeepsLastSegment) && self.segments.len() == 1
            {
                break;
            }
            if self.has(Bug::LosesSegmentOnFailedFree) {
                self.segments.remove(&ptr);
                self.pieces.remove(&ptr);
            }
            dev.free(ptr)?;
            if self.has(Bug::FreesTwice) {
                let _ = dev.free(ptr);
            }
            self.segments.remove(&ptr);
            self.pieces.remove(&ptr);
            self.reserved -= size;
        }
        Ok(())
    }

    fn place(&mut self, dev: &mut dyn Device, size: u64, req: &Request) -> Result<u64, DeviceError> {
        self.settle(dev, false)?;
        if let Some(ptr) = self.find(size, req) {
            return Ok(ptr);
        }
        match self.grow(dev, size, req) {
            Err(DeviceError::OutOfMemory) => {
                self.settle(dev, true)?;
                self.release(dev, 0)?;
                match self.find(size, req) {
                    Some(ptr) => Ok(ptr),
                    None => self.grow(dev, size, req),
                }
            }
            answer => answer,
        }
    }

    fn slot(&mut self, block: &Block) -> Option<&mut Slot> {
        let any = self.has(Bug::ForgetsGenerations);
        let anywhere = self.has(Bug::ForgetsAddresses);
        let slot = self.slots.get_mut(block.slot() as usize)?;
        let ptr = slot.ptr?;
        ((slot.generation == block.generation() || any) && (ptr == block.ptr() || anywhere)).then_some(slot)
    }
}

impl Strategy for Toy {
    fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        if req.size == 0 {
            return if self.has(Bug::RefusesZero) { Err(AllocError::OutOfMemory) } else { Ok(Block::empty()) };
        }
        if req.pool != PoolId::DEFAULT && !self.pools.contains_key(&req.pool) {
            return Err(AllocError::UnknownPool);
        }
        let step = if self.has(Bug::RoundsTo256) { 256 } else { 512 };
        let size = match req.size.checked_next_multiple_of(step) {
            None if self.has(Bug::Overflows) => panic!("{} is too much", req.size),
            None => return Err(AllocError::TooLarge),
            Some(size) => size,
        };
        if self.exhausted && self.has(Bug::StaysOutOfMemory) {
            return Err(AllocError::OutOfMemory);
        }
        let ptr = self.place(dev, size, &req).map_err(|error| match error {
            DeviceError::OutOfMemory if !self.has(Bug::PassesOutOfMemoryOn) => {
                self.exhausted = true;
                AllocError::OutOfMemory
            }
            other => AllocError::Device(other),
        })?;
        let piece = self.pieces[&ptr];
        let rest = Piece { size: piece.size - size, ..piece };
        if rest.size > 0 {
            let short = if self.has(Bug::CutsOffTooLittle) && size > 512 { 512 } else { 0 };
            self.pieces.insert(ptr + size - short, Piece { size: rest.size + short, ..rest });
        }
        self.pieces.insert(ptr, Piece { size, state: State::Live, ..piece });
        let slot = self.vacant.pop().unwrap_or(self.slots.len() as u32);
        if slot as usize == self.slots.len() {
            self.slots.push(Slot::default());
        }
        self.slots[slot as usize].ptr = Some(ptr);
        Block::new(ptr, slot, self.slots[slot as usize].generation).ok_or(AllocError::AddressSpace)
    }

    fn free(&mut self, dev: &mut dyn Device, block: Block) -> Result<(), FreeError> {
        if block.is_empty() {
            return Ok(());
        }
        let refuses_used = self.has(Bug::RefusesUsedBlocks);
        let Some(slot) = self.slot(&block) else {
            let block = if self.has(Bug::ReplacesForeignBlock) { Block::empty() } else { block };
            return Err(FreeError { block, reason: FreeFailure::NotLive });
        };
        if refuses_used && !slot.users.is_empty() {
            return Err(FreeError { block, reason: FreeFailure::NotLive });
        }
        let users = slot.users.clone();
        let mut fences = slot.early.clone();
        if !self.has(Bug::FencesTooEarly) {
            for user in users {
                if user.as_ticket().is_some() && self.has(Bug::IgnoresTickets) {
                    continue;
                }
                match dev.fence(user) {
                    Ok(fence) => fences.push(fence),
                    Err(error) => {
                        if self.has(Bug::LosesBlockOnFailedFence) {
                            self.slots[block.slot() as usize].ptr = None;
                        }
                        let block = if self.has(Bug::GivesAnotherBlockBack) { Block::empty() } else { block };
                        return Err(FreeError { block, reason: error.into() });
                    }
                }
            }
        }
        let slot = &mut self.slots[block.slot() as usize];
        *slot = Slot { generation: slot.generation.wrapping_add(1), ..Slot::default() };
        self.vacant.push(block.slot());
        if fences.is_empty() {
            self.join(block.ptr());
        } else {
            if let Some(piece) = self.pieces.get_mut(&block.ptr()) {
                piece.state = State::Waiting;
            }
            self.waiting.push((block.ptr(), fences));
        }
        Ok(())
    }

    fn record_stream(&mut self, dev: &mut dyn Device, block: &Block, stream: StreamId) -> Result<(), AllocError> {
        if block.is_empty() {
            return Ok(());
        }
        let own = self.pieces.get(&block.ptr()).map(|piece| piece.stream);
        let (ignores, early) = (self.has(Bug::IgnoresUses), self.has(Bug::FencesTooEarly));
        let slot = self.slot(block).ok_or(AllocError::NotLive)?;
        if own != Some(stream) && !slot.users.contains(&stream) && !ignores {
            slot.users.push(stream);
            if early {
                slot.early.push(dev.fence(stream)?);
            }
        }
        Ok(())
    }

    fn trim(&mut self, dev: &mut dyn Device, keep: u64) -> Result<u64, AllocError> {
        let before = self.reserved;
        self.settle(dev, !self.has(Bug::TrimLeavesWaiting))?;
        self.release(dev, keep)?;
        Ok(if self.has(Bug::TrimSaysNothing) { 0 } else { before - self.reserved })
    }

    fn control(&mut self, _: &mut dyn Device, what: Control<'_>) -> Result<(), ControlError> {
        match what {
            Control::PoolCreate(pool) | Control::PoolBegin(pool) if pool != PoolId::DEFAULT => {
                self.pools.entry(pool).or_insert(1);
                Ok(())
            }
            Control::PoolRelease(pool) => self.pools.remove(&pool).map(drop).ok_or(ControlError::UnknownPool(pool)),
            Control::PoolEnd(pool) => self.pools.get(&pool).map(drop).ok_or(ControlError::UnknownPool(pool)),
            Control::Limit(bytes) => {
                self.limit = bytes;
                Ok(())
            }
            _ => Err(ControlError::Unsupported),
        }
    }

    fn inspect(&self, visit: &mut dyn FnMut(Span)) {
        let show = |(&ptr, piece): (&u64, &Piece)| {
            let Piece { size, segment, stream, pool, state } = *piece;
            let state = match state {
                State::Free => SpanState::Cached,
                State::Live => SpanState::Live,
                State::Waiting if self.has(Bug::ShowsWaitingAsLive) => SpanState::Live,
                State::Waiting => SpanState::Pending,
            };
            let stream = if self.has(Bug::ShowsWrongStream) { StreamId(7) } else { stream };
            Span { segment, ptr, size, state, stream, pool }
        };
        let mut spans: Vec<Span> = self.pieces.iter().map(show).collect();
        if self.has(Bug::HidesCached) {
            spans.retain(|span| span.state != SpanState::Cached);
        }
        if self.has(Bug::ShowsFromTheEnd) {
            spans.reverse();
        }
        spans.into_iter().for_each(visit);
    }
}
