//! The driver calls in use, each with its arguments as plain values and its result as a `Result`.
//!
//! All `unsafe` of this crate is in this file. The pointers that are passed to the driver are to locals that live until
//! the call returns; handles and device addresses are integers to us, and a wrong one is an error code of the driver,
//! not undefined behaviour of the host. A kernel can write through a wrong device address; what launches kernels says
//! why its addresses are right.
#![allow(unsafe_code, reason = "the driver is a C library")]

use cudarc::driver::sys::{self, CUresult};
use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::ptr;

/// A result code other than success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Code(pub(super) CUresult);

/// What a driver call gives.
pub(super) type Answer<T> = Result<T, Code>;

/// Opaque handles of the driver, as numbers: plain data that can be copied and compared.
macro_rules! handle {
    ($(#[$doc:meta])* $name:ident, $raw:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(super) struct $name(usize);

        impl $name {
            fn raw(self) -> $raw {
                ptr::with_exposed_provenance_mut(self.0)
            }

            fn of(raw: $raw) -> $name {
                $name(raw.expose_provenance())
            }
        }
    };
}

handle!(
    /// A context.
    Context,
    sys::CUcontext
);
handle!(
    /// A stream.
    Stream,
    sys::CUstream
);
handle!(
    /// An event.
    Event,
    sys::CUevent
);
handle!(
    /// A stream-ordered pool.
    Pool,
    sys::CUmemoryPool
);
handle!(
    /// A loaded module.
    Module,
    sys::CUmodule
);
handle!(
    /// A kernel of a loaded module.
    Kernel,
    sys::CUfunction
);

impl Stream {
    /// The legacy default stream.
    pub(super) const DEFAULT: Stream = Stream(0);
}

impl Kernel {
    /// None yet.
    pub(super) const NONE: Kernel = Kernel(0);
}

/// A device of the driver.
pub(super) type Device = sys::CUdevice;

/// Physical memory, by the driver's number.
pub(super) type Physical = sys::CUmemGenericAllocationHandle;

/// What can be asked of a device.
pub(super) use sys::CUdevice_attribute as DeviceAttribute;
/// What can be asked of a pool.
pub(super) use sys::CUmemPool_attribute as PoolAttribute;

impl Code {
    pub(super) const OUT_OF_MEMORY: Code = Code(CUresult::CUDA_ERROR_OUT_OF_MEMORY);

    /// The driver's number for it.
    pub(super) fn number(self) -> i32 {
        self.0 as i32
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)?;
        let mut text: *const c_char = ptr::null();
        // SAFETY: the driver sets `text` to a string of its own that lives as long as the library, or to null.
        let text = unsafe {
            let known = sys::cuGetErrorString(self.0, &mut text) == CUresult::CUDA_SUCCESS;
            (known && !text.is_null()).then(|| CStr::from_ptr(text))
        };
        match text {
            Some(text) => write!(f, " ({})", text.to_string_lossy()),
            None => Ok(()),
        }
    }
}

fn checked(result: CUresult) -> Answer<()> {
    if result == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(Code(result)) }
}

/// Makes a call that writes one value.
macro_rules! get {
    ($initial:expr, |$out:ident| $call:expr) => {{
        let mut $out = $initial;
        // SAFETY: see the module: the arguments are plain values and pointers to locals.
        checked(unsafe { $call })?;
        Ok($out)
    }};
}

/// Makes a call that writes nothing.
macro_rules! call {
    ($call:expr) => {
        // SAFETY: see the module: the arguments are plain values and pointers to locals.
        checked(unsafe { $call })
    };
}

/// Whether there is a driver library to call.
pub(super) fn is_present() -> bool {
    // SAFETY: opens the library and closes it again. Its initialisers are those of the vendor's driver.
    unsafe { sys::is_culib_present() }
}

pub(super) fn init() -> Answer<()> {
    call!(sys::cuInit(0))
}

pub(super) fn driver_version() -> Answer<i32> {
    get!(0, |version| sys::cuDriverGetVersion(&mut version))
}

pub(super) fn device_count() -> Answer<i32> {
    get!(0, |count| sys::cuDeviceGetCount(&mut count))
}

pub(super) fn device(ordinal: i32) -> Answer<Device> {
    get!(0, |device| sys::cuDeviceGet(&mut device, ordinal))
}

