//! What happens when the cache cannot serve a request: collection, the device, other pools, giving memory back.

use crate::engine::{Caching, Found, Want};
use crate::rules::Rules;
use crate::slab::{EXPANDABLE, GRANULE_SHIFT, SIZE_LIMIT, TOKEN_BITS, key};
use crate::stats::class;
use allocator_core::{AllocError, Device, DeviceError, PoolId};

impl<R: Rules> Caching<R> {
    /// Everything that is tried after the cache, in order.
    pub(crate) fn obtain(&mut self, dev: &mut dyn Device, arena: u32, want: &Want) -> Result<Found, AllocError> {
        if self.collects() {
            self.collect_garbage(dev)?;
        }
        if !R::DEVICE_BEFORE_FLUSH {
            self.flush(dev)?;
        }
        let found = |slot| Found { slot, pool: want.pool, expandable: want.expandable };
        if let Some(slot) = self.grow(dev, arena, want)? {
            return Ok(found(slot));
        }
        if let Some(found) = self.find_in_overflow_pools(want) {
            return Ok(found);
        }
        if self.release_oversize(dev, arena, want)?
            && let Some(slot) = self.grow(dev, arena, want)?
        {
            return Ok(found(slot));
        }
        if self.pools.captures.is_empty() {
            self.flush(dev)?;
            self.stats.num_alloc_retries += 1;
            if let Some(slot) = self.grow(dev, arena, want)? {
                return Ok(found(slot));
            }
        }
        self.stats.num_ooms += 1;
        Err(AllocError::OutOfMemory)
    }

