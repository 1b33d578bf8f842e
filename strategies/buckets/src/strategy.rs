//! The strategy: which slab serves a request, and which goes back.

use crate::classes::Classes;
use crate::params::Params;
use crate::slabs::{Entry, NONE, Slab, Slabs, State};
use allocator_core::{
    AllocError, Block, ConfigError, Configure, Device, DeviceError, DeviceInfo, FreeError, FreeFailure, PoolId,
    Request, Span, SpanState, Strategy, StreamId, StreamNumbers, StreamUses, Sync,
};

/// The strategy.
#[derive(Clone, Debug)]
pub struct Buckets {
    classes: Classes,
    slab: u64,
    keep_empty: u64,
    slabs: Slabs,
    lanes: Vec<Lane>,
    numbers: StreamNumbers,
    uses: StreamUses,
    /// Bytes of all slabs.
    reserved: u64,
    /// Bytes of the empty ones.
    empty: u64,
}

/// The slabs of a stream that have room.
#[derive(Clone, Debug)]
struct Lane {
    stream: StreamId,
    /// By class. Of slabs with many blocks those that have some of them in use and room for more, of slabs with one block
    /// the empty ones.
    heads: Vec<u32>,
    /// Empty slabs with many blocks, of any class.
    empty: u32,
}

impl Slab {
    /// Whether blocks share it: then it has the size that all such slabs have, and may change its class.
    fn is_shared(&self) -> bool {
        self.room > 1
    }
}

impl Buckets {
    /// The block's entry, or `None` if the block is not ours or not live any more.
    #[inline]
    fn find(&mut self, block: &Block) -> Option<&mut Entry> {
        let entry = self.slabs.entries.get_mut(block.slot() as usize)?;
        let is_live = matches!(entry.state, State::Live | State::Shared);
        let is_same = entry.generation == block.generation() && entry.ptr == block.ptr();
        (is_live && is_same).then_some(entry)
    }

    /// The index of a stream.
    #[inline]
    fn lane(&mut self, stream: StreamId) -> u32 {
        self.numbers.get(stream).unwrap_or_else(|| {
            self.lanes.push(Lane { stream, heads: Vec::new(), empty: NONE });
            self.numbers.add(stream)
        })
    }

    /// Whether a slab that falls empty now has to go back.
    fn is_surplus(&self, slab: &Slab) -> bool {
        self.empty.saturating_add(slab.bytes) > self.keep_empty
    }

    /// The slab of a block, if the block is its last one and it has to go back.
    #[inline]
    fn surplus(&self, slot: u32) -> Option<u64> {
        let slab = &self.slabs.slabs[self.slabs.entries[slot as usize].slab as usize];
        (slab.used == 1 && self.is_surplus(slab)).then_some(slab.ptr)
    }

    /// Puts a block into its slab, and the slab where slabs with room are found.
    #[inline]
    fn put(&mut self, slot: u32) {
        let at = self.slabs.entries[slot as usize].slab;
        let was = self.slabs.slabs[at as usize];
        self.slabs.put(slot);
        let lane = &mut self.lanes[was.lane as usize];
        let head = &mut lane.heads[was.class as usize];
        if was.used == was.room {
            self.slabs.link(head, at);
        }
        if was.used == 1 {
            self.empty += was.bytes;
            if was.is_shared() {
                self.slabs.unlink(head, at);
                self.slabs.link(&mut lane.empty, at);
            }
        }
    }

    /// A block is the last one of its slab, and the device has got that back.
    fn gone(&mut self, slot: u32) {
        let at = self.slabs.entries[slot as usize].slab;
        let slab = self.slabs.slabs[at as usize];
        self.slabs.put(slot);
        if slab.is_shared() {
            self.slabs.unlink(&mut self.lanes[slab.lane as usize].heads[slab.class as usize], at);
        }
        self.slabs.remove(at);
        self.reserved -= slab.bytes;
    }

