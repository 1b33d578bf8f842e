//! A model of the driver's stream-ordered pool (`cudaMallocAsync`), made of virtual memory calls.
//!
//! The driver does not publish how it places blocks; what it does with streams, how it grows and when it gives memory back
//! is documented or was measured. The pool is one range of addresses. Each growth is a piece of memory, and pieces that are
//! free as a whole move to other addresses, so that a large request needs enough of them, and not a row of them.
//!
//! ```text
//! allocate a, b, c   [ a    ][ b ][ c    ]
//! free a, c          [      ][ b ][      ]
//! allocate d         .       [ b ].       [ d          ]     the memory of a and c, at new addresses: no growth
//! ```

mod growth;
mod index;
mod lanes;
mod params;
mod parts;
mod pieces;
mod pool;

pub use params::Params;
pub use pool::AsyncPool;

use allocator_core::{
    AllocError, Block, ConfigError, Configure, Device, DeviceError, DeviceInfo, FreeError, FreeFailure, PoolId,
    Request, Span, SpanState, Strategy, StreamId,
};
use parts::State;

impl Strategy for AsyncPool {
    fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        if req.pool != PoolId::DEFAULT {
            return Err(AllocError::UnknownPool);
        }
        if req.size == 0 {
            return Ok(Block::empty());
        }
        let size = req.size.checked_next_multiple_of(self.rules.unit).ok_or(AllocError::TooLarge)?;
        match self.serve(dev, req, size) {
            Ok(Some(block)) => Ok(block),
            Ok(None) | Err(DeviceError::OutOfMemory) => Err(AllocError::OutOfMemory),
            Err(other) => Err(other.into()),
        }
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

    /// Memory that no work uses is shown on the default stream.
    fn inspect(&self, visit: &mut dyn FnMut(Span)) {
        let segment = self.base;
        self.parts.visit(&mut |part| {
            let state = match part.state {
                State::Live => SpanState::Live,
                State::Waiting => SpanState::Pending,
                State::Free => SpanState::Cached,
                State::Hole | State::Vacant => SpanState::Unmapped,
            };
            let (ptr, size, stream) = (part.ptr, part.size, lanes::stream_of(part.lane));
            visit(Span { segment, ptr, size, state, stream, pool: PoolId::DEFAULT });
        });
    }

    /// The first four are the driver's `cudaMemPoolAttr`s.
    fn counters(&self, visit: &mut dyn FnMut(&str, i64)) {
        let counters = [
            ("reserved_mem_current", self.pieces.reserved),
            ("reserved_mem_high", self.counts.reserved_high),
            ("used_mem_current", self.counts.used),
            ("used_mem_high", self.counts.used_high),
            ("inserted_waits", self.counts.inserted_waits),
            ("moved_bytes", self.counts.moved),
            ("releases", self.counts.releases),
        ];
        for (name, value) in counters {
            visit(name, value.min(i64::MAX as u64) as i64);
        }
    }
}

impl Configure for AsyncPool {
    const NAME: &'static str = "async-pool";
    const ABOUT: &'static str =
        "the driver's stream-ordered pool as a model: release threshold, reuse rules, growth by remapping";
    type Params = Params;

    fn new(params: Params, device: &DeviceInfo) -> Result<Self, ConfigError> {
        Ok(AsyncPool::with_rules(params.rules(device)?))
    }
}