pub(super) fn device_name(device: Device) -> Answer<String> {
    let mut name = [0u8; 256];
    call!(sys::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, device))?;
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
    Ok(name.to_string_lossy().into_owned())
}

pub(super) fn device_attribute(device: Device, attribute: DeviceAttribute) -> Answer<i32> {
    get!(0, |value| sys::cuDeviceGetAttribute(&mut value, attribute, device))
}

pub(super) fn device_memory(device: Device) -> Answer<usize> {
    get!(0, |bytes| sys::cuDeviceTotalMem_v2(&mut bytes, device))
}

pub(super) fn retain_primary_context(device: Device) -> Answer<Context> {
    get!(ptr::null_mut(), |context| sys::cuDevicePrimaryCtxRetain(&mut context, device)).map(Context::of)
}

pub(super) fn release_primary_context(device: Device) -> Answer<()> {
    call!(sys::cuDevicePrimaryCtxRelease_v2(device))
}

pub(super) fn set_context(context: Context) -> Answer<()> {
    call!(sys::cuCtxSetCurrent(context.raw()))
}

pub(super) fn synchronize() -> Answer<()> {
    call!(sys::cuCtxSynchronize())
}

/// Free and total bytes.
pub(super) fn memory_info() -> Answer<(usize, usize)> {
    get!((0, 0), |bytes| sys::cuMemGetInfo_v2(&mut bytes.0, &mut bytes.1))
}

pub(super) fn malloc(size: usize) -> Answer<u64> {
    get!(0, |at| sys::cuMemAlloc_v2(&mut at, size))
}

pub(super) fn free(at: u64) -> Answer<()> {
    call!(sys::cuMemFree_v2(at))
}

pub(super) fn reserve(size: usize) -> Answer<u64> {
    get!(0, |va| sys::cuMemAddressReserve(&mut va, size, 0, 0, 0))
}

pub(super) fn unreserve(va: u64, size: usize) -> Answer<()> {
    call!(sys::cuMemAddressFree(va, size))
}

fn location(device: Device) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

fn properties(device: Device) -> sys::CUmemAllocationProp {
    // SAFETY: a C struct of integers and pointers, of which the driver's manual asks that unused parts are zero.
    let zero: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: location(device),
        ..zero
    }
}

/// The smallest piece of physical memory.
pub(super) fn granularity(device: Device) -> Answer<usize> {
    let properties = properties(device);
    let smallest = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    get!(0, |bytes| sys::cuMemGetAllocationGranularity(&mut bytes, &properties, smallest))
}

pub(super) fn create(device: Device, size: usize) -> Answer<Physical> {
    let properties = properties(device);
    get!(0, |handle| sys::cuMemCreate(&mut handle, size, &properties, 0))
}

pub(super) fn release(handle: Physical) -> Answer<()> {
    call!(sys::cuMemRelease(handle))
}

pub(super) fn map(va: u64, size: usize, handle: Physical) -> Answer<()> {
    call!(sys::cuMemMap(va, size, 0, handle, 0))
}

pub(super) fn set_access(va: u64, size: usize, device: Device) -> Answer<()> {
    let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let access = sys::CUmemAccessDesc { location: location(device), flags };
    call!(sys::cuMemSetAccess(va, size, &access, 1))
}

pub(super) fn unmap(va: u64, size: usize) -> Answer<()> {
    call!(sys::cuMemUnmap(va, size))
}

/// A stream that does not wait for the default stream.
pub(super) fn create_stream() -> Answer<Stream> {
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    get!(ptr::null_mut(), |stream| sys::cuStreamCreate(&mut stream, flags)).map(Stream::of)
}

pub(super) fn destroy_stream(stream: Stream) -> Answer<()> {
    call!(sys::cuStreamDestroy_v2(stream.raw()))
}

pub(super) fn synchronize_stream(stream: Stream) -> Answer<()> {
    call!(sys::cuStreamSynchronize(stream.raw()))
}

pub(super) fn wait_event(stream: Stream, event: Event) -> Answer<()> {
    call!(sys::cuStreamWaitEvent(stream.raw(), event.raw(), 0))
}

pub(super) fn create_event() -> Answer<Event> {
    let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
    get!(ptr::null_mut(), |event| sys::cuEventCreate(&mut event, flags)).map(Event::of)
}

pub(super) fn destroy_event(event: Event) -> Answer<()> {
    call!(sys::cuEventDestroy_v2(event.raw()))
}