    /// Puts those blocks back that need not wait any more.
    fn settle(&mut self, dev: &mut dyn Device, polls: usize) -> Result<(), DeviceError> {
        let mut outcome = self.uses.poll(dev, polls);
        while let Some(slot) = self.uses.take_done() {
            dev.retired(self.slabs.entries[slot as usize].ptr);
            match self.surplus(slot).map(|ptr| dev.free(ptr)) {
                Some(Ok(())) => self.gone(slot),
                Some(Err(error)) => {
                    // It stays, as an empty one too many.
                    outcome = Err(error);
                    self.put(slot);
                }
                None => self.put(slot),
            }
        }
        outcome
    }

    /// Gives empty slabs back, those with one block first and of these the largest, until at most `keep` bytes are
    /// reserved.
    fn release(&mut self, dev: &mut dyn Device, keep: u64) -> Result<(), DeviceError> {
        let Buckets { slabs, lanes, reserved, empty, .. } = self;
        for Lane { heads, empty: shared, .. } in lanes {
            for head in heads.iter_mut().rev().chain([shared]) {
                let mut at = *head;
                while *reserved > keep && at != NONE {
                    let Slab { ptr, bytes, used, next, .. } = slabs.slabs[at as usize];
                    if used == 0 {
                        dev.free(ptr)?;
                        slabs.unlink(head, at);
                        slabs.remove(at);
                        *reserved -= bytes;
                        *empty -= bytes;
                    }
                    at = next;
                }
            }
        }
        Ok(())
    }

    /// New memory from the device. When it has none, all empty slabs go back, and it is asked once more.
    fn malloc(&mut self, dev: &mut dyn Device, bytes: u64) -> Result<u64, AllocError> {
        let mut answer = dev.malloc(bytes);
        if answer == Err(DeviceError::OutOfMemory) && self.trim(dev, 0)? > 0 {
            answer = dev.malloc(bytes);
        }
        answer.map_err(|error| match error {
            DeviceError::OutOfMemory => AllocError::OutOfMemory,
            other => other.into(),
        })
    }

    /// Puts an empty slab into the list of a class that has none with room: one that is there, or a new one.
    #[cold]
    fn grow(&mut self, dev: &mut dyn Device, size: u64, class: u64, lane: u32) -> Result<u32, AllocError> {
        let is_shared = size <= self.slab / 4;
        let bytes = if is_shared { self.slab } else { size };
        let room = (bytes / size).min(u64::from(NONE)) as u32;
        let at = match self.lanes[lane as usize].empty {
            at if is_shared && at != NONE => {
                self.slabs.unlink(&mut self.lanes[lane as usize].empty, at);
                let slab = &mut self.slabs.slabs[at as usize];
                if slab.class != class {
                    (slab.block, slab.class, slab.room) = (size, class, room);
                    self.slabs.clear(at);
                }
                at
            }
            _ => {
                let (ptr, bytes, room) = match self.malloc(dev, bytes) {
                    // There is no room for a slab any more, but perhaps for the block.
                    Err(AllocError::OutOfMemory) if is_shared => (self.malloc(dev, size)?, size, 1),
                    answer => (answer?, bytes, room),
                };
                self.reserved += bytes;
                self.empty += bytes;
                let (free, prev, next) = (NONE, NONE, NONE);
                self.slabs.add(Slab {
                    ptr,
                    bytes,
                    block: size,
                    class,
                    lane,
                    room,
                    carved: 0,
                    used: 0,
                    free,
                    prev,
                    next,
                })
            }
        };
        let heads = &mut self.lanes[lane as usize].heads;
        if heads.len() <= class as usize {
            heads.resize(class as usize + 1, NONE);
        }
        self.slabs.link(&mut heads[class as usize], at);
        Ok(at)
    }
}

