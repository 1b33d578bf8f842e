//! PyTorch's allocator with expandable segments: the caching engine with one option set.
//!
//! In PyTorch this is not another allocator but another way to grow, chosen by `expandable_segments:True`; programs
//! may even switch at run time. So the engine is `strategy-caching`'s, and this crate gives its preset a name, a page
//! and a place in comparisons.

use allocator_core::{
    AllocError, Block, ConfigError, Configure, Control, ControlError, Device, DeviceInfo, FreeError, Request, Span,
    Strategy, StreamId,
};
use serde::{Deserialize, Serialize};
use strategy_caching::{Caching, Params as CachingParams};

/// See the crate.
#[derive(Clone)]
pub struct Expandable(Caching);

/// The caching allocator's options that matter with expandable segments.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Settings as PyTorch writes them (`max_split_size_mb:128`).
    pub conf: String,
    /// MiB of a page of large segments: what one growth step adds at least.
    pub large_segment_size_mb: u64,
    /// MiB from which on free blocks do not serve smaller requests; none is unlimited.
    pub max_split_size_mb: Option<u64>,
    /// Divisions between powers of two to which sizes are rounded: a power of two, or a list `[256:1,512:2,>:4]`.
    pub roundup_power2_divisions: Option<String>,
    /// Share of the device's memory that may be reserved; 1 is no limit.
    pub per_process_memory_fraction: f64,
}

impl Default for Params {
    fn default() -> Params {
        let caching = CachingParams::default();
        Params {
            conf: caching.conf,
            large_segment_size_mb: caching.large_segment_size_mb,
            max_split_size_mb: caching.max_split_size_mb,
            roundup_power2_divisions: caching.roundup_power2_divisions,
            per_process_memory_fraction: caching.per_process_memory_fraction,
        }
    }
}

impl Configure for Expandable {
    const NAME: &'static str = "expandable";
    const ABOUT: &'static str = "PyTorch 2.11's allocator with expandable segments: one growing range per stream";
    type Params = Params;

    fn new(params: Params, device: &DeviceInfo) -> Result<Self, ConfigError> {
        if !device.virtual_memory {
            return Err(ConfigError("expandable segments need a device with virtual memory".to_owned()));
        }
        let caching = CachingParams {
            conf: params.conf,
            large_segment_size_mb: params.large_segment_size_mb,
            max_split_size_mb: params.max_split_size_mb,
            roundup_power2_divisions: params.roundup_power2_divisions,
            per_process_memory_fraction: params.per_process_memory_fraction,
            expandable_segments: true,
            ..CachingParams::default()
        };
        Caching::new(caching, device).map(Expandable)
    }
}

impl Strategy for Expandable {
    #[inline]
    fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        self.0.allocate(dev, req)
    }

    #[inline]
    fn free(&mut self, dev: &mut dyn Device, block: Block) -> Result<(), FreeError> {
        self.0.free(dev, block)
    }

    fn record_stream(&mut self, dev: &mut dyn Device, block: &Block, stream: StreamId) -> Result<(), AllocError> {
        self.0.record_stream(dev, block, stream)
    }

    fn trim(&mut self, dev: &mut dyn Device, keep: u64) -> Result<u64, AllocError> {
        self.0.trim(dev, keep)
    }

    fn control(&mut self, dev: &mut dyn Device, what: Control<'_>) -> Result<(), ControlError> {
        self.0.control(dev, what)
    }

    fn inspect(&self, visit: &mut dyn FnMut(Span)) {
        self.0.inspect(visit);
    }

    fn counters(&self, visit: &mut dyn FnMut(&str, i64)) {
        self.0.counters(visit);
    }
}
