//! RMM's pool: best fit with coalescing over large regions, with a free list for each stream.
//!
//! ```text
//! allocate a (3 MiB, stream 1) ── miss ── malloc(3 MiB) ─▶ [ a           ]
//! allocate b (1 MiB, stream 1) ── miss ── malloc(3 MiB) ─▶ [ a           ]  [ b | free of 1 ]
//! free a     ── to the list of stream 1 ─────────────────▶ [ free of 1   ]  [ b | free of 1 ]
//! allocate c (2 MiB, stream 2) ── from stream 1's list ──▶ [ free of 1   ]  [ b | c         ]   2 waits for 1
//! allocate d (9 MiB, stream 2) ── 1's list goes to 2 ────▶ [ free of 2   ]  [ b | c         ]   [ d …   9 MiB ]
//! ```
//!
//! `engine` has the steps of a request, `heap` the regions and pieces, `list` and `tree` the free lists.

mod engine;
mod heap;
mod list;
mod params;
mod record;
mod tree;

pub use engine::Pool;
pub use params::Params;

use allocator_core::{
    AllocError, Block, ConfigError, Configure, Device, DeviceInfo, FreeError, FreeFailure, PoolId, Request, Span,
    SpanState, Strategy, StreamId,
};
use record::State;

impl Strategy for Pool {
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

    fn inspect(&self, visit: &mut dyn FnMut(Span)) {
        self.heap.visit(&mut |region, piece| {
            let state = match piece.state {
                State::Live | State::Shared => SpanState::Live,
                State::Pending => SpanState::Pending,
                State::Free | State::Vacant => SpanState::Cached,
            };
            let (segment, ptr, size, stream) = (region.ptr, piece.ptr, piece.size, StreamId(piece.stream));
            visit(Span { segment, ptr, size, state, stream, pool: PoolId::DEFAULT });
        });
    }

    /// RMM's `pool_size`.
    fn counters(&self, visit: &mut dyn FnMut(&str, i64)) {
        visit("pool_size", self.reserved().min(i64::MAX as u64) as i64);
    }
}

impl Configure for Pool {
    const NAME: &'static str = "pool";
    const ABOUT: &'static str =
        "RMM's pool: best fit over large blocks, a free list for each stream, growth by doubling";
    type Params = Params;

    fn new(params: Params, device: &DeviceInfo) -> Result<Self, ConfigError> {
        params.check(device)?;
        Ok(Pool::with(&params, device.alignment))
    }
}
