//! A reserved range, a physical piece and a mapping of its own for each block, with switches that break it.

use allocator_core::{
    AllocError, Block, Device, DeviceError, FreeError, FreeFailure, Handle, PoolId, Request, Span, SpanState, Strategy,
    StreamId, Sync,
};
use std::collections::BTreeMap;

/// One line done wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    UnmapsInUse,
    MapsTheSameTwice,
    KeepsMemory,
    KeepsAddresses,
    GivesPartOfMemoryBack,
    LosesMemoryOnFailedMap,
}

#[derive(Clone, Copy, Debug)]
struct Pages {
    va: u64,
    size: u64,
    handle: Handle,
    stream: StreamId,
}

/// See the module. Slots are never used twice.
#[derive(Debug, Default)]
pub struct Paged {
    bug: Option<Bug>,
    live: BTreeMap<u32, Pages>,
    /// What a failed call left half done, to be tried again at the next trim.
    mapped: Vec<Pages>,
    reserved: Vec<(u64, u64)>,
    created: Vec<(Handle, u64)>,
    next_slot: u32,
}

impl Paged {
    pub fn new(bug: Option<Bug>) -> Paged {
        Paged { bug, ..Paged::default() }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn get(&mut self, dev: &mut dyn Device, size: u64, stream: StreamId) -> Result<Pages, DeviceError> {
        let granularity = dev.info().granularity;
        let size = size.checked_next_multiple_of(granularity).ok_or(DeviceError::OutOfMemory)?;
        let other = self.live.values().find(|pages| self.has(Bug::MapsTheSameTwice) && pages.size == size);
        let other = other.map(|pages| pages.handle);
        let handle = match other {
            Some(handle) => handle,
            None => dev.create(size)?,
        };
        let va = dev.reserve(size).inspect_err(|_| self.created.push((handle, size)))?;
        if let Err(error) = dev.map(va, &[handle]) {
            self.reserved.push((va, size));
            if !self.has(Bug::LosesMemoryOnFailedMap) {
                self.created.push((handle, size));
            }
            return Err(error);
        }
        Ok(Pages { va, size, handle, stream })
    }

    fn is_live(&self, block: &Block) -> bool {
        self.live.get(&block.slot()).is_some_and(|pages| pages.va == block.ptr() && block.generation() == 0)
    }

    /// Gives pages back. What a failing call leaves is noted.
    fn give(&mut self, dev: &mut dyn Device, pages: Pages) -> Result<u64, DeviceError> {
        dev.unmap(pages.va, pages.size).inspect_err(|_| self.mapped.push(pages))?;
        if !self.has(Bug::KeepsAddresses) {
            self.reserved.push((pages.va, pages.size));
        }
        if !self.has(Bug::KeepsMemory) {
            self.created.push((pages.handle, pages.size));
        }
        self.clear(dev)
    }

    fn clear(&mut self, dev: &mut dyn Device) -> Result<u64, DeviceError> {
        let mut released = 0;
        while let Some(&(handle, size)) = self.created.last() {
            dev.release(handle)?;
            released += size;
            self.created.pop();
        }
        while let Some(&(va, size)) = self.reserved.last() {
            dev.unreserve(va, size)?;
            self.reserved.pop();
        }
        Ok(released)
    }
}

impl Strategy for Paged {
    fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        if req.size == 0 {
            return Ok(Block::empty());
        }
        let pages = self.get(dev, req.size, req.stream).map_err(|error| match error {
            DeviceError::OutOfMemory => AllocError::OutOfMemory,
            other => other.into(),
        })?;
        let slot = self.next_slot;
        self.next_slot += 1;
        self.live.insert(slot, pages);
        Block::new(pages.va, slot, 0).ok_or(AllocError::AddressSpace)
    }

    fn free(&mut self, dev: &mut dyn Device, block: Block) -> Result<(), FreeError> {
        if block.is_empty() {
            return Ok(());
        }
        if !self.is_live(&block) {
            return Err(FreeError { block, reason: FreeFailure::NotLive });
        }
        if !self.has(Bug::UnmapsInUse)
            && let Err(error) = dev.sync(Sync::Device)
        {
            return Err(FreeError { block, reason: error.into() });
        }
        if let Some(pages) = self.live.remove(&block.slot()) {
            if self.has(Bug::GivesPartOfMemoryBack) {
                let _ = dev.unmap(pages.va, pages.size / 2);
            }
            // The block is gone either way; the rest is tried again at the next trim.
            let _ = self.give(dev, pages);
        }
        Ok(())
    }

    fn record_stream(&mut self, _: &mut dyn Device, block: &Block, _: StreamId) -> Result<(), AllocError> {
        if block.is_empty() || self.is_live(block) { Ok(()) } else { Err(AllocError::NotLive) }
    }

    fn trim(&mut self, dev: &mut dyn Device, keep: u64) -> Result<u64, AllocError> {
        let left: u64 =
            self.mapped.iter().map(|pages| pages.size).chain(self.created.iter().map(|&(_, size)| size)).sum();
        let reserved = left + self.live.values().map(|pages| pages.size).sum::<u64>();
        if reserved <= keep {
            return Ok(0);
        }
        let mut released = self.clear(dev)?;
        while let Some(pages) = self.mapped.pop() {
            released += self.give(dev, pages)?;
        }
        Ok(released)
    }

    fn inspect(&self, visit: &mut dyn FnMut(Span)) {
        let live = self.live.values().map(|pages| (SpanState::Live, pages));
        let mut pages: Vec<_> = live.chain(self.mapped.iter().map(|pages| (SpanState::Cached, pages))).collect();
        pages.sort_unstable_by_key(|(_, pages)| pages.va);
        for (state, &Pages { va, size, stream, .. }) in pages {
            visit(Span { segment: va, ptr: va, size, state, stream, pool: PoolId::DEFAULT });
        }
    }
}
