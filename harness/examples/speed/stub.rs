//! A device that costs next to nothing: what is measured on it is the strategy's own code, however often it goes to the
//! device. It is never used up, and hands out no address twice.

use allocator_core::{CallKind, Device, DeviceError, DeviceInfo, Fence, Handle, MemoryInfo, StreamId, Sync};

/// See the module.
pub struct Stub {
    info: DeviceInfo,
    address: u64,
    handle: u64,
    fence: u64,
}

impl Stub {
    pub fn new(info: DeviceInfo) -> Stub {
        Stub { info, address: 1 << 30, handle: 0, fence: 0 }
    }
}

impl Device for Stub {
    fn info(&self) -> DeviceInfo {
        self.info
    }

    fn malloc(&mut self, size: u64) -> Result<u64, DeviceError> {
        let size = size.next_multiple_of(self.info.granularity);
        let end = self.address.checked_add(size).ok_or(DeviceError::Invalid(CallKind::Malloc))?;
        Ok(std::mem::replace(&mut self.address, end))
    }

    fn free(&mut self, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError> {
        self.malloc(size)
    }

    fn unreserve(&mut self, _: u64, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn create(&mut self, _: u64) -> Result<Handle, DeviceError> {
        self.handle += 1;
        Ok(Handle(self.handle))
    }

    fn release(&mut self, _: Handle) -> Result<(), DeviceError> {
        Ok(())
    }

    fn map(&mut self, _: u64, _: &[Handle]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn unmap(&mut self, _: u64, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn fence(&mut self, stream: StreamId) -> Result<Fence, DeviceError> {
        self.fence += 1;
        Ok(Fence { stream, seq: self.fence })
    }

    fn poll(&mut self, _: Fence) -> Result<bool, DeviceError> {
        Ok(true)
    }

    fn order_after(&mut self, _: StreamId, _: Fence) -> Result<(), DeviceError> {
        Ok(())
    }

    fn sync(&mut self, _: Sync) -> Result<(), DeviceError> {
        Ok(())
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        Ok(MemoryInfo { free: self.info.total, total: self.info.total })
    }
}
