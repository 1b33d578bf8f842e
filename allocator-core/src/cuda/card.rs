//! Finding a card and holding on to it.

use super::driver::{self, Code, DeviceAttribute, Kernel, Module, Stream};
use std::sync::Arc;

/// Why there is no card.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoCard {
    /// No driver library.
    #[error("there is no CUDA driver here (libcuda.so.1 cannot be loaded)")]
    NoDriver,
    /// The driver is older than what this program calls.
    #[error("the CUDA driver supports CUDA {}.{}, and this program needs 12.0 or later (driver 525)", .0 / 1000, .0 % 1000 / 10)]
    OldDriver(i32),
    /// The toolkit's library for linking was found instead of a driver.
    #[error(
        "the CUDA library found is the toolkit's stub, not a driver; take its 'stubs' folder out of LD_LIBRARY_PATH"
    )]
    Stub,
    /// No such number.
    #[error("there is no CUDA device {asked}; the driver knows {known}, counted from 0")]
    NoDevice {
        /// The number asked for.
        asked: u32,
        /// How many there are.
        known: i32,
    },
    /// Another answer of the driver.
    #[error("{call}: {text}")]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// What it answered.
        text: String,
    },
}

fn refused(call: &'static str) -> impl Fn(Code) -> NoCard {
    move |code| match code.0 {
        cudarc::driver::sys::CUresult::CUDA_ERROR_STUB_LIBRARY => NoCard::Stub,
        _ => NoCard::Driver { call, text: code.to_string() },
    }
}

/// The driver's name and text of a code that it returned before.
pub(super) fn describe(code: i32) -> Option<String> {
    let known = KNOWN.iter().find(|known| known.number() == code)?;
    driver::is_present().then(|| known.to_string())
}

/// Codes that calls of [`super::CudaDevice`] may end with, for texts.
const KNOWN: [Code; 12] = {
    use cudarc::driver::sys::CUresult::*;
    [
        Code(CUDA_ERROR_INVALID_VALUE),
        Code(CUDA_ERROR_OUT_OF_MEMORY),
        Code(CUDA_ERROR_NOT_INITIALIZED),
        Code(CUDA_ERROR_DEINITIALIZED),
        Code(CUDA_ERROR_INVALID_CONTEXT),
        Code(CUDA_ERROR_ECC_UNCORRECTABLE),
        Code(CUDA_ERROR_INVALID_HANDLE),
        Code(CUDA_ERROR_ILLEGAL_ADDRESS),
        Code(CUDA_ERROR_LAUNCH_FAILED),
        Code(CUDA_ERROR_NOT_PERMITTED),
        Code(CUDA_ERROR_NOT_SUPPORTED),
        Code(CUDA_ERROR_UNKNOWN),
    ]
};

/// A card with its primary context, which is kept as long as this exists.
#[derive(Debug)]
pub struct Card {
    pub(super) device: driver::Device,
    pub(super) context: driver::Context,
    module: Option<Module>,
    pub(super) fill: Kernel,
    pub(super) check: Kernel,
    pub(super) spin: Kernel,
    /// What the driver calls the card.
    pub name: String,
    /// The CUDA version that the driver supports, as 1000 × major + 10 × minor.
    pub driver_version: i32,
    /// Total bytes.
    pub total: u64,
    pub(super) granularity: u64,
    pub(super) virtual_memory: bool,
    /// Whether it has stream-ordered pools.
    pub stream_ordered: bool,
}

