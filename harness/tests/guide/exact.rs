//! Free lists by exact size: freed memory waits for the next request of the same stream and size.
//!
//! ```text
//! allocate 3 KiB ── list empty ── malloc ──▶ [ a      ]
//! free a         ── nothing goes back ─────▶ (stream 0, 3 KiB): a
//! allocate 3 KiB ── list ──────────────────▶ [ a      ]      no driver call
//! allocate 2 KiB ── list empty ── malloc ──▶ [ b   ]         a smaller block never comes out of a larger one
//! ```

use allocator_core::{
    AllocError, Block, ConfigError, Configure, Device, DeviceError, DeviceInfo, FreeError, FreeFailure, PoolId,
    Request, Span, SpanState, Strategy, StreamId,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The strategy. A block's slot is its index in `blocks`; the slots of freed blocks are used again, last one first.
#[derive(Clone, Debug)]
pub struct Exact {
    round: u64,
    blocks: Vec<Entry>,
    vacant: Vec<u32>,
    /// Addresses of free memory by stream and size. The map is ordered, so that every run decides alike.
    cached: BTreeMap<(StreamId, u64), Vec<u64>>,
    reserved: u64,
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
    /// Whether other streams use it too.
    shared: bool,
}

/// What can be chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Sizes are rounded up to a multiple of this many bytes.
    pub round: u64,
}

impl Default for Params {
    fn default() -> Params {
        Params { round: 512 }
    }
}

impl Exact {
    /// The block's memory, or `None` if the block is not ours or not live any more.
    fn find(&self, block: &Block) -> Option<Live> {
        let entry = self.blocks.get(block.slot() as usize)?;
        entry.live.filter(|live| entry.generation == block.generation() && live.ptr == block.ptr())
    }

    /// New memory from the driver. When it has none left, what is cached goes back first.
    fn grow(&mut self, dev: &mut dyn Device, size: u64) -> Result<u64, AllocError> {
        let mut answer = dev.malloc(size);
        if answer == Err(DeviceError::OutOfMemory) && self.trim(dev, 0)? > 0 {
            answer = dev.malloc(size);
        }
        match answer {
            Ok(ptr) => {
                self.reserved += size;
                Ok(ptr)
            }
            Err(DeviceError::OutOfMemory) => Err(AllocError::OutOfMemory),
            Err(other) => Err(other.into()),
        }
    }
}

impl Strategy for Exact {
    fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        if req.pool != PoolId::DEFAULT {
            return Err(AllocError::UnknownPool);
        }
        if req.size == 0 {
            return Ok(Block::empty());
        }
        let size = req.size.checked_next_multiple_of(self.round).ok_or(AllocError::TooLarge)?;
        let ptr = match self.cached.get_mut(&(req.stream, size)).and_then(Vec::pop) {
            Some(ptr) => ptr,
            None => self.grow(dev, size)?,
        };
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.blocks.push(Entry::default());
            (self.blocks.len() - 1) as u32
        });
        let entry = &mut self.blocks[slot as usize];
        entry.live = Some(Live { ptr, size, stream: req.stream, shared: false });
        Block::new(ptr, slot, entry.generation).ok_or(AllocError::AddressSpace)
    }

    fn free(&mut self, dev: &mut dyn Device, block: Block) -> Result<(), FreeError> {
        if block.is_empty() {
            return Ok(());
        }
        let Some(live) = self.find(&block) else {
            return Err(FreeError { block, reason: FreeFailure::NotLive });
        };
        if live.shared {
            // Other streams may still be at work in it. The driver's free waits for all of them.
            if let Err(error) = dev.free(live.ptr) {
                return Err(FreeError { block, reason: error.into() });
            }
            self.reserved -= live.size;
        } else {
            // Its stream does one thing after another: whoever gets it next on that stream comes after us.
            self.cached.entry((live.stream, live.size)).or_default().push(live.ptr);
        }
        let entry = &mut self.blocks[block.slot() as usize];
        entry.live = None;
        entry.generation = entry.generation.wrapping_add(1);
        self.vacant.push(block.slot());
        Ok(())
    }

    fn record_stream(&mut self, _: &mut dyn Device, block: &Block, stream: StreamId) -> Result<(), AllocError> {
        if block.is_empty() {
            return Ok(());
        }
        let live = self.find(block).ok_or(AllocError::NotLive)?;
        let shared = live.shared || stream != live.stream;
        self.blocks[block.slot() as usize].live = Some(Live { shared, ..live });
        Ok(())
    }

    fn trim(&mut self, dev: &mut dyn Device, keep: u64) -> Result<u64, AllocError> {
        let before = self.reserved;
        for ((_, size), list) in &mut self.cached {
            while self.reserved > keep
                && let Some(ptr) = list.last()
            {
                dev.free(*ptr)?;
                list.pop();
                self.reserved -= size;
            }
        }
        Ok(before - self.reserved)
    }

    fn inspect(&self, visit: &mut dyn FnMut(Span)) {
        let live = self.blocks.iter().filter_map(|entry| entry.live);
        let live = live.map(|live| (live.ptr, live.size, live.stream, SpanState::Live));
        let cached = self
            .cached
            .iter()
            .flat_map(|((stream, size), list)| list.iter().map(|ptr| (*ptr, *size, *stream, SpanState::Cached)));
        let mut spans: Vec<_> = live.chain(cached).collect();
        spans.sort_unstable_by_key(|(ptr, ..)| *ptr);
        for (ptr, size, stream, state) in spans {
            visit(Span { segment: ptr, ptr, size, state, stream, pool: PoolId::DEFAULT });
        }
    }
}

impl Configure for Exact {
    const NAME: &'static str = "exact";
    const ABOUT: &'static str = "free lists by exact size, for each stream";
    type Params = Params;

    fn new(params: Params, device: &DeviceInfo) -> Result<Self, ConfigError> {
        let (round, step) = (params.round, device.alignment);
        if round == 0 || !round.is_multiple_of(step) {
            return Err(ConfigError(format!("round={round}: write a multiple of {step}")));
        }
        Ok(Exact { round, blocks: Vec::new(), vacant: Vec::new(), cached: BTreeMap::new(), reserved: 0 })
    }
}