    /// A fresh block from the device, in no index. `None`: the limit or the device has no room.
    fn grow(&mut self, dev: &mut dyn Device, number: u32, want: &Want) -> Result<Option<u32>, AllocError> {
        let bytes = self.settings.segment_size(want.bytes(), want.small);
        if let Some(limit) = self.limit
            && self.stats.reserved_bytes().saturating_add(bytes) > limit
        {
            return Ok(None);
        }
        if want.expandable {
            return self.grow_expandable(dev, number, want.granules);
        }
        let address = match dev.malloc(bytes) {
            Ok(address) => address,
            Err(DeviceError::OutOfMemory) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let arena = &mut self.arenas[number as usize];
        let granules = bytes >> GRANULE_SHIFT;
        if granules >= SIZE_LIMIT || !arena.cover(&mut self.slab, number, address, bytes) {
            dev.free(address)?;
            return Err(AllocError::AddressSpace);
        }
        let slot = self.slab.take();
        let node = &mut self.slab[slot];
        node.key = key(granules, arena.areas.token(address));
        (node.prev, node.next) = (0, 0);
        node.meta = crate::arena::Arena::meta(number, want.small);
        let oversize = bytes >= self.settings.max_split_size;
        self.stats.segment_alloc(class(want.small), bytes, oversize);
        self.pools.get_or_default(want.pool).segments += 1;
        Ok(Some(slot))
    }

    /// Free memory of pools that were registered to serve the default pool when the device has none.
    fn find_in_overflow_pools(&mut self, want: &Want) -> Option<Found> {
        if want.pool != PoolId::DEFAULT {
            return None;
        }
        for pool in self.pools.use_on_oom.clone() {
            if self.pools.get(pool).is_none_or(|record| record.users == 0) {
                continue;
            }
            let arena = self.arena(pool, want.stream, want.small);
            let want = Want { pool, expandable: false, ..*want };
            if let Some(slot) = self.find_free(arena, &want) {
                return Some(Found { slot, pool, expandable: false });
            }
        }
        None
    }

    /// Frees unsplit cached segments of the default large pool that are older than the average, until the share of
    /// the limit that the threshold names is kept.
    fn collect_garbage(&mut self, dev: &mut dyn Device) -> Result<(), DeviceError> {
        let Some(limit) = self.limit else { return Ok(()) };
        let threshold = (self.settings.garbage_collection_threshold * limit as f64) as u64;
        let reserved = self.stats.reserved_bytes();
        if reserved <= threshold {
            return Ok(());
        }
        let target = reserved - threshold;
        let (mut age_sum, mut count) = (0, 0u64);
        for slot in self.cached(PoolId::DEFAULT, false) {
            if !self.slab[slot].is_split() {
                age_sum += self.age(slot);
                count += 1;
            }
        }
        let (mut reclaimed, mut freed) = (0, true);
        while reclaimed < target && freed && count > 0 {
            freed = false;
            let limit_age = age_sum as f64 / count as f64;
            for slot in self.cached(PoolId::DEFAULT, false) {
                let node = self.slab[slot];
                let age = self.age(slot);
                if !node.is_split() && !node.is(EXPANDABLE) && age as f64 >= limit_age {
                    reclaimed += node.size() << GRANULE_SHIFT;
                    age_sum -= age;
                    count -= 1;
                    freed = true;
                    self.release_segment(dev, slot)?;
                }
            }
        }
        Ok(())
    }

    fn age(&self, slot: u32) -> u64 {
        self.clock - self.cached_at.get(slot as usize).copied().unwrap_or(0)
    }

    /// With a split limit: gives back one cached segment that is large enough, or the largest few. Parts of segments
    /// stay: PyTorch 2.11 frees those too and corrupts its state.
    fn release_oversize(&mut self, dev: &mut dyn Device, number: u32, want: &Want) -> Result<bool, DeviceError> {
        let max_split = self.settings.max_split_size;
        if max_split == u64::MAX {
            return Ok(false);
        }
        let needed = want.bytes().max(max_split);
        let needed_granules = needed.div_ceil(1 << GRANULE_SHIFT);
        if needed_granules >= SIZE_LIMIT {
            return Ok(false);
        }
        let from = key(needed_granules, 0);
        let whole = |engine: &Self, slot: u32| !engine.slab[slot].is(EXPANDABLE) && !engine.slab[slot].is_split();
        if let Some(slot) = self.arenas[number as usize].at_least(&self.slab, from)
            && whole(self, slot)
        {
            self.release_segment(dev, slot)?;
            return Ok(true);
        }
        let mut released = 0;
        let mut below = from;
        while released < needed
            && let Some(slot) = self.arenas[number as usize].before(&self.slab, below)
        {
            let (key, bytes) = (self.slab[slot].key, self.slab[slot].size() << GRANULE_SHIFT);
            if bytes < max_split {
                break;
            }
            if whole(self, slot) {
                self.release_segment(dev, slot)?;
                released += bytes;
            }
            below = key;
        }
        Ok(released >= needed)
    }

    /// Completes all frees and gives back everything cached (`empty_cache`). While a pool context is open only
    /// pools without users are emptied.
    pub(crate) fn flush(&mut self, dev: &mut dyn Device) -> Result<(), DeviceError> {
        if self.pools.captures.is_empty() {
            self.synchronize(dev, None)?;
            self.release_cached(dev, PoolId::DEFAULT, false)?;
            self.release_cached(dev, PoolId::DEFAULT, true)?;
        }
        for pool in self.pools.freeable() {
            self.release_private(dev, pool)?;
        }
        for segment in self.expandable.values_mut() {
            segment.release_unmapped(dev);
        }
        Ok(())
    }

    /// Empties a pool without users, and forgets it once it holds nothing.
    pub(crate) fn release_private(&mut self, dev: &mut dyn Device, id: PoolId) -> Result<(), DeviceError> {
        self.release_cached(dev, id, true)?;
        self.release_cached(dev, id, false)?;
        if let Some(pool) = self.pools.private.get(&id)
            && pool.segments == 0
            && pool.mapped == 0
        {
            let arenas = [pool.arenas(true), pool.arenas(false)].concat();
            for &number in &arenas {
                self.destroy_empty_segments(dev, number as usize)?;
            }
            self.pools.spare_arenas.extend(arenas);
            self.pools.private.remove(&id);
        }
        Ok(())
    }

    /// The free blocks of a pool's size class by stream, size and address.
    fn cached(&self, pool: PoolId, small: bool) -> Vec<u32> {
        let arenas = self.pools.get(pool).map(|pool| pool.arenas(small)).unwrap_or_default();
        arenas.into_iter().flat_map(|number| self.arenas[number as usize].collect(&self.slab)).collect()
    }

    /// Gives back whole segments, then the whole free pages of expandable ones.
    fn release_cached(&mut self, dev: &mut dyn Device, pool: PoolId, small: bool) -> Result<(), DeviceError> {
        let mut growable = Vec::new();
        for slot in self.cached(pool, small) {
            let node = &self.slab[slot];
            if node.is(EXPANDABLE) {
                growable.push(slot);
            } else if !node.is_split() {
                self.release_segment(dev, slot)?;
            }
        }
        for slot in growable {
            self.unmap_block(dev, slot)?;
        }
        Ok(())
    }

    /// `cudaFree` of a cached block that is a whole segment.
    fn release_segment(&mut self, dev: &mut dyn Device, slot: u32) -> Result<(), DeviceError> {
        let node = self.slab[slot];
        let arena = &mut self.arenas[node.arena()];
        dev.free(arena.address(&self.slab, slot))?;
        arena.remove(&mut self.slab, slot);
        let bytes = (node.key >> TOKEN_BITS) << GRANULE_SHIFT;
        let (pool, small) = (arena.pool, arena.small);
        self.slab.give(slot);
        let oversize = bytes >= self.settings.max_split_size;
        self.stats.segment_free(class(small), bytes, oversize);
        self.pools.get_or_default(pool).segments -= 1;
        Ok(())
    }
}
