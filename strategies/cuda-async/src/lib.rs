//! The driver's own stream-ordered pool: what `cudaMallocAsync` does, measured like any other strategy.
//!
//! Where memory comes from and where it goes is the driver's business. What is left to do here is to put each free where
//! it belongs in the order of the streams.
//!
//! ```text
//! stream 0   ── malloc_async(a) ── work ── … ── wait for F ── free_async(a) ── malloc_async(b) ──▶   b may be a's memory
//!                                                   ▲
//! stream 1   ─────────────── work with a ── fence F ┘
//! ```
//!
//! The host does not wait for that. A *ticket* is work whose end is known to a recording only, so no stream can be made
//! to wait for it: a block that a ticket uses is freed when the ticket's fence is seen to have passed.

use allocator_core::{
    AllocError, AsyncSettings, Block, ConfigError, Configure, Device, DeviceError, DeviceInfo, Fence, FreeError,
    FreeFailure, PoolId, Request, Span, SpanState, Strategy, StreamId, Sync,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// The strategy. A block's slot is its index in `blocks`; the slots of freed blocks are used again, last one first.
#[derive(Clone, Debug)]
pub struct CudaAsync {
    settings: AsyncSettings,
    /// Whether the pool has the settings. It gets them with the first request.
    is_configured: bool,
    blocks: Vec<Entry>,
    vacant: Vec<u32>,
    /// Fences and the slots of the blocks that wait for them, by ticket, oldest first: a ticket passes its fences in order.
    waiting: BTreeMap<StreamId, VecDeque<(Fence, u32)>>,
    /// Bytes of live and waiting blocks.
    held: u64,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    held: Option<Held>,
    generation: u32,
}

/// A block that the driver has not got back.
#[derive(Clone, Debug)]
struct Held {
    ptr: u64,
    size: u64,
    stream: StreamId,
    /// The other streams and tickets that use it.
    others: Vec<StreamId>,
    /// For how many tickets it waits; 0 while it is live.
    waits: usize,
}

/// The pool's attributes under the driver's names, with the driver's defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Bytes that the pool may keep when the host waits for a stream or the device; more goes back to the device. PyTorch
    /// sets the maximum and RMM the memory of the card, so that nothing goes back by itself.
    pub release_threshold: u64,
    /// A stream may get memory that was freed on another one that it was made to wait for since.
    pub follow_event_dependencies: bool,
    /// A stream may get memory whose free on another stream happens to be over.
    pub opportunistic: bool,
    /// The driver may make a stream wait for another one's free, rather than take new memory.
    pub internal_dependencies: bool,
}

impl Default for Params {
    fn default() -> Params {
        Params {
            release_threshold: 0,
            follow_event_dependencies: true,
            opportunistic: true,
            internal_dependencies: true,
        }
    }
}

impl CudaAsync {
    /// The live block, or `None` if it is not ours or not live any more.
    fn find(&mut self, block: &Block) -> Option<&mut Held> {
        let entry = self.blocks.get_mut(block.slot() as usize)?;
        let is_current = entry.generation == block.generation();
        entry.held.as_mut().filter(|held| is_current && held.waits == 0 && held.ptr == block.ptr())
    }

    /// Memory for a request. If there is none, the host waits, which brings every free about and ends tickets, what the
    /// pool keeps goes back to the device, and the driver is asked once more.
    fn take(&mut self, dev: &mut dyn Device, req: Request) -> Result<u64, DeviceError> {
        if !self.is_configured {
            dev.configure_async(self.settings)?;
            self.is_configured = true;
        }
        self.settle(dev)?;
        match dev.malloc_async(req.size, req.stream) {
            Err(DeviceError::OutOfMemory) => {}
            answer => return answer,
        }
        dev.sync(Sync::Device)?;
        self.settle(dev)?;
        dev.trim_async(0)?;
        dev.malloc_async(req.size, req.stream)
    }

    /// Frees the blocks that need not wait any more; their bytes. Where a ticket has not ended, one fence is looked at,
    /// however many blocks wait for it.
    fn settle(&mut self, dev: &mut dyn Device) -> Result<u64, DeviceError> {
        let mut freed = 0;
        for queue in self.waiting.values_mut() {
            while let Some(&(fence, slot)) = queue.front()
                && dev.poll(fence)?
            {
                let entry = &mut self.blocks[slot as usize].held;
                match entry {
                    // If this fails, the fence stays in the queue, and it is tried again.
                    Some(held) if held.waits == 1 => {
                        dev.free_async(held.ptr, held.stream)?;
                        dev.retired(held.ptr);
                        freed += held.size;
                        self.held -= held.size;
                        *entry = None;
                        self.vacant.push(slot);
                    }
                    Some(held) => held.waits -= 1,
                    None => {}
                }
                queue.pop_front();
            }
        }
        self.waiting.retain(|_, queue| !queue.is_empty());
        Ok(freed)
    }
}

