//! Freeing by address, as C interfaces do.

use super::address_table::AddressTable;
use crate::device::Device;
use crate::error::{AllocError, ControlError, FreeError, FreeFailure};
use crate::request::{Block, Request, StreamId};
use crate::strategy::{Control, Strategy};

/// A strategy whose blocks are known by their addresses.
///
/// It keeps the blocks that the strategy hands out, so a double free, or a free of an address that was never handed
/// out, is an error here and never reaches the strategy.
#[derive(Debug)]
pub struct AddressIndex<S> {
    inner: S,
    live: AddressTable,
}

impl<S: Strategy> AddressIndex<S> {
    /// Wraps a strategy that has no live blocks.
    pub fn new(inner: S) -> AddressIndex<S> {
        AddressIndex { inner, live: AddressTable::new() }
    }

    /// The address of `req.size` bytes; [`Block::EMPTY_PTR`] if that is 0.
    #[inline]
    pub fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<u64, AllocError> {
        let block = self.inner.allocate(dev, req)?;
        let ptr = block.ptr();
        self.live.insert(block);
        Ok(ptr)
    }

    /// Frees what was allocated at `ptr`. After a failure it still is.
    #[inline]
    pub fn free(&mut self, dev: &mut dyn Device, ptr: u64) -> Result<(), FreeFailure> {
        let block = self.live.take(ptr).ok_or(FreeFailure::NotLive)?;
        self.inner.free(dev, block).map_err(|FreeError { block, reason }| {
            self.live.insert(block);
            reason
        })
    }

    /// Tells that `stream`, too, uses what was allocated at `ptr`.
    pub fn record_stream(&mut self, dev: &mut dyn Device, ptr: u64, stream: StreamId) -> Result<(), AllocError> {
        let block: Block = self.live.peek(ptr).ok_or(AllocError::NotLive)?;
        self.inner.record_stream(dev, &block, stream)
    }

    /// See [`Strategy::trim`].
    pub fn trim(&mut self, dev: &mut dyn Device, keep: u64) -> Result<u64, AllocError> {
        self.inner.trim(dev, keep)
    }

    /// See [`Strategy::control`].
    pub fn control(&mut self, dev: &mut dyn Device, what: Control<'_>) -> Result<(), ControlError> {
        self.inner.control(dev, what)
    }
}
