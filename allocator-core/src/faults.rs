//! A device whose calls fail on command, to see whether strategies survive it.

use crate::device::{AsyncSettings, CallKind, Device, DeviceInfo, Fence, Handle, Machine, MemoryInfo, Sync, Usage};
use crate::error::DeviceError;
use crate::request::StreamId;

/// A call that fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Fault {
    kind: CallKind,
    /// Which one, counted from 1.
    nth: u64,
    error: DeviceError,
}

/// Wraps a device and lets calls fail by plan. A call that fails does not reach the device.
///
/// Calls are counted from 1, each [`Device::map`] and [`Device::unmap`] as one, from the creation of this device on.
#[derive(Clone, Debug)]
pub struct FaultDevice<D> {
    inner: D,
    plan: Vec<Fault>,
    calls: [u64; CallKind::ALL.len()],
    failed: u64,
}

impl<D> FaultDevice<D> {
    /// A device that fails nothing yet.
    pub fn new(inner: D) -> FaultDevice<D> {
        FaultDevice { inner, plan: Vec::new(), calls: [0; CallKind::ALL.len()], failed: 0 }
    }

    /// The `n`-th call of `kind` fails with `error`; 0 is no call.
    pub fn fail_nth(mut self, kind: CallKind, n: u64, error: DeviceError) -> FaultDevice<D> {
        self.plan.push(Fault { kind, nth: n, error });
        self
    }

    /// The device inside, without the faults.
    pub fn into_inner(self) -> D {
        self.inner
    }

    /// How many calls failed by plan.
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// Counts a call, and gives the device to make it on unless it is to fail.
    fn attempt(&mut self, kind: CallKind) -> Result<&mut D, DeviceError> {
        self.calls[kind as usize] += 1;
        let nth = self.calls[kind as usize];
        match self.plan.iter().find(|fault| fault.kind == kind && fault.nth == nth) {
            Some(fault) => {
                self.failed += 1;
                Err(fault.error)
            }
            None => Ok(&mut self.inner),
        }
    }
}

impl<D: Device> Device for FaultDevice<D> {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn malloc(&mut self, size: u64) -> Result<u64, DeviceError> {
        self.attempt(CallKind::Malloc)?.malloc(size)
    }

    fn free(&mut self, ptr: u64) -> Result<(), DeviceError> {
        self.attempt(CallKind::Free)?.free(ptr)
    }

    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError> {
        self.attempt(CallKind::Reserve)?.reserve(size)
    }

    fn unreserve(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        self.attempt(CallKind::Unreserve)?.unreserve(va, size)
    }

    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        self.attempt(CallKind::Create)?.create(size)
    }

    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        self.attempt(CallKind::Release)?.release(handle)
    }

    fn map(&mut self, va: u64, handles: &[Handle]) -> Result<(), DeviceError> {
        self.attempt(CallKind::Map)?.map(va, handles)
    }

    fn unmap(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        self.attempt(CallKind::Unmap)?.unmap(va, size)
    }

    fn malloc_async(&mut self, size: u64, stream: StreamId) -> Result<u64, DeviceError> {
        self.attempt(CallKind::MallocAsync)?.malloc_async(size, stream)
    }

    fn free_async(&mut self, ptr: u64, stream: StreamId) -> Result<(), DeviceError> {
        self.attempt(CallKind::FreeAsync)?.free_async(ptr, stream)
    }

    fn trim_async(&mut self, keep: u64) -> Result<(), DeviceError> {
        self.attempt(CallKind::TrimAsync)?.trim_async(keep)
    }

    fn configure_async(&mut self, settings: AsyncSettings) -> Result<(), DeviceError> {
        self.inner.configure_async(settings)
    }

    fn fence(&mut self, stream: StreamId) -> Result<Fence, DeviceError> {
        self.attempt(CallKind::Fence)?.fence(stream)
    }

    fn poll(&mut self, fence: Fence) -> Result<bool, DeviceError> {
        self.attempt(CallKind::Poll)?.poll(fence)
    }

    fn order_after(&mut self, stream: StreamId, fence: Fence) -> Result<(), DeviceError> {
        self.attempt(CallKind::OrderAfter)?.order_after(stream, fence)
    }

    fn sync(&mut self, what: Sync) -> Result<(), DeviceError> {
        self.attempt(CallKind::Sync)?.sync(what)
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        self.attempt(CallKind::MemoryInfo)?.memory_info()
    }

    fn retired(&mut self, ptr: u64) {
        self.inner.retired(ptr);
    }
}

impl<D: Machine> Machine for FaultDevice<D> {
    fn work(&mut self, stream: StreamId, ns: u64) -> Result<(), DeviceError> {
        self.inner.work(stream, ns)
    }

    fn host_work(&mut self, ns: u64) {
        self.inner.host_work(ns);
    }

    fn complete(&mut self, ticket: u32) {
        self.inner.complete(ticket);
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimDevice;

    const OOM: Result<u64, DeviceError> = Err(DeviceError::OutOfMemory);

    fn device() -> FaultDevice<SimDevice> {
        FaultDevice::new(SimDevice::new(1 << 30))
    }

    #[test]
    fn only_the_nth_call_of_the_kind_fails() {
        let mut dev = device().fail_nth(CallKind::Malloc, 2, DeviceError::OutOfMemory);
        let first = dev.malloc(512).unwrap();
        dev.free(first).unwrap();
        assert_eq!(dev.malloc(512), OOM);
        assert!(dev.malloc(512).is_ok());
        assert_eq!(dev.failed(), 1);
        assert_eq!(dev.usage().calls[CallKind::Malloc as usize], 2, "a failed call does not reach the device");
    }

    /// Every call of the trait is wired to its own kind.
    #[test]
    fn each_kind_can_fail() {
        for kind in CallKind::ALL {
            let failure = DeviceError::Driver { call: kind, code: 7 };
            let mut dev = device().fail_nth(kind, 1, failure);
            let fence = Fence { stream: StreamId::DEFAULT, seq: 0 };
            let outcomes = [
                dev.malloc(512).map(drop),
                dev.free(0),
                dev.reserve(2 << 20).map(drop),
                dev.unreserve(0, 0),
                dev.create(2 << 20).map(drop),
                dev.release(Handle(0)),
                dev.map(0, &[]),
                dev.unmap(0, 0),
                dev.fence(StreamId::DEFAULT).map(drop),
                dev.poll(fence).map(drop),
                dev.order_after(StreamId::DEFAULT, fence),
                dev.sync(Sync::Device),
                dev.memory_info().map(drop),
                dev.malloc_async(512, StreamId::DEFAULT).map(drop),
                dev.free_async(0, StreamId::DEFAULT),
                dev.trim_async(0),
            ];
            assert_eq!(outcomes.len(), CallKind::ALL.len());
            for (other, outcome) in CallKind::ALL.into_iter().zip(outcomes) {
                assert_eq!(outcome == Err(failure), other == kind, "{other}");
            }
        }
    }
}