impl Held {
    /// Frees the block in the order of its own stream, which waits for what the other streams have queued. Where it must
    /// wait for tickets it is not freed yet, and their fences are the answer. After an error it may be tried again.
    fn free(&self, dev: &mut dyn Device) -> Result<Vec<Fence>, DeviceError> {
        let mut tickets = Vec::new();
        for &other in &self.others {
            let fence = dev.fence(other)?;
            if other.as_ticket().is_some() {
                tickets.push(fence);
            } else {
                dev.order_after(self.stream, fence)?;
            }
        }
        if tickets.is_empty() {
            dev.free_async(self.ptr, self.stream)?;
        }
        Ok(tickets)
    }
}

impl Strategy for CudaAsync {
    fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        if req.pool != PoolId::DEFAULT {
            return Err(AllocError::UnknownPool);
        }
        if req.size == 0 {
            return Ok(Block::empty());
        }
        let ptr = self.take(dev, req).map_err(|error| match error {
            DeviceError::OutOfMemory => AllocError::OutOfMemory,
            other => other.into(),
        })?;
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.blocks.push(Entry::default());
            (self.blocks.len() - 1) as u32
        });
        let entry = &mut self.blocks[slot as usize];
        entry.held = Some(Held { ptr, size: req.size, stream: req.stream, others: Vec::new(), waits: 0 });
        self.held += req.size;
        Block::new(ptr, slot, entry.generation).ok_or(AllocError::AddressSpace)
    }

    fn free(&mut self, dev: &mut dyn Device, block: Block) -> Result<(), FreeError> {
        if block.is_empty() {
            return Ok(());
        }
        let Some(held) = self.find(&block) else {
            return Err(FreeError { block, reason: FreeFailure::NotLive });
        };
        let fences = match held.free(dev) {
            Ok(fences) => fences,
            Err(error) => return Err(FreeError { block, reason: error.into() }),
        };
        held.waits = fences.len();
        let size = held.size;
        let slot = block.slot();
        let entry = &mut self.blocks[slot as usize];
        entry.generation = entry.generation.wrapping_add(1);
        if fences.is_empty() {
            entry.held = None;
            self.held -= size;
            self.vacant.push(slot);
        }
        for fence in fences {
            self.waiting.entry(fence.stream).or_default().push_back((fence, slot));
        }
        Ok(())
    }

    fn record_stream(&mut self, _: &mut dyn Device, block: &Block, stream: StreamId) -> Result<(), AllocError> {
        match self.find(block) {
            Some(held) => {
                if held.stream != stream && !held.others.contains(&stream) {
                    held.others.push(stream);
                }
                Ok(())
            }
            None if block.is_empty() => Ok(()),
            None => Err(AllocError::NotLive),
        }
    }

    /// The answer is the bytes of the blocks that waited and went back to the driver. What the driver's pool had kept, and
    /// now gives back to the device, only the driver knows.
    fn trim(&mut self, dev: &mut dyn Device, keep: u64) -> Result<u64, AllocError> {
        if !self.is_configured {
            return Ok(0);
        }
        if keep == 0 {
            // The pool gives back only what was freed by work that is done.
            dev.sync(Sync::Device)?;
        }
        let freed = if self.held > keep { self.settle(dev)? } else { 0 };
        dev.trim_async(keep)?;
        Ok(freed)
    }

    fn inspect(&self, visit: &mut dyn FnMut(Span)) {
        let mut held: Vec<&Held> = self.blocks.iter().filter_map(|entry| entry.held.as_ref()).collect();
        held.sort_unstable_by_key(|block| block.ptr);
        for &Held { ptr, size, stream, waits, .. } in held {
            let state = if waits == 0 { SpanState::Live } else { SpanState::Pending };
            visit(Span { segment: ptr, ptr, size, state, stream, pool: PoolId::DEFAULT });
        }
    }
}

impl Configure for CudaAsync {
    const NAME: &'static str = "cuda-async";
    const ABOUT: &'static str = "the driver's own stream-ordered pool (cudaMallocAsync); on a card only";
    const STREAM_ORDERED: bool = true;
    type Params = Params;

    fn new(params: Params, device: &DeviceInfo) -> Result<Self, ConfigError> {
        if !device.stream_ordered {
            let text = "cuda-async needs the driver's stream-ordered pool: run it with -d cuda";
            return Err(ConfigError(text.to_string()));
        }
        let Params { release_threshold, follow_event_dependencies, opportunistic, internal_dependencies } = params;
        let settings =
            AsyncSettings { release_threshold, follow_event_dependencies, opportunistic, internal_dependencies };
        Ok(CudaAsync {
            settings,
            is_configured: false,
            blocks: Vec::new(),
            vacant: Vec::new(),
            waiting: BTreeMap::new(),
            held: 0,
        })
    }
}
