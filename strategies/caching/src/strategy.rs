//! The allocator as a [`Strategy`].

use crate::engine::Caching;
use crate::params::Params;
use crate::rules::Rules;
use crate::slab::{FREE, GRANULE_SHIFT, IN_USE, LIVE, PENDING};
use allocator_core::{
    AllocError, Block, ConfigError, Configure, Control, ControlError, Device, DeviceInfo, FreeError, PoolId, Request,
    Span, SpanState, Strategy, StreamId,
};

impl<R: Rules> Strategy for Caching<R> {
    #[inline]
    fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        self.serve(dev, req)
    }

    #[inline]
    fn free(&mut self, dev: &mut dyn Device, block: Block) -> Result<(), FreeError> {
        self.take_back(dev, block)
    }

    fn record_stream(&mut self, _dev: &mut dyn Device, block: &Block, stream: StreamId) -> Result<(), AllocError> {
        self.use_on(block, stream)
    }

    /// Everything cached goes back, as PyTorch has no finer way, unless no more than `keep` bytes are reserved.
    fn trim(&mut self, dev: &mut dyn Device, keep: u64) -> Result<u64, AllocError> {
        let before = self.stats.reserved_bytes();
        if before > keep || keep == 0 {
            self.flush(dev)?;
        }
        Ok(before - self.stats.reserved_bytes())
    }

    fn control(&mut self, dev: &mut dyn Device, what: Control<'_>) -> Result<(), ControlError> {
        let done = match what {
            Control::PoolCreate(pool) => self.pools.create(pool),
            Control::PoolBegin(pool) => self.pools.begin(pool),
            Control::PoolEnd(pool) => self.pools.end(pool),
            Control::PoolRelease(pool) => self.pools.release(pool),
            Control::PoolEmpty(PoolId::DEFAULT) => self.flush(dev).map_err(ControlError::from),
            Control::PoolEmpty(pool) => self.empty_pool(dev, pool),
            Control::PoolNoSplit(pool) => {
                self.pools.no_split.insert(pool);
                Ok(())
            }
            Control::PoolUseOnOom(pool) => {
                self.pools.use_on_oom.insert(pool);
                Ok(())
            }
            Control::Limit(limit) => {
                self.limit = limit;
                Ok(())
            }
            Control::Settings(text) => self.settings.parse(text).map_err(ControlError::from),
        };
        self.update_plain();
        done
    }

    fn inspect(&self, visit: &mut dyn FnMut(Span)) {
        let address = |slot: u32| self.arenas[self.slab[slot].arena()].address(&self.slab, slot);
        let starts = (1..self.slab.len()).filter(|&slot| self.slab[slot].is(IN_USE) && self.slab[slot].prev == 0);
        let mut segments: Vec<(u64, u32)> = starts.map(|slot| (address(slot), slot)).collect();
        segments.sort_unstable();
        for (segment, mut slot) in segments {
            while slot != 0 {
                let node = &self.slab[slot];
                let arena = &self.arenas[node.arena()];
                let state = match node.meta & IN_USE {
                    LIVE => SpanState::Live,
                    PENDING => SpanState::Pending,
                    FREE => SpanState::Cached,
                    _ => SpanState::Unmapped,
                };
                let (ptr, size) = (address(slot), node.size() << GRANULE_SHIFT);
                visit(Span { segment, ptr, size, state, stream: arena.stream, pool: arena.pool });
                slot = node.next;
            }
        }
    }

    fn counters(&self, visit: &mut dyn FnMut(&str, i64)) {
        self.stats.visit(visit);
    }
}

impl Configure for Caching {
    const NAME: &'static str = "caching";
    const ABOUT: &'static str = "PyTorch 2.11's allocator: best fit over cached segments, with all its options";
    type Params = Params;

    fn new(params: Params, device: &DeviceInfo) -> Result<Self, ConfigError> {
        Caching::with_settings(params.settings()?, device)
    }
}
