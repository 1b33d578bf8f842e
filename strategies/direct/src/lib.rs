//! A driver call per request: the baseline for every other strategy, and the smallest one to copy.
//!
//! Nothing is kept: `allocate` is `cudaMalloc` and `free` is `cudaFree`, so each live block is a segment of its own
//! and no byte is reserved that is not in use.
//!
//! ```text
//! allocate(a) ── malloc ──▶ ┌─ a ─┐
//! allocate(b) ── malloc ──▶ ┌─ b ──────┐      a, b: separate pieces of device memory
//! free(a)     ── free ────▶ (the host waits for the device, then the card has it back)
//! ```

use allocator_core::{
    AllocError, Block, ConfigError, Configure, Device, DeviceError, DeviceInfo, FreeError, FreeFailure, PoolId,
    Request, Span, SpanState, Strategy, StreamId,
};
use serde::{Deserialize, Serialize};

/// The strategy. A block's slot is its index in `blocks`; the slots of freed blocks are used again, last one first.
#[derive(Clone, Debug, Default)]
pub struct Direct {
    blocks: Vec<Entry>,
    vacant: Vec<u32>,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    live: Option<Live>,
    generation: u32,
}

#[derive(Clone, Copy, Debug)]
struct Live {
    ptr: u64,
    size: u64,
    stream: StreamId,
}

/// There is nothing to choose.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {}

impl Direct {
    /// The block's memory, or `None` if the block is not ours or not live any more.
    fn find(&self, block: &Block) -> Option<Live> {
        let entry = self.blocks.get(block.slot() as usize)?;
        entry.live.filter(|live| entry.generation == block.generation() && live.ptr == block.ptr())
    }
}

impl Strategy for Direct {
    fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        if req.pool != PoolId::DEFAULT {
            return Err(AllocError::UnknownPool);
        }
        if req.size == 0 {
            return Ok(Block::empty());
        }
        let ptr = match dev.malloc(req.size) {
            Ok(ptr) => ptr,
            Err(DeviceError::OutOfMemory) => return Err(AllocError::OutOfMemory),
            Err(other) => return Err(other.into()),
        };
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.blocks.push(Entry::default());
            (self.blocks.len() - 1) as u32
        });
        let entry = &mut self.blocks[slot as usize];
        entry.live = Some(Live { ptr, size: req.size, stream: req.stream });
        Block::new(ptr, slot, entry.generation).ok_or(AllocError::AddressSpace)
    }

    fn free(&mut self, dev: &mut dyn Device, block: Block) -> Result<(), FreeError> {
        if block.is_empty() {
            return Ok(());
        }
        if self.find(&block).is_none() {
            return Err(FreeError { block, reason: FreeFailure::NotLive });
        }
        if let Err(error) = dev.free(block.ptr()) {
            return Err(FreeError { block, reason: error.into() });
        }
        let entry = &mut self.blocks[block.slot() as usize];
        entry.live = None;
        entry.generation = entry.generation.wrapping_add(1);
        self.vacant.push(block.slot());
        Ok(())
    }

    /// There is nothing to remember: the driver's free waits for everything queued on the device, on every stream,
    /// so the memory cannot reach anybody before its last user is done.
    fn record_stream(&mut self, _: &mut dyn Device, block: &Block, _: StreamId) -> Result<(), AllocError> {
        if block.is_empty() || self.find(block).is_some() { Ok(()) } else { Err(AllocError::NotLive) }
    }

    fn trim(&mut self, _: &mut dyn Device, _keep: u64) -> Result<u64, AllocError> {
        Ok(0)
    }

    fn inspect(&self, visit: &mut dyn FnMut(Span)) {
        let mut live: Vec<Live> = self.blocks.iter().filter_map(|entry| entry.live).collect();
        live.sort_unstable_by_key(|block| block.ptr);
        for Live { ptr, size, stream } in live {
            visit(Span { segment: ptr, ptr, size, state: SpanState::Live, stream, pool: PoolId::DEFAULT });
        }
    }
}

impl Configure for Direct {
    const NAME: &'static str = "direct";
    const ABOUT: &'static str = "a driver call per request; nothing is cached";
    type Params = Params;

    fn new(_: Params, _: &DeviceInfo) -> Result<Self, ConfigError> {
        Ok(Self::default())
    }
}
