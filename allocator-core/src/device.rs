//! Where memory comes from: the calls a strategy may make, and those that only the harness makes.
//!
//! A strategy gets the device as an argument, never as a field, and relies on nothing else. So the same decisions
//! come out on the simulated device, on a played-back recording and on a real card, and a run on one can be checked
//! on another. `dyn` costs nothing that could be seen: a driver call takes 1 to 2,000 µs on an H200.

use crate::error::DeviceError;
use crate::request::StreamId;
use std::fmt;

/// Constant facts of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// Total bytes, as `cudaDeviceProp::totalGlobalMem` reports them.
    pub total: u64,
    /// Alignment of every address that `malloc` returns, in bytes.
    pub alignment: u64,
    /// Size and alignment of physical memory created for mapping, in bytes (2 MiB on current cards).
    pub granularity: u64,
    /// Whether the virtual-memory calls (`reserve` to `unmap`) work.
    pub virtual_memory: bool,
    /// Whether the stream-ordered calls (`malloc_async` to `configure_async`) work.
    pub stream_ordered: bool,
}

/// A point in a stream's order: everything queued on `stream` up to here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fence {
    /// The stream.
    pub stream: StreamId,
    /// Grows with every fence of the stream.
    pub seq: u64,
}

/// What the host waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sync {
    /// One fence.
    Fence(Fence),
    /// All that is queued on a stream.
    Stream(StreamId),
    /// All that is queued on the device.
    Device,
}

/// A piece of physical memory that can be mapped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Handle(pub u64);

/// Free and total bytes, as `cudaMemGetInfo` reports them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryInfo {
    /// Bytes that the device could still give.
    pub free: u64,
    /// Bytes of the device.
    pub total: u64,
}

/// How the driver's stream-ordered pool treats memory that came back, as `cuMemPoolSetAttribute` takes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AsyncSettings {
    /// Bytes that the pool may keep when the host waits for a stream or the device; more goes back to the device.
    pub release_threshold: u64,
    /// A stream may get memory that was freed on another one that it was made to wait for since.
    pub follow_event_dependencies: bool,
    /// A stream may get memory whose free on another stream happens to be over.
    pub opportunistic: bool,
    /// The driver may make a stream wait for another one's free, rather than take new memory.
    pub internal_dependencies: bool,
}

/// The calls a strategy may make. Object safe; optional calls answer [`DeviceError::Unsupported`].
pub trait Device {
    /// Constant facts.
    fn info(&self) -> DeviceInfo;

    /// `cudaMalloc`: `size` bytes of device memory (`size` > 0).
    fn malloc(&mut self, size: u64) -> Result<u64, DeviceError>;

    /// `cudaFree` of an address that [`Device::malloc`] returned. Waits for the device.
    fn free(&mut self, ptr: u64) -> Result<(), DeviceError>;

    /// `cuMemAddressReserve`: a range of addresses without memory. `size` is a multiple of the granularity.
    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError> {
        let _ = size;
        Err(DeviceError::Unsupported(CallKind::Reserve))
    }

    /// `cuMemAddressFree` of a whole reserved range that has nothing mapped.
    fn unreserve(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        let _ = (va, size);
        Err(DeviceError::Unsupported(CallKind::Unreserve))
    }

