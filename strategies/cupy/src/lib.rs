//! CuPy's memory pool: best fit by stream, in segments of exactly the size that was missed.
//!
//! ```text
//! allocate a (3 MiB) ── miss ── malloc(3 MiB) ──▶ [ a        ]
//! free a             ── stays, for its stream ──▶ [          ]
//! allocate b (1 MiB) ── best fit, cut exactly ──▶ [ b |      ]
//! allocate c (3 MiB) ── miss ── malloc(3 MiB) ──▶ [ b |      ]  [ c        ]
//! free b             ── merges ─────────────────▶ [          ]  [ c        ]
//! limit, or no memory: all segments without a block in use go back, those of all streams
//! ```
//!
//! `slab` has the chunks, `index` the order of the free ones, `pool` the rest.

mod index;
mod params;
mod pool;
mod slab;

pub use params::Params;
pub use pool::Cupy;

use allocator_core::{
    AllocError, Block, ConfigError, Configure, Control, ControlError, Device, DeviceInfo, FreeError, FreeFailure,
    PoolId, Request, Span, SpanState, Strategy, StreamId,
};
use slab::State;

/// Sizes are rounded to a multiple of it, as in the source.
const UNIT: u64 = 512;

impl Strategy for Cupy {
    fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        if req.pool != PoolId::DEFAULT {
            return Err(AllocError::UnknownPool);
        }
        if req.size == 0 {
            return Ok(Block::empty());
        }
        self.serve(dev, req.size, req.stream)
    }

    fn free(&mut self, dev: &mut dyn Device, block: Block) -> Result<(), FreeError> {
        let slot = block.slot();
        let Some(chunk) = self.find(&block) else {
            return if block.is_empty() { Ok(()) } else { Err(FreeError { block, reason: FreeFailure::NotLive }) };
        };
        if chunk.state == State::Shared {
            chunk.state = State::Pending;
            match self.uses.free(dev, slot) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    self.slab.chunks[slot as usize].state = State::Shared;
                    return Err(FreeError { block, reason: error.into() });
                }
            }
        }
        self.put(slot);
        Ok(())
    }

    fn record_stream(&mut self, _: &mut dyn Device, block: &Block, stream: StreamId) -> Result<(), AllocError> {
        if block.is_empty() {
            return Ok(());
        }
        let chunk = *self.find(block).ok_or(AllocError::NotLive)?;
        if self.stream(&chunk) != stream {
            self.slab.chunks[block.slot() as usize].state = State::Shared;
            self.uses.record(block.slot(), stream);
        }
        Ok(())
    }

    fn trim(&mut self, dev: &mut dyn Device, keep: u64) -> Result<u64, AllocError> {
        Ok(self.shrink(dev, keep)?)
    }

    /// The limit, as `set_limit` sets it. There 0 lifts it; here `None` does, and 0 bytes are as little as 1 byte.
    fn control(&mut self, _: &mut dyn Device, what: Control<'_>) -> Result<(), ControlError> {
        match what {
            Control::Limit(limit) => self.limit = limit.map_or(u64::MAX, |bytes| bytes.max(1)),
            _ => return Err(ControlError::Unsupported),
        }
        Ok(())
    }

    fn inspect(&self, visit: &mut dyn FnMut(Span)) {
        let chunks = &self.slab.chunks;
        let is_first = |slot: &u32| {
            let chunk = &chunks[*slot as usize];
            chunk.below == 0 && chunk.state != State::Unused
        };
        let mut segments: Vec<u32> = (1..chunks.len() as u32).filter(is_first).collect();
        segments.sort_unstable_by_key(|&first| chunks[first as usize].ptr);
        for first in segments {
            let segment = chunks[first as usize].ptr;
            for chunk in self.slab.segment(first) {
                let state = match chunk.state {
                    State::Live | State::Shared => SpanState::Live,
                    State::Pending => SpanState::Pending,
                    State::Free | State::Unused => SpanState::Cached,
                };
                let (ptr, size, stream) = (chunk.ptr, self.bytes(chunk), self.stream(chunk));
                visit(Span { segment, ptr, size, state, stream, pool: PoolId::DEFAULT });
            }
        }
    }

    /// What `MemoryPool`'s methods of these names tell, and `get_limit`, which is 0 where there is no limit. A block that waits
    /// for other streams counts as used.
    fn counters(&self, visit: &mut dyn FnMut(&str, i64)) {
        let free = || self.slab.chunks.iter().filter(|chunk| chunk.state == State::Free);
        let free_bytes: u64 = free().map(|chunk| self.bytes(chunk)).sum();
        let limit = if self.limit == u64::MAX { 0 } else { self.limit };
        let counters = [
            ("used_bytes", self.reserved - free_bytes),
            ("free_bytes", free_bytes),
            ("total_bytes", self.reserved),
            ("n_free_blocks", free().count() as u64),
            ("limit", limit),
        ];
        for (name, value) in counters {
            visit(name, value.min(i64::MAX as u64) as i64);
        }
    }
}

impl Configure for Cupy {
    const NAME: &'static str = "cupy";
    const ABOUT: &'static str = "CuPy's pool: best fit by stream, segments of exactly the missed size, a limit";
    type Params = Params;

    fn new(params: Params, device: &DeviceInfo) -> Result<Self, ConfigError> {
        let unit_log = UNIT.max(device.alignment).next_power_of_two().ilog2();
        Ok(Cupy::empty(unit_log, params.limit(device)?))
    }
}