impl Strategy for Buckets {
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
        let size = self.classes.round(req.size).ok_or(AllocError::TooLarge)?;
        let class = self.classes.number(size);
        if class > Classes::LAST {
            return Err(AllocError::TooLarge);
        }
        let lane = self.lane(req.stream);
        let at = match self.lanes[lane as usize].heads.get(class as usize) {
            Some(&at) if at != NONE => at,
            _ => self.grow(dev, size, class, lane)?,
        };
        let slab = &self.slabs.slabs[at as usize];
        if slab.used == 0 {
            self.empty -= slab.bytes;
        }
        let (slot, has_room) = self.slabs.take(at);
        if !has_room {
            self.slabs.unlink(&mut self.lanes[lane as usize].heads[class as usize], at);
        }
        let entry = &self.slabs.entries[slot as usize];
        Block::new(entry.ptr, slot, entry.generation).ok_or(AllocError::AddressSpace)
    }

    fn free(&mut self, dev: &mut dyn Device, block: Block) -> Result<(), FreeError> {
        if block.is_empty() {
            return Ok(());
        }
        let slot = block.slot();
        let Some(entry) = self.find(&block) else {
            return Err(FreeError { block, reason: FreeFailure::NotLive });
        };
        if entry.state == State::Shared {
            match self.uses.free(dev, slot) {
                Ok(true) => {
                    self.slabs.entries[slot as usize].state = State::Pending;
                    return Ok(());
                }
                Ok(false) => {}
                Err(error) => return Err(FreeError { block, reason: error.into() }),
            }
        }
        match self.surplus(slot).map(|ptr| dev.free(ptr)) {
            Some(Ok(())) => self.gone(slot),
            Some(Err(error)) => return Err(FreeError { block, reason: error.into() }),
            None => self.put(slot),
        }
        Ok(())
    }

    fn record_stream(&mut self, _: &mut dyn Device, block: &Block, stream: StreamId) -> Result<(), AllocError> {
        if block.is_empty() {
            return Ok(());
        }
        let slab = self.find(block).ok_or(AllocError::NotLive)?.slab;
        let lane = self.slabs.slabs[slab as usize].lane;
        if self.lanes[lane as usize].stream != stream {
            self.slabs.entries[block.slot() as usize].state = State::Shared;
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
        let mut slabs: Vec<&Slab> = self.slabs.held().collect();
        slabs.sort_unstable_by_key(|slab| slab.ptr);
        let mut entries: Vec<&Entry> = self.slabs.entries.iter().filter(|entry| entry.state != State::Vacant).collect();
        entries.sort_unstable_by_key(|entry| entry.ptr);
        let mut entries = entries.into_iter();
        for slab in slabs {
            let span = |ptr, size, state| {
                let stream = self.lanes[slab.lane as usize].stream;
                Span { segment: slab.ptr, ptr, size, state, stream, pool: PoolId::DEFAULT }
            };
            for entry in entries.by_ref().take(slab.carved as usize) {
                let state = match entry.state {
                    State::Live | State::Shared => SpanState::Live,
                    State::Pending => SpanState::Pending,
                    State::Free | State::Vacant => SpanState::Cached,
                };
                visit(span(entry.ptr, slab.block, state));
            }
            let carved = u64::from(slab.carved) * slab.block;
            if carved < slab.bytes {
                visit(span(slab.ptr + carved, slab.bytes - carved, SpanState::Cached));
            }
        }
    }
}

impl Configure for Buckets {
    const NAME: &'static str = "buckets";
    const ABOUT: &'static str = "size-class slabs, 1 to 8 classes per doubling";
    type Params = Params;

    fn new(params: Params, device: &DeviceInfo) -> Result<Self, ConfigError> {
        params.check(device)?;
        let Params { per_doubling, smallest, cutoff, tail, slab, keep_empty } = params;
        Ok(Buckets {
            classes: Classes::new(per_doubling, smallest, cutoff, tail),
            slab,
            keep_empty,
            slabs: Slabs::new(),
            lanes: Vec::new(),
            numbers: StreamNumbers::default(),
            uses: StreamUses::default(),
            reserved: 0,
            empty: 0,
        })
    }
}
