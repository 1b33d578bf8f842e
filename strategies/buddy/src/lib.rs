//! Binary buddy blocks in arenas: a free block merges with the other half of what it was split from.
//!
//! ```text
//!                      [                8               ]   an arena of 8 units
//! allocate 1 unit      [ a ][ 1 ][    2   ][      4     ]   halved until the piece fits; the upper halves stay free
//! allocate 3 units     [ a ][ 1 ][    2   ][      b     ]   rounded up to 4
//! free a               [        4         ][      b     ]   a's buddy is free: one block of 2, whose buddy is free, too
//! free b               [                8               ]
//! ```
//!
//! Each stream has arenas of its own, so memory that was freed on a stream comes after its last use there. Requests above
//! the arena are the driver's business, and go back to it when they are freed.

mod arena;
mod bits;
mod blocks;
mod heap;
mod params;

pub use params::{Merge, Params};

use allocator_core::{
    AllocError, Block, ConfigError, Configure, Device, DeviceError, DeviceInfo, FreeError, FreeFailure, PoolId,
    Request, Span, SpanState, Strategy, StreamId, StreamUses, Sync,
};
use arena::Arena;
use blocks::{Blocks, Entry, Home, State};
use heap::Heap;

/// The strategy.
#[derive(Clone, Debug)]
pub struct Buddy {
    /// The logarithm of the unit's bytes.
    unit: u32,
    /// The order of an arena.
    order: u32,
    is_eager: bool,
    /// By stream.
    heaps: Vec<Heap>,
    blocks: Blocks,
    uses: StreamUses,
    reserved: u64,
}

impl Buddy {
    /// The smallest order whose blocks hold so many bytes.
    #[inline]
    fn order_of(&self, size: u64) -> u32 {
        u64::BITS - (size.saturating_sub(1) >> self.unit).leading_zeros()
    }

    /// A free block of the stream. Where merging is lazy, it is done when there is none.
    #[inline]
    fn take(&mut self, stream: StreamId, order: u32) -> Option<Home> {
        if order > self.order {
            return None;
        }
        let heap = self.heaps.get_mut(stream.index())?;
        let place = match heap.take(order) {
            None if heap.coalesce() => heap.take(order),
            place => place,
        }?;
        Some(Home::Arena(place))
    }

    /// Memory for a request that no free block serves. If the device has none left, what is cached goes back to it, and it
    /// is asked once more: for an arena, then for one that is just large enough, then for the bytes as they are.
    #[cold]
    fn grow(&mut self, dev: &mut dyn Device, stream: StreamId, size: u64) -> Result<Home, AllocError> {
        let order = self.order_of(size);
        let size = size.checked_next_multiple_of(1 << self.unit).ok_or(AllocError::TooLarge)?;
        if order > self.order {
            return match self.segment(dev, size) {
                Err(AllocError::OutOfMemory) => {
                    self.trim(dev, 0)?;
                    self.segment(dev, size)
                }
                answer => answer,
            };
        }
        match self.extend(dev, stream, self.order) {
            Err(AllocError::OutOfMemory) => {}
            answer => return answer.and_then(|()| self.take(stream, order).ok_or(AllocError::OutOfMemory)),
        }
        self.trim(dev, 0)?;
        // Frees that waited may have been for this stream, in an arena that others keep.
        if let Some(home) = self.take(stream, order) {
            return Ok(home);
        }
        for arena in [self.order, order] {
            match self.extend(dev, stream, arena) {
                Err(AllocError::OutOfMemory) => {}
                answer => return answer.and_then(|()| self.take(stream, order).ok_or(AllocError::OutOfMemory)),
            }
        }
        self.segment(dev, size)
    }

    /// A new arena of an order.
    fn extend(&mut self, dev: &mut dyn Device, stream: StreamId, order: u32) -> Result<(), AllocError> {
        let base = self.malloc(dev, 1 << (self.unit + order))?;
        let needed = stream.index() + 1;
        if self.heaps.len() < needed {
            self.heaps.resize_with(needed, || Heap::new(self.order));
        }
        self.heaps[stream.index()].add(Arena::new(base, order));
        Ok(())
    }

    /// A segment for one block.
    fn segment(&mut self, dev: &mut dyn Device, size: u64) -> Result<Home, AllocError> {
        let base = self.malloc(dev, size)?;
        Ok(Home::Segment { base, size })
    }

    fn malloc(&mut self, dev: &mut dyn Device, size: u64) -> Result<u64, AllocError> {
        let base = dev.malloc(size).map_err(|error| match error {
            DeviceError::OutOfMemory => AllocError::OutOfMemory,
            other => other.into(),
        })?;
        // Address 0 is no block's, and addresses within are added up later.
        if base == 0 || base.checked_add(size).is_none() {
            dev.free(base)?;
            return Err(AllocError::AddressSpace);
        }
        self.reserved += size;
        Ok(base)
    }

    /// Where a block begins.
    #[inline]
    fn address(&self, stream: StreamId, home: Home) -> Option<u64> {
        match home {
            Home::Segment { base, .. } => Some(base),
            Home::Arena(place) => {
                let (base, units) = self.heaps.get(stream.index())?.locate(place)?;
                Some(base + (units << self.unit))
            }
        }
    }

