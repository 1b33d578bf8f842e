//! The allocator's state and its hot path.
//!
//! Two code paths give the same decisions. The *plain* one serves the default pool while nothing unusual is going on
//! (`plain` is false while frees wait for other streams, a pool context is open, collection is on, or an option
//! other than the defaults is in force); it is monomorphised for both pools. Everything else, and every request that
//! the cache cannot serve, takes the general path.

use crate::arena::Arena;
use crate::blocks::Blocks;
use crate::events::{EventQueues, Uses};
use crate::expandable::ExpandableSegment;
use crate::pools::PoolTable;
use crate::rules::{Rules, Torch211};
use crate::settings::Settings;
use crate::size::GRANULE;
use crate::slab::{EXPANDABLE, GRANULE_SHIFT, LIVE, Node, PENDING, SIZE_LIMIT, SMALL, Slab, USED};
use crate::stats::{Stats, class};
use allocator_core::{AllocError, Block, ConfigError, Device, DeviceInfo, FreeError, FreeFailure, PoolId, Request};
use allocator_core::{CallKind, DeviceError, StreamId};
use std::collections::BTreeMap;
use std::marker::PhantomData;

/// Requests from here on are refused without a try.
const EXABYTE: u64 = 1 << 60;

/// PyTorch's caching allocator. See the [crate documentation](crate).
#[derive(Clone)]
pub struct Caching<R: Rules = Torch211> {
    pub(crate) slab: Slab,
    pub(crate) arenas: Vec<Arena>,
    pub(crate) pools: PoolTable,
    /// Whether the plain path gives the right decisions.
    pub(crate) plain: bool,
    pub(crate) stats: Stats,
    pub(crate) settings: Settings,
    /// Bytes that may be reserved.
    pub(crate) limit: Option<u64>,
    pub(crate) events: EventQueues,
    /// Further streams of blocks that were used on any.
    pub(crate) uses: BTreeMap<u32, Uses>,
    /// Blocks freed while a pool context was open, in order.
    pub(crate) deferred: Vec<u32>,
    /// Expandable segments by their first address.
    pub(crate) expandable: BTreeMap<u64, ExpandableSegment>,
    /// Searches of the default large pool while collection was on: the clock of block ages.
    pub(crate) clock: u64,
    /// The clock when each block was last put into the cache, by slot. Only kept once the clock runs.
    pub(crate) cached_at: Vec<u64>,
    pub(crate) device_total: u64,
    rules: PhantomData<R>,
}

/// A request on its way through the general path.
#[derive(Clone, Copy)]
pub(crate) struct Want {
    pub pool: PoolId,
    pub stream: StreamId,
    pub small: bool,
    /// Rounded size in granules.
    pub granules: u64,
    /// Whether expandable segments may serve it, fixed for the whole call.
    pub expandable: bool,
}

impl Want {
    /// Rounded size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.granules << GRANULE_SHIFT
    }
}

/// A free block taken out of the cache, or fresh from the device.
pub(crate) struct Found {
    pub slot: u32,
    /// The pool that it came from.
    pub pool: PoolId,
    /// Whether it may be split as expandable memory is.
    pub expandable: bool,
}

impl<R: Rules> Caching<R> {
    /// An allocator under `settings` for a device.
    pub fn with_settings(settings: Settings, device: &DeviceInfo) -> Result<Self, ConfigError> {
        let page = settings.large_segment_size;
        if settings.expandable_segments && !page.is_multiple_of(device.granularity) {
            let (page, granularity) = (page >> 20, device.granularity >> 20);
            return Err(ConfigError(format!(
                "large_segment_size_mb is {page}, but with expandable segments it is mapped in multiples of \
                 {granularity} MiB"
            )));
        }
        // An expandable segment has 9/8 of the device's addresses and up to a page more, as one block.
        let largest = (SIZE_LIMIT << GRANULE_SHIFT) / 9 * 8 - (16 << 30);
        if device.total > largest {
            let (total, largest) = (device.total >> 30, largest >> 30);
            return Err(ConfigError(format!(
                "a device of {total} GiB: blocks here have addresses and sizes for at most {largest} GiB"
            )));
        }
        let mut stats = Stats::default();
        stats.max_split_size = i64::try_from(settings.max_split_size).unwrap_or(-1);
        let mut new = Caching {
            slab: Slab::new(),
            arenas: Vec::new(),
            pools: PoolTable::default(),
            plain: false,
            stats,
            limit: limit_of(settings.per_process_memory_fraction, device.total),
            settings,
            events: EventQueues::default(),
            uses: BTreeMap::new(),
            deferred: Vec::new(),
            expandable: BTreeMap::new(),
            clock: 0,
            cached_at: Vec::new(),
            device_total: device.total,
            rules: PhantomData,
        };
        new.update_plain();
        Ok(new)
    }

    /// The statistics.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The settings in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether blocks age.
    pub(crate) fn collects(&self) -> bool {
        self.limit.is_some() && self.settings.garbage_collection_threshold > 0.0
    }