    /// `cuMemCreate`: physical memory of `size` bytes, a multiple of the granularity.
    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        let _ = size;
        Err(DeviceError::Unsupported(CallKind::Create))
    }

    /// `cuMemRelease`. The memory goes back when its last mapping is gone.
    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        let _ = handle;
        Err(DeviceError::Unsupported(CallKind::Release))
    }

    /// `cuMemMap` of `handles` one after another from `va` on, and `cuMemSetAccess` over the whole: all or nothing.
    /// One call is one growth of a segment. A handle may be mapped at several addresses.
    fn map(&mut self, va: u64, handles: &[Handle]) -> Result<(), DeviceError> {
        let _ = (va, handles);
        Err(DeviceError::Unsupported(CallKind::Map))
    }

    /// `cuMemUnmap` of a range that consists of whole mappings.
    fn unmap(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        let _ = (va, size);
        Err(DeviceError::Unsupported(CallKind::Unmap))
    }

    /// `cuMemAllocFromPoolAsync`: `size` > 0 bytes of the driver's own pool, for use on `stream` from here on.
    fn malloc_async(&mut self, size: u64, stream: StreamId) -> Result<u64, DeviceError> {
        let _ = (size, stream);
        Err(DeviceError::Unsupported(CallKind::MallocAsync))
    }

    /// `cuMemFreeAsync` of an address that [`Device::malloc_async`] returned: it goes back to the pool when `stream` has
    /// come to this point.
    fn free_async(&mut self, ptr: u64, stream: StreamId) -> Result<(), DeviceError> {
        let _ = (ptr, stream);
        Err(DeviceError::Unsupported(CallKind::FreeAsync))
    }

    /// `cuMemPoolTrimTo`: the pool gives memory that nobody uses back to the device, until it holds at most `keep` bytes.
    fn trim_async(&mut self, keep: u64) -> Result<(), DeviceError> {
        let _ = keep;
        Err(DeviceError::Unsupported(CallKind::TrimAsync))
    }

    /// Changes the pool's settings.
    fn configure_async(&mut self, settings: AsyncSettings) -> Result<(), DeviceError> {
        let _ = settings;
        Err(DeviceError::Unsupported(CallKind::MallocAsync))
    }

    /// Marks a point in a stream (`cudaEventRecord`).
    fn fence(&mut self, stream: StreamId) -> Result<Fence, DeviceError>;

    /// Whether everything before the fence is done (`cudaEventQuery`).
    fn poll(&mut self, fence: Fence) -> Result<bool, DeviceError>;

    /// Lets `stream` wait for `fence` (`cudaStreamWaitEvent`).
    fn order_after(&mut self, stream: StreamId, fence: Fence) -> Result<(), DeviceError>;

    /// Blocks the host.
    fn sync(&mut self, what: Sync) -> Result<(), DeviceError>;

    /// `cudaMemGetInfo`.
    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError>;

    /// The strategy tells that a block whose free had to wait for other streams is reusable from now on. Only
    /// logging devices listen; it is never called for a free that completed at once.
    fn retired(&mut self, ptr: u64) {
        let _ = ptr;
    }
}

/// The kinds of device call, for counting and for error texts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum CallKind {
    /// [`Device::malloc`]
    Malloc,
    /// [`Device::free`]
    Free,
    /// [`Device::reserve`]
    Reserve,
    /// [`Device::unreserve`]
    Unreserve,
    /// [`Device::create`]
    Create,
    /// [`Device::release`]
    Release,
    /// [`Device::map`], once per handle
    Map,
    /// [`Device::unmap`], once per handle
    Unmap,
    /// [`Device::fence`]
    Fence,
    /// [`Device::poll`]
    Poll,
    /// [`Device::order_after`]
    OrderAfter,
    /// [`Device::sync`]
    Sync,
    /// [`Device::memory_info`]
    MemoryInfo,
    /// [`Device::malloc_async`]
    MallocAsync,
    /// [`Device::free_async`]
    FreeAsync,
    /// [`Device::trim_async`]
    TrimAsync,
}

impl CallKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [CallKind; 16] = [
        CallKind::Malloc,
        CallKind::Free,
        CallKind::Reserve,
        CallKind::Unreserve,
        CallKind::Create,
        CallKind::Release,
        CallKind::Map,
        CallKind::Unmap,
        CallKind::Fence,
        CallKind::Poll,
        CallKind::OrderAfter,
        CallKind::Sync,
        CallKind::MemoryInfo,
        CallKind::MallocAsync,
        CallKind::FreeAsync,
        CallKind::TrimAsync,
    ];

    /// The name used in columns and profiles.
    pub const fn name(self) -> &'static str {
        match self {
            CallKind::Malloc => "malloc",
            CallKind::Free => "free",
            CallKind::Reserve => "reserve",
            CallKind::Unreserve => "unreserve",
            CallKind::Create => "create",
            CallKind::Release => "release",
            CallKind::Map => "map",
            CallKind::Unmap => "unmap",
            CallKind::Fence => "fence",
            CallKind::Poll => "poll",
            CallKind::OrderAfter => "order_after",
            CallKind::Sync => "sync",
            CallKind::MemoryInfo => "memory_info",
            CallKind::MallocAsync => "malloc_async",
            CallKind::FreeAsync => "free_async",
            CallKind::TrimAsync => "trim_async",
        }
    }

    /// The driver functions behind it.
    pub const fn driver_call(self) -> &'static str {
        match self {
            CallKind::Malloc => "cuMemAlloc",
            CallKind::Free => "cuMemFree",
            CallKind::Reserve => "cuMemAddressReserve",
            CallKind::Unreserve => "cuMemAddressFree",
            CallKind::Create => "cuMemCreate",
            CallKind::Release => "cuMemRelease",
            CallKind::Map => "cuMemMap or cuMemSetAccess",
            CallKind::Unmap => "cuMemUnmap",
            CallKind::Fence => "cuEventRecord",
            CallKind::Poll => "cuEventQuery",
            CallKind::OrderAfter => "cuStreamWaitEvent",
            CallKind::Sync => "cuCtxSynchronize",
            CallKind::MemoryInfo => "cuMemGetInfo",
            CallKind::MallocAsync => "cuMemAllocFromPoolAsync",
            CallKind::FreeAsync => "cuMemFreeAsync",
            CallKind::TrimAsync => "cuMemPoolTrimTo",
        }
    }

    /// Whether the call takes memory or addresses from the driver or gives them back.
    pub const fn moves_memory(self) -> bool {
        !matches!(self, CallKind::Fence | CallKind::Poll | CallKind::OrderAfter | CallKind::Sync | CallKind::MemoryInfo)
    }
}