    /// Blocks that need not wait for other streams any more become free. So many streams are looked at.
    fn settle(&mut self, dev: &mut dyn Device, streams: usize) -> Result<(), DeviceError> {
        let polled = self.uses.poll(dev, streams);
        while let Some(slot) = self.uses.take_done() {
            let Some(Entry { ptr, stream, home: Home::Arena(place), .. }) = self.blocks.vacate(slot) else { continue };
            dev.retired(ptr);
            self.heaps[stream.index()].give(place, self.is_eager);
        }
        polled
    }
}

impl Strategy for Buddy {
    #[inline]
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
        let stream = req.stream;
        let home = match self.take(stream, self.order_of(req.size)) {
            Some(home) => home,
            None => self.grow(dev, stream, req.size)?,
        };
        let ptr = self.address(stream, home).ok_or(AllocError::AddressSpace)?;
        self.blocks.enter(ptr, home, stream).ok_or(AllocError::AddressSpace)
    }

    #[inline]
    fn free(&mut self, dev: &mut dyn Device, block: Block) -> Result<(), FreeError> {
        if block.is_empty() {
            return Ok(());
        }
        let slot = block.slot();
        let Some(&Entry { home, stream, is_shared, .. }) = self.blocks.live(&block) else {
            return Err(FreeError { block, reason: FreeFailure::NotLive });
        };
        match home {
            Home::Arena(_) if is_shared => {
                if let Err(error) = self.uses.free(dev, slot) {
                    return Err(FreeError { block, reason: error.into() });
                }
                self.blocks.set_waiting(slot);
            }
            Home::Arena(place) => {
                self.heaps[stream.index()].give(place, self.is_eager);
                self.blocks.vacate(slot);
            }
            Home::Segment { base, size } => {
                // The driver's free waits for every stream.
                if let Err(error) = dev.free(base) {
                    return Err(FreeError { block, reason: error.into() });
                }
                self.reserved -= size;
                self.uses.forget(slot);
                self.blocks.vacate(slot);
            }
        }
        Ok(())
    }

    fn record_stream(&mut self, _: &mut dyn Device, block: &Block, stream: StreamId) -> Result<(), AllocError> {
        match self.blocks.live_mut(block) {
            Some(entry) => {
                if entry.stream != stream {
                    entry.is_shared = true;
                    self.uses.record(block.slot(), stream);
                }
                Ok(())
            }
            None if block.is_empty() => Ok(()),
            None => Err(AllocError::NotLive),
        }
    }

    /// Unused arenas go back, those with the highest numbers first. If blocks wait for streams, the host waits first.
    fn trim(&mut self, dev: &mut dyn Device, keep: u64) -> Result<u64, AllocError> {
        let before = self.reserved;
        if self.reserved > keep && self.uses.is_waiting() {
            dev.sync(Sync::Device)?;
            self.settle(dev, usize::MAX)?;
        }
        for heap in &mut self.heaps {
            if self.reserved > keep {
                heap.coalesce();
            }
            for at in (0..heap.len()).rev() {
                if self.reserved <= keep {
                    break;
                }
                if let Some(arena) = heap.arena(at).filter(|arena| arena.is_unused()) {
                    let size = 1 << (self.unit + arena.order);
                    dev.free(arena.base)?;
                    heap.remove(at);
                    self.reserved -= size;
                }
            }
        }
        Ok(before - self.reserved)
    }

    fn inspect(&self, visit: &mut dyn FnMut(Span)) {
        let pool = PoolId::DEFAULT;
        let mut spans = Vec::new();
        for &Entry { ptr, home, stream, state, .. } in self.blocks.iter() {
            let state = match state {
                State::Live => SpanState::Live,
                State::Waiting => SpanState::Pending,
                State::Vacant => continue,
            };
            let (segment, size) = match home {
                Home::Segment { base, size } => (base, size),
                Home::Arena(place) => {
                    let Some((base, _)) = self.heaps[stream.index()].locate(place) else { continue };
                    (base, 1 << (self.unit + place.order))
                }
            };
            spans.push(Span { segment, ptr, size, state, stream, pool });
        }
        for (stream, heap) in (0..).map(StreamId).zip(&self.heaps) {
            for arena in (0..heap.len()).filter_map(|at| heap.arena(at)) {
                spans.extend(arena.free_blocks().map(|(order, number)| {
                    let ptr = arena.base + (u64::from(number) << (order + self.unit));
                    let size = 1 << (self.unit + order);
                    Span { segment: arena.base, ptr, size, state: SpanState::Cached, stream, pool }
                }));
            }
        }
        spans.sort_unstable_by_key(|span| span.ptr);
        spans.into_iter().for_each(visit);
    }
}

impl Configure for Buddy {
    const NAME: &'static str = "buddy";
    const ABOUT: &'static str = "binary buddy blocks in arenas, merged with their other half when free";
    type Params = Params;

    fn new(params: Params, device: &DeviceInfo) -> Result<Self, ConfigError> {
        let (unit, order) = params.orders(device)?;
        Ok(Buddy {
            unit,
            order,
            is_eager: params.merge == Merge::Eager,
            heaps: Vec::new(),
            blocks: Blocks::default(),
            uses: StreamUses::default(),
            reserved: 0,
        })
    }
}