    /// To be called when anything changes that the plain path relies on.
    pub(crate) fn update_plain(&mut self) {
        let settings = &self.settings;
        self.plain = R::LOWEST_ADDRESS
            && settings.max_split_size == u64::MAX
            && settings.roundup_power2_divisions == [0; 16]
            && !settings.expandable_segments
            && self.expandable.is_empty()
            && self.pools.captures.is_empty()
            && !self.pools.splits_differ()
            && !self.collects()
            && self.clock == 0
            && !self.stats.has_forked();
    }

    #[inline(always)]
    pub(crate) fn serve(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        let small_granules = const { R::SMALL_LIMIT >> GRANULE_SHIFT };
        let granules = req.size.wrapping_add(GRANULE - 1) >> GRANULE_SHIFT;
        // Size 0 and sizes that no block can have end up in the general path.
        if self.plain
            && req.pool == PoolId::DEFAULT
            && granules.wrapping_sub(1) < SIZE_LIMIT - 1
            && let Some(&[small, large]) = self.pools.default.arenas.get(req.stream.index())
        {
            let block = if granules <= small_granules {
                self.serve_cached::<true>(small, granules, req.size)
            } else {
                self.serve_cached::<false>(large, granules, req.size)
            };
            if let Some(block) = block {
                return Ok(block);
            }
        }
        self.serve_general(dev, req)
    }

    /// The plain path.
    #[inline(always)]
    fn serve_cached<const IS_SMALL: bool>(&mut self, number: u32, granules: u64, requested: u64) -> Option<Block> {
        let arena = self.arenas.get_mut(number as usize)?;
        self.slab.reserve();
        let (nodes, unused) = self.slab.parts();
        let slot = arena.index.take_best::<IS_SMALL>(nodes, granules)?;
        let rest = nodes[slot as usize].size() - granules;
        let split = if IS_SMALL { rest > 0 } else { rest > const { R::LARGE_REMAINDER >> GRANULE_SHIFT } };
        let blocks = Blocks::<IS_SMALL, true> { arena, nodes, unused, stats: &mut self.stats };
        blocks.hand_out(slot, granules, requested, split)
    }

    #[cold]
    #[inline(never)]
    fn serve_general(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        if req.size == 0 {
            return Ok(Block::empty());
        }
        if req.size >= EXABYTE {
            return Err(AllocError::TooLarge);
        }
        if req.stream.as_ticket().is_some() {
            return Err(AllocError::Device(DeviceError::Invalid(CallKind::Fence)));
        }
        if !self.pools.serves(req.pool) {
            return Err(AllocError::UnknownPool);
        }
        if self.pools.captures.is_empty() {
            self.process_events(dev)?;
        }
        let rounded = self.settings.round(req.size);
        let want = Want {
            pool: req.pool,
            stream: req.stream,
            small: rounded <= R::SMALL_LIMIT,
            granules: rounded >> GRANULE_SHIFT,
            expandable: self.settings.expandable_segments,
        };
        let arena = self.arena(want.pool, want.stream, want.small);
        let found = match self.find_free(arena, &want) {
            Some(slot) => Found { slot, pool: want.pool, expandable: want.expandable },
            None => self.obtain(dev, arena, &want)?,
        };
        let split = self.should_split(&found, &want);
        let block = if want.small {
            self.cut::<true>(found.slot, want.granules, req.size, split)
        } else {
            self.cut::<false>(found.slot, want.granules, req.size, split)
        };
        // No device hands out address 0; a block there could not be told from none.
        block.ok_or(AllocError::AddressSpace)
    }

    /// Hands out a block that is in no index.
    fn cut<const IS_SMALL: bool>(&mut self, slot: u32, granules: u64, requested: u64, split: bool) -> Option<Block> {
        self.slab.reserve();
        let number = self.slab[slot].arena();
        let (nodes, unused) = self.slab.parts();
        let arena = &mut self.arenas[number];
        let blocks = Blocks::<IS_SMALL, false> { arena, nodes, unused, stats: &mut self.stats };
        let block = blocks.hand_out(slot, granules, requested, split);
        self.stats.raise_active_peaks();
        if split {
            self.stamp(self.slab[slot].next);
        }
        if self.slab[slot].size() << GRANULE_SHIFT >= self.settings.max_split_size {
            self.stats.oversize_allocation();
        }
        block
    }

    fn should_split(&self, found: &Found, want: &Want) -> bool {
        if self.pools.no_split.contains(&found.pool) {
            return false;
        }
        let rest = (self.slab[found.slot].size() - want.granules) << GRANULE_SHIFT;
        if want.small || found.expandable {
            rest >= GRANULE
        } else {
            want.bytes() < self.settings.max_split_size && rest > R::LARGE_REMAINDER
        }
    }