impl Card {
    /// Opens the card of that number.
    pub fn open(ordinal: u32) -> Result<Arc<Card>, NoCard> {
        if !driver::is_present() {
            return Err(NoCard::NoDriver);
        }
        driver::init().map_err(refused("cuInit"))?;
        let driver_version = driver::driver_version().map_err(refused("cuDriverGetVersion"))?;
        if driver_version < 12_000 {
            return Err(NoCard::OldDriver(driver_version));
        }
        let known = driver::device_count().map_err(refused("cuDeviceGetCount"))?;
        let number = i32::try_from(ordinal).ok().filter(|&number| number < known);
        let number = number.ok_or(NoCard::NoDevice { asked: ordinal, known })?;
        let device = driver::device(number).map_err(refused("cuDeviceGet"))?;
        let context = driver::retain_primary_context(device).map_err(refused("cuDevicePrimaryCtxRetain"))?;
        // From here on the context is given back when `card` goes.
        let unloaded = Kernel::NONE;
        let mut card = Card {
            device,
            context,
            module: None,
            fill: unloaded,
            check: unloaded,
            spin: unloaded,
            name: String::new(),
            driver_version,
            total: 0,
            granularity: 0,
            virtual_memory: false,
            stream_ordered: false,
        };
        card.look().map_err(|(call, code)| refused(call)(code))?;
        Ok(Arc::new(card))
    }

    fn look(&mut self) -> Result<(), (&'static str, Code)> {
        let device = self.device;
        let has = |attribute| {
            driver::device_attribute(device, attribute)
                .map(|value| value != 0)
                .map_err(|code| ("cuDeviceGetAttribute", code))
        };
        driver::set_context(self.context).map_err(|code| ("cuCtxSetCurrent", code))?;
        self.name = driver::device_name(device).map_err(|code| ("cuDeviceGetName", code))?;
        self.total = driver::device_memory(device).map_err(|code| ("cuDeviceTotalMem", code))? as u64;
        self.virtual_memory = has(DeviceAttribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?;
        self.stream_ordered = has(DeviceAttribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)?;
        let granularity = driver::granularity(device).map_err(|code| ("cuMemGetAllocationGranularity", code))?;
        self.granularity = granularity as u64;
        let module = driver::load_module(KERNELS).map_err(|code| ("cuModuleLoadData", code))?;
        self.module = Some(module);
        let kernel = |name| driver::kernel(module, name).map_err(|code| ("cuModuleGetFunction", code));
        self.fill = kernel(c"fill")?;
        self.check = kernel(c"check")?;
        self.spin = kernel(c"spin")?;
        self.warm_up().map_err(|code| ("cuLaunchKernel", code))
    }

    /// The driver takes memory for kernels when they first run; from here on what is free changes for other reasons only.
    fn warm_up(&self) -> Result<(), Code> {
        let stream = driver::create_stream()?;
        for (kernel, parameters) in [(self.fill, 3), (self.check, 4), (self.spin, 1)] {
            // Of zero bytes and for zero time: nothing is touched.
            for stream in [Stream::DEFAULT, stream] {
                driver::launch(kernel, 1, 1, stream, &mut [0; 4][..parameters])?;
            }
        }
        let scratch = driver::malloc(512)?;
        driver::fill(scratch, 0, 512, Stream::DEFAULT)?;
        driver::read(scratch, &mut [0; 64])?;
        driver::free(scratch)?;
        driver::synchronize()?;
        driver::destroy_stream(stream)
    }

    /// Free and total bytes, as `cuMemGetInfo` reports them: what other programs hold is not free.
    pub fn memory(&self) -> Result<(u64, u64), NoCard> {
        driver::set_context(self.context).map_err(refused("cuCtxSetCurrent"))?;
        let (free, total) = driver::memory_info().map_err(refused("cuMemGetInfo"))?;
        Ok((free as u64, total as u64))
    }
}

/// For the driver, whose compiler wants a string that ends in a zero byte.
const KERNELS: &std::ffi::CStr = {
    match std::ffi::CStr::from_bytes_with_nul(concat!(include_str!("kernels.ptx"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the kernels hold a zero byte"),
    }
};

impl Drop for Card {
    fn drop(&mut self) {
        // A failure here means a broken context, which goes as a whole.
        if let Some(module) = self.module {
            let _ = driver::set_context(self.context).and_then(|()| driver::unload_module(module));
        }
        let _ = driver::release_primary_context(self.device);
    }
}
