//! TensorFlow's best fit with coalescing (BFC), which JAX uses too.
//!
//! Memory comes from the device in large regions, each twice as large as the one before, or all in one. A region is
//! tiled by chunks. A request gets the smallest free chunk that is large enough; if that is at least twice as large as
//! the request, or too large by 128 MiB, it is split. A freed chunk merges with free neighbours at once.
//!
//! ```text
//! allocate a (3 MiB) ── miss ── malloc(4 MiB) ─▶ [ a              |     ]
//! allocate b (1 MiB) ── best fit ──────────────▶ [ a              |  b  ]
//! free a             ── merges, stays ─────────▶ [                |  b  ]
//! allocate c (1 MiB) ── best fit, split ───────▶ [ c  |           |  b  ]
//! allocate d (6 MiB) ── miss ── malloc(8 MiB) ─▶ [ c  |           |  b  ]  [ d                       ]
//! ```

mod bins;
mod chunks;
mod engine;
mod params;

pub use engine::Bfc;
pub use params::Params;

use allocator_core::{
    AllocError, Block, ConfigError, Configure, Device, DeviceInfo, FreeError, FreeFailure, PoolId, Request, Span,
    SpanState, Strategy, StreamId,
};
use chunks::State;

impl Strategy for Bfc {
    fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        if req.pool != PoolId::DEFAULT {
            return Err(AllocError::UnknownPool);
        }
        if req.size == 0 {
            return Ok(Block::empty());
        }
        self.serve(dev, req)
    }

    fn free(&mut self, dev: &mut dyn Device, block: Block) -> Result<(), FreeError> {
        if block.is_empty() {
            return Ok(());
        }
        if self.find(&block).is_none() {
            return Err(FreeError { block, reason: FreeFailure::NotLive });
        }
        match self.take_back(dev, block.slot()) {
            Ok(()) => Ok(()),
            Err(error) => Err(FreeError { block, reason: error.into() }),
        }
    }

    fn record_stream(&mut self, _: &mut dyn Device, block: &Block, stream: StreamId) -> Result<(), AllocError> {
        if block.is_empty() {
            return Ok(());
        }
        if self.find(block).is_none() {
            return Err(AllocError::NotLive);
        }
        self.share(block.slot(), stream);
        Ok(())
    }

    fn trim(&mut self, dev: &mut dyn Device, keep: u64) -> Result<u64, AllocError> {
        Ok(self.shrink(dev, keep)?)
    }

    /// Common memory, which no stream's work uses, is shown on the default stream.
    fn inspect(&self, visit: &mut dyn FnMut(Span)) {
        self.chunks.visit(&mut |region, chunk| {
            let state = match chunk.state {
                State::Live => SpanState::Live,
                State::Pending => SpanState::Pending,
                State::Free | State::Vacant => SpanState::Cached,
            };
            let stream = engine::stream_of(chunk.lane);
            let (segment, ptr, size) = (region.ptr, chunk.ptr, chunk.size);
            visit(Span { segment, ptr, size, state, stream, pool: PoolId::DEFAULT });
        });
    }

    /// Those of TensorFlow's `AllocatorStats` that can be had here.
    fn counters(&self, visit: &mut dyn FnMut(&str, i64)) {
        let counters = [
            ("num_allocs", self.allocations),
            ("bytes_in_use", self.in_use),
            ("peak_bytes_in_use", self.peak_in_use),
            ("bytes_limit", self.rules.limit),
            ("pool_bytes", self.reserved),
            ("largest_free_block_bytes", self.chunks.largest_free()),
        ];
        for (name, value) in counters {
            visit(name, value.min(i64::MAX as u64) as i64);
        }
    }
}

impl Configure for Bfc {
    const NAME: &'static str = "bfc";
    const ABOUT: &'static str =
        "TensorFlow's best fit with coalescing: 21 bins, regions that double, free neighbours merged";
    type Params = Params;

    fn new(params: Params, device: &DeviceInfo) -> Result<Self, ConfigError> {
        Ok(Bfc::with_rules(params.rules(device)?))
    }
}