    /// The smallest sufficient cached block, taken out of the cache. Only one candidate is tested: if an oversize
    /// rule rejects it, there is none.
    pub(crate) fn find_free(&mut self, number: u32, want: &Want) -> Option<u32> {
        let (pool, small) = (self.arenas[number as usize].pool, self.arenas[number as usize].small);
        if self.collects() && pool == PoolId::DEFAULT && !small {
            self.clock += 1;
        }
        if want.granules >= SIZE_LIMIT {
            return None;
        }
        let mut slot = self.arenas[number as usize].best_fit(&mut self.slab, want.granules)?;
        if !R::LOWEST_ADDRESS {
            slot = highest_of_its_size(&self.arenas[number as usize], &self.slab, slot);
        }
        let arena = &self.arenas[number as usize];
        while self.slab[slot].is(EXPANDABLE) {
            match arena.successor(&self.slab, slot) {
                // A block that can grow into the unmapped tail counts as huge, so that holes are used first.
                Some(next) if !want.expandable || self.growable(next) < self.growable(slot) => slot = next,
                None if !want.expandable => return None,
                _ => break,
            }
        }
        let (bytes, max_split) = (self.slab[slot].size() << GRANULE_SHIFT, self.settings.max_split_size);
        let rejected = if want.bytes() < max_split {
            bytes >= max_split
        } else {
            bytes >= want.bytes().saturating_add(self.settings.max_non_split_rounding)
        };
        if rejected {
            return None;
        }
        self.arenas[number as usize].remove(&mut self.slab, slot);
        Some(slot)
    }

    /// Notes the age of a block that goes into the cache.
    fn stamp(&mut self, slot: u32) {
        if self.clock == 0 {
            return;
        }
        if self.cached_at.len() < self.slab.len() as usize {
            self.cached_at.resize(self.slab.len() as usize, 0);
        }
        self.cached_at[slot as usize] = self.clock;
    }

    /// Puts a free block into the cache, with a fresh age.
    pub(crate) fn cache(&mut self, slot: u32) {
        self.stamp(slot);
        let number = self.slab[slot].arena();
        self.arenas[number].insert(&mut self.slab, slot);
    }

    /// The record of a block, if it is live here.
    #[inline(always)]
    pub(crate) fn live(&self, block: &Block) -> Option<&Node> {
        let node = self.slab.get(block.slot())?;
        let handed_out = node.generation == block.generation() && node.is(LIVE);
        (handed_out && self.arenas[node.arena()].areas.address(node.key) == block.ptr()).then_some(node)
    }

    #[inline(always)]
    pub(crate) fn take_back(&mut self, dev: &mut dyn Device, block: Block) -> Result<(), FreeError> {
        let Some(&Node { meta, .. }) = self.live(&block) else {
            return if block.is_empty() { Ok(()) } else { Err(FreeError { block, reason: FreeFailure::NotLive }) };
        };
        if !self.plain || meta & USED != 0 {
            return self.take_back_general(dev, block);
        }
        if meta & SMALL != 0 {
            self.merge::<true, true>(block.slot(), false);
        } else {
            self.merge::<false, true>(block.slot(), false);
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn take_back_general(&mut self, dev: &mut dyn Device, block: Block) -> Result<(), FreeError> {
        let slot = block.slot();
        let node = self.slab[slot];
        let used = node.is(USED);
        if used
            && self.pools.captures.is_empty()
            && let Err(error) = self.insert_events(dev, slot)
        {
            return Err(FreeError { block, reason: FreeFailure::Device(error) });
        }
        if node.size() << GRANULE_SHIFT >= self.settings.max_split_size {
            self.stats.oversize_free();
        }
        if used {
            self.stats.free_requested(class(node.is(SMALL)), node.size());
            self.plain = false;
            let node = &mut self.slab[slot];
            node.meta = node.meta & !LIVE | PENDING;
            if !self.pools.captures.is_empty() {
                self.deferred.push(slot);
            }
        } else {
            self.make_free(slot, false);
        }
        Ok(())
    }

    /// A block becomes free. `waited`: it was freed by its owner before, and waited for other streams.
    pub(crate) fn make_free(&mut self, slot: u32, waited: bool) {
        let at = if self.slab[slot].is(SMALL) {
            self.merge::<true, false>(slot, waited)
        } else {
            self.merge::<false, false>(slot, waited)
        };
        self.stamp(at);
    }

    #[inline(always)]
    fn merge<const IS_SMALL: bool, const PLAIN: bool>(&mut self, slot: u32, waited: bool) -> u32 {
        let number = self.slab[slot].arena();
        let (nodes, unused) = self.slab.parts();
        let arena = &mut self.arenas[number];
        let blocks = Blocks::<IS_SMALL, PLAIN> { arena, nodes, unused, stats: &mut self.stats };
        blocks.merge::<R>(slot, waited)
    }
}

/// The limit that a share of the device's memory means. The whole is no limit.
pub(crate) fn limit_of(fraction: f64, total: u64) -> Option<u64> {
    (fraction < 1.0).then_some((fraction * total as f64) as u64)
}

/// For rules that take the highest address among equals.
fn highest_of_its_size(arena: &Arena, slab: &Slab, mut slot: u32) -> u32 {
    while let Some(next) = arena.successor(slab, slot)
        && slab[next].size() == slab[slot].size()
    {
        slot = next;
    }
    slot
}