impl fmt::Display for CallKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a device has given out and what that cost, counted by the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Bytes that the strategy asked for and has not given back (PyTorch's "reserved").
    pub reserved: u64,
    /// Bytes that the card lost to it: driver pages, rounding included.
    pub device_used: u64,
    /// Successful and failed calls, by [`CallKind`].
    pub calls: [u64; CallKind::ALL.len()],
    /// Nanoseconds spent in those calls, by [`CallKind`]: modelled on the simulated device, measured on a card.
    pub call_ns: [u64; CallKind::ALL.len()],
    /// The device's clock: nanoseconds of host time since its creation.
    pub now_ns: u64,
}

/// What the harness needs of a device beyond what strategies may call: the work that a trace contains, the
/// completion of tickets, and the bookkeeping that figures are made from.
pub trait Machine: Device {
    /// Queues `ns` nanoseconds of work on a stream.
    fn work(&mut self, stream: StreamId, ns: u64) -> Result<(), DeviceError>;

    /// The host does something else for `ns` nanoseconds.
    fn host_work(&mut self, ns: u64);

    /// Everything fenced so far on [`StreamId::ticket`]`(ticket)` is done.
    fn complete(&mut self, ticket: u32);

    /// The counters.
    fn usage(&self) -> Usage;
}

/// A device whose kind is known at run time only.
impl<M: Machine + ?Sized> Device for Box<M> {
    fn info(&self) -> DeviceInfo {
        (**self).info()
    }

    fn malloc(&mut self, size: u64) -> Result<u64, DeviceError> {
        (**self).malloc(size)
    }

    fn free(&mut self, ptr: u64) -> Result<(), DeviceError> {
        (**self).free(ptr)
    }

    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError> {
        (**self).reserve(size)
    }

    fn unreserve(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        (**self).unreserve(va, size)
    }

    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        (**self).create(size)
    }

    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        (**self).release(handle)
    }

    fn map(&mut self, va: u64, handles: &[Handle]) -> Result<(), DeviceError> {
        (**self).map(va, handles)
    }

    fn unmap(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        (**self).unmap(va, size)
    }

    fn malloc_async(&mut self, size: u64, stream: StreamId) -> Result<u64, DeviceError> {
        (**self).malloc_async(size, stream)
    }

    fn free_async(&mut self, ptr: u64, stream: StreamId) -> Result<(), DeviceError> {
        (**self).free_async(ptr, stream)
    }

    fn trim_async(&mut self, keep: u64) -> Result<(), DeviceError> {
        (**self).trim_async(keep)
    }

    fn configure_async(&mut self, settings: AsyncSettings) -> Result<(), DeviceError> {
        (**self).configure_async(settings)
    }

    fn fence(&mut self, stream: StreamId) -> Result<Fence, DeviceError> {
        (**self).fence(stream)
    }

    fn poll(&mut self, fence: Fence) -> Result<bool, DeviceError> {
        (**self).poll(fence)
    }

    fn order_after(&mut self, stream: StreamId, fence: Fence) -> Result<(), DeviceError> {
        (**self).order_after(stream, fence)
    }

    fn sync(&mut self, what: Sync) -> Result<(), DeviceError> {
        (**self).sync(what)
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        (**self).memory_info()
    }

    fn retired(&mut self, ptr: u64) {
        (**self).retired(ptr)
    }
}

impl<M: Machine + ?Sized> Machine for Box<M> {
    fn work(&mut self, stream: StreamId, ns: u64) -> Result<(), DeviceError> {
        (**self).work(stream, ns)
    }

    fn host_work(&mut self, ns: u64) {
        (**self).host_work(ns)
    }

    fn complete(&mut self, ticket: u32) {
        (**self).complete(ticket)
    }

    fn usage(&self) -> Usage {
        (**self).usage()
    }
}
