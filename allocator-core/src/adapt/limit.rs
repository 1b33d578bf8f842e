//! A memory limit for strategies that have none of their own.

use crate::device::{AsyncSettings, Device, DeviceInfo, Fence, Handle, MemoryInfo, Sync};
use crate::error::{AllocError, ControlError, DeviceError, FreeError};
use crate::holdings::Holdings;
use crate::request::{Block, Request, StreamId};
use crate::strategy::{Control, Span, Strategy};

/// A strategy that may hold a limited number of bytes.
///
/// It meets a device that is out of memory at the limit, so it does whatever it does on a full device.
/// [`Control::Limit`] changes the limit; memory held beyond a lowered limit stays, but no more is given.
#[derive(Clone, Debug)]
pub struct Limit<S> {
    inner: S,
    limit: Option<u64>,
    held: Holdings,
}

impl<S: Strategy> Limit<S> {
    /// Wraps a strategy that holds no memory yet. `None` is no limit.
    pub fn new(inner: S, limit: Option<u64>) -> Limit<S> {
        Limit { inner, limit, held: Holdings::default() }
    }

    fn parts<'a>(&'a mut self, dev: &'a mut dyn Device) -> (&'a mut S, Limited<'a>) {
        (&mut self.inner, Limited { dev, limit: self.limit.unwrap_or(u64::MAX), held: &mut self.held })
    }
}

impl<S: Strategy> Strategy for Limit<S> {
    fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        let (inner, mut dev) = self.parts(dev);
        inner.allocate(&mut dev, req)
    }

    fn free(&mut self, dev: &mut dyn Device, block: Block) -> Result<(), FreeError> {
        let (inner, mut dev) = self.parts(dev);
        inner.free(&mut dev, block)
    }

    fn record_stream(&mut self, dev: &mut dyn Device, block: &Block, stream: StreamId) -> Result<(), AllocError> {
        let (inner, mut dev) = self.parts(dev);
        inner.record_stream(&mut dev, block, stream)
    }

    fn trim(&mut self, dev: &mut dyn Device, keep: u64) -> Result<u64, AllocError> {
        let (inner, mut dev) = self.parts(dev);
        inner.trim(&mut dev, keep)
    }

    fn control(&mut self, dev: &mut dyn Device, what: Control<'_>) -> Result<(), ControlError> {
        if let Control::Limit(limit) = what {
            self.limit = limit;
            return Ok(());
        }
        let (inner, mut dev) = self.parts(dev);
        inner.control(&mut dev, what)
    }

    fn inspect(&self, visit: &mut dyn FnMut(Span)) {
        self.inner.inspect(visit);
    }

    fn counters(&self, visit: &mut dyn FnMut(&str, i64)) {
        self.inner.counters(visit);
    }
}

/// A device that gives no more than the limit.
struct Limited<'a> {
    dev: &'a mut dyn Device,
    limit: u64,
    held: &'a mut Holdings,
}

impl Limited<'_> {
    fn left(&self) -> u64 {
        self.limit.saturating_sub(self.held.bytes())
    }

    fn check(&self, size: u64) -> Result<(), DeviceError> {
        if size > self.left() { Err(DeviceError::OutOfMemory) } else { Ok(()) }
    }
}

impl Device for Limited<'_> {
    fn info(&self) -> DeviceInfo {
        self.dev.info()
    }

    fn malloc(&mut self, size: u64) -> Result<u64, DeviceError> {
        self.check(size)?;
        let ptr = self.dev.malloc(size)?;
        self.held.malloc(ptr, size);
        Ok(ptr)
    }

    fn free(&mut self, ptr: u64) -> Result<(), DeviceError> {
        self.dev.free(ptr)?;
        self.held.free(ptr);
        Ok(())
    }

    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError> {
        self.dev.reserve(size)
    }

    fn unreserve(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        self.dev.unreserve(va, size)
    }

    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        self.check(size)?;
        let handle = self.dev.create(size)?;
        self.held.create(handle, size);
        Ok(handle)
    }

    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        self.dev.release(handle)?;
        self.held.release(handle);
        Ok(())
    }

    fn map(&mut self, va: u64, handles: &[Handle]) -> Result<(), DeviceError> {
        self.dev.map(va, handles)?;
        self.held.map(va, handles);
        Ok(())
    }

    fn unmap(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        self.dev.unmap(va, size)?;
        self.held.unmap(va, size);
        Ok(())
    }

    /// What the pool holds beyond its live blocks is the driver's, and not counted.
    fn malloc_async(&mut self, size: u64, stream: StreamId) -> Result<u64, DeviceError> {
        self.check(size)?;
        let ptr = self.dev.malloc_async(size, stream)?;
        self.held.malloc(ptr, size);
        Ok(ptr)
    }

    fn free_async(&mut self, ptr: u64, stream: StreamId) -> Result<(), DeviceError> {
        self.dev.free_async(ptr, stream)?;
        self.held.free(ptr);
        Ok(())
    }

    fn trim_async(&mut self, keep: u64) -> Result<(), DeviceError> {
        self.dev.trim_async(keep)
    }

    fn configure_async(&mut self, settings: AsyncSettings) -> Result<(), DeviceError> {
        self.dev.configure_async(settings)
    }

    fn fence(&mut self, stream: StreamId) -> Result<Fence, DeviceError> {
        self.dev.fence(stream)
    }

    fn poll(&mut self, fence: Fence) -> Result<bool, DeviceError> {
        self.dev.poll(fence)
    }

    fn order_after(&mut self, stream: StreamId, fence: Fence) -> Result<(), DeviceError> {
        self.dev.order_after(stream, fence)
    }

    fn sync(&mut self, what: Sync) -> Result<(), DeviceError> {
        self.dev.sync(what)
    }

    /// Free is also what the limit leaves, for strategies that size their pools by it.
    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        let info = self.dev.memory_info()?;
        Ok(MemoryInfo { free: info.free.min(self.left()), ..info })
    }

    fn retired(&mut self, ptr: u64) {
        self.dev.retired(ptr);
    }
}
