//! A device that looks over the strategy's shoulder: where memory is, how much there was at most inside one event, and
//! how far the streams are.
//!
//! It passes every call on and changes no answer, so a strategy decides the same with and without it.

use crate::backing::Backing;
use crate::streams::Streams;
use allocator_core::Usage;
use allocator_core::{
    AsyncSettings, Device, DeviceError, DeviceInfo, Fence, Handle, Machine, MemoryInfo, StreamId, Sync,
};

/// See the module.
#[derive(Debug)]
pub(crate) struct Watch<M> {
    machine: M,
    pub(crate) backing: Backing,
    streams: Streams,
    reserved: u64,
    device_used: u64,
    reserved_high: u64,
    device_used_high: u64,
}

impl<M: Machine> Watch<M> {
    /// Watches a fresh device.
    pub(crate) fn new(machine: M) -> Watch<M> {
        let usage = machine.usage();
        Watch {
            machine,
            backing: Backing::default(),
            streams: Streams::default(),
            reserved: usage.reserved,
            device_used: usage.device_used,
            reserved_high: usage.reserved,
            device_used_high: usage.device_used,
        }
    }

    /// Reserved bytes now.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// The card's loss now.
    pub(crate) fn device_used(&self) -> u64 {
        self.device_used
    }

    /// The highest reserved bytes and the highest loss since the last call.
    pub(crate) fn take_highs(&mut self) -> (u64, u64) {
        let highs = (self.reserved_high, self.device_used_high);
        (self.reserved_high, self.device_used_high) = (self.reserved, self.device_used);
        highs
    }

    /// The streams as they are now.
    pub(crate) fn streams(&mut self) -> &mut Streams {
        self.streams.set_clock(self.machine.usage().now_ns);
        &mut self.streams
    }

    fn refresh(&mut self) {
        let usage = self.machine.usage();
        self.reserved = usage.reserved;
        self.device_used = usage.device_used;
        self.reserved_high = self.reserved_high.max(usage.reserved);
        self.device_used_high = self.device_used_high.max(usage.device_used);
    }
}

impl<M: Machine> Device for Watch<M> {
    fn info(&self) -> DeviceInfo {
        self.machine.info()
    }

    fn malloc(&mut self, size: u64) -> Result<u64, DeviceError> {
        let ptr = self.machine.malloc(size)?;
        self.backing.allocated(ptr, size);
        self.refresh();
        Ok(ptr)
    }

    fn free(&mut self, ptr: u64) -> Result<(), DeviceError> {
        self.machine.free(ptr)?;
        self.backing.remove(ptr, ptr + 1);
        self.refresh();
        Ok(())
    }

    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError> {
        self.machine.reserve(size)
    }

    fn unreserve(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        self.machine.unreserve(va, size)
    }

    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        let handle = self.machine.create(size)?;
        self.backing.created(handle, size);
        self.refresh();
        Ok(handle)
    }

    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        self.machine.release(handle)?;
        self.refresh();
        Ok(())
    }

    fn map(&mut self, va: u64, handles: &[Handle]) -> Result<(), DeviceError> {
        self.machine.map(va, handles)?;
        self.backing.mapped(va, handles);
        self.refresh();
        Ok(())
    }

    fn unmap(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        self.machine.unmap(va, size)?;
        self.backing.remove(va, va + size);
        self.refresh();
        Ok(())
    }

    fn malloc_async(&mut self, size: u64, stream: StreamId) -> Result<u64, DeviceError> {
        let ptr = self.machine.malloc_async(size, stream)?;
        self.backing.allocated(ptr, size);
        self.refresh();
        Ok(ptr)
    }

    fn free_async(&mut self, ptr: u64, stream: StreamId) -> Result<(), DeviceError> {
        self.machine.free_async(ptr, stream)?;
        self.backing.remove(ptr, ptr + 1);
        self.refresh();
        Ok(())
    }

    fn trim_async(&mut self, keep: u64) -> Result<(), DeviceError> {
        self.machine.trim_async(keep)?;
        self.refresh();
        Ok(())
    }

    fn configure_async(&mut self, settings: AsyncSettings) -> Result<(), DeviceError> {
        self.machine.configure_async(settings)
    }

    fn fence(&mut self, stream: StreamId) -> Result<Fence, DeviceError> {
        let fence = self.machine.fence(stream)?;
        self.streams().fence(fence)?;
        Ok(fence)
    }

    fn poll(&mut self, fence: Fence) -> Result<bool, DeviceError> {
        self.machine.poll(fence)
    }

    fn order_after(&mut self, stream: StreamId, fence: Fence) -> Result<(), DeviceError> {
        self.machine.order_after(stream, fence)?;
        self.streams().order_after(stream, fence)
    }

    fn sync(&mut self, what: Sync) -> Result<(), DeviceError> {
        self.machine.sync(what)?;
        // A stream-ordered pool gives memory back here.
        self.refresh();
        self.streams().sync(what)
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        self.machine.memory_info()
    }

    fn retired(&mut self, ptr: u64) {
        self.machine.retired(ptr);
    }
}

impl<M: Machine> Machine for Watch<M> {
    fn work(&mut self, stream: StreamId, ns: u64) -> Result<(), DeviceError> {
        self.streams().work(stream, ns)?;
        self.machine.work(stream, ns)
    }

    fn host_work(&mut self, ns: u64) {
        self.machine.host_work(ns);
    }

    fn complete(&mut self, ticket: u32) {
        self.streams.complete(ticket);
        self.machine.complete(ticket);
    }

    fn usage(&self) -> Usage {
        self.machine.usage()
    }
}