pub(super) fn record_event(event: Event, stream: Stream) -> Answer<()> {
    call!(sys::cuEventRecord(event.raw(), stream.raw()))
}

/// Whether the event has happened.
pub(super) fn query_event(event: Event) -> Answer<bool> {
    match call!(sys::cuEventQuery(event.raw())) {
        Ok(()) => Ok(true),
        Err(Code(CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
        Err(code) => Err(code),
    }
}

pub(super) fn synchronize_event(event: Event) -> Answer<()> {
    call!(sys::cuEventSynchronize(event.raw()))
}

pub(super) fn create_pool(device: Device) -> Answer<Pool> {
    // The driver reads fields that this level of the interface calls reserved: zero means their defaults.
    // SAFETY: a C struct of integers and pointers.
    let zero: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
    let properties = sys::CUmemPoolProps {
        allocType: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: location(device),
        ..zero
    };
    get!(ptr::null_mut(), |pool| sys::cuMemPoolCreate(&mut pool, &properties)).map(Pool::of)
}

pub(super) fn destroy_pool(pool: Pool) -> Answer<()> {
    call!(sys::cuMemPoolDestroy(pool.raw()))
}

pub(super) fn trim_pool(pool: Pool, keep: usize) -> Answer<()> {
    call!(sys::cuMemPoolTrimTo(pool.raw(), keep))
}

/// An attribute of 64 bits.
pub(super) fn pool_bytes(pool: Pool, attribute: PoolAttribute) -> Answer<u64> {
    get!(0u64, |value| sys::cuMemPoolGetAttribute(pool.raw(), attribute, (&raw mut value).cast::<c_void>()))
}

/// Sets an attribute of 64 bits.
pub(super) fn set_pool_bytes(pool: Pool, attribute: PoolAttribute, mut value: u64) -> Answer<()> {
    call!(sys::cuMemPoolSetAttribute(pool.raw(), attribute, (&raw mut value).cast::<c_void>()))
}

/// Sets an attribute that is an `int`.
pub(super) fn set_pool_flag(pool: Pool, attribute: PoolAttribute, value: bool) -> Answer<()> {
    let mut value = i32::from(value);
    call!(sys::cuMemPoolSetAttribute(pool.raw(), attribute, (&raw mut value).cast::<c_void>()))
}

pub(super) fn pool_malloc(pool: Pool, size: usize, stream: Stream) -> Answer<u64> {
    get!(0, |at| sys::cuMemAllocFromPoolAsync(&mut at, size, pool.raw(), stream.raw()))
}

pub(super) fn pool_free(at: u64, stream: Stream) -> Answer<()> {
    call!(sys::cuMemFreeAsync(at, stream.raw()))
}

/// Compiles a module for the card at hand.
pub(super) fn load_module(ptx: &CStr) -> Answer<Module> {
    get!(ptr::null_mut(), |module| sys::cuModuleLoadData(&mut module, ptx.as_ptr().cast())).map(Module::of)
}

pub(super) fn unload_module(module: Module) -> Answer<()> {
    call!(sys::cuModuleUnload(module.raw()))
}

pub(super) fn kernel(module: Module, name: &CStr) -> Answer<Kernel> {
    get!(ptr::null_mut(), |kernel| sys::cuModuleGetFunction(&mut kernel, module.raw(), name.as_ptr())).map(Kernel::of)
}

/// Launches a kernel all of whose parameters are 64 bits wide, as those of `kernels.ptx` are.
pub(super) fn launch(kernel: Kernel, grid: u32, block: u32, stream: Stream, parameters: &mut [u64]) -> Answer<()> {
    let mut pointers: Vec<*mut c_void> = parameters.iter_mut().map(|value| ptr::from_mut(value).cast()).collect();
    call!(sys::cuLaunchKernel(
        kernel.raw(),
        grid,
        1,
        1,
        block,
        1,
        1,
        0,
        stream.raw(),
        pointers.as_mut_ptr(),
        ptr::null_mut()
    ))
}

pub(super) fn fill(at: u64, byte: u8, size: usize, stream: Stream) -> Answer<()> {
    call!(sys::cuMemsetD8Async(at, byte, size, stream.raw()))
}

/// Copies device memory to the host, after all work on the default stream.
pub(super) fn read(at: u64, words: &mut [u64]) -> Answer<()> {
    let (to, size) = (words.as_mut_ptr().cast(), size_of_val(words));
    call!(sys::cuMemcpyDtoH_v2(to, at, size))
}
