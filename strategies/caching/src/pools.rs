//! The default pool, private pools (CUDA graphs, user pools), and the contexts that are open.
//!
//! PyTorch finds a request's pool by asking the filters of the open contexts; here the request names it, and the
//! list of open contexts matters for its side effects only: while any is open, events are not polled, an
//! out-of-memory flush is not done, and frees of blocks that other streams used are put off.

use crate::address::AddressMap;
use crate::arena::Arena;
use crate::engine::Caching;
use crate::index::FreeIndex;
use crate::rules::Rules;
use crate::stats::class;
use allocator_core::{ControlError, Device, PoolId, StreamId};
use std::collections::{BTreeMap, BTreeSet};

/// One pool.
#[derive(Clone, Default)]
pub(crate) struct Pool {
    /// Arena numbers of the small and the large size class, by stream; `u32::MAX` where there is none.
    pub arenas: Vec<[u32; 2]>,
    /// Contexts and owners. At 0 a private pool's free memory may go back to the device.
    pub users: u64,
    /// Segments from `cudaMalloc`.
    pub segments: u64,
    /// Mapped bytes in expandable segments.
    pub mapped: u64,
}

impl Pool {
    /// Arena numbers of one size class, in the order of their streams.
    pub(crate) fn arenas(&self, small: bool) -> Vec<u32> {
        self.arenas.iter().map(|numbers| numbers[class(small)]).filter(|&number| number != u32::MAX).collect()
    }
}

/// All pools.
#[derive(Clone, Default)]
pub(crate) struct PoolTable {
    pub default: Pool,
    pub private: BTreeMap<PoolId, Pool>,
    /// Open contexts, oldest first.
    pub captures: Vec<PoolId>,
    /// Pools whose blocks are never split.
    pub no_split: BTreeSet<PoolId>,
    /// Pools whose free memory serves the default pool when the device has none.
    pub use_on_oom: BTreeSet<PoolId>,
    /// Arenas of pools that are gone.
    pub spare_arenas: Vec<u32>,
}

impl PoolTable {
    pub(crate) fn get(&self, id: PoolId) -> Option<&Pool> {
        if id == PoolId::DEFAULT { Some(&self.default) } else { self.private.get(&id) }
    }

    /// Whether requests may name the pool. One that nobody uses any more may vanish at the next flush, also at a flush
    /// on behalf of a request.
    pub(crate) fn serves(&self, id: PoolId) -> bool {
        id == PoolId::DEFAULT || self.private.get(&id).is_some_and(|pool| pool.users > 0)
    }

    /// The pool; a private one that does not exist comes into being without users.
    pub(crate) fn get_or_default(&mut self, id: PoolId) -> &mut Pool {
        if id == PoolId::DEFAULT { &mut self.default } else { self.private.entry(id).or_default() }
    }

    /// Whether the default pool splits by other rules than usual.
    pub(crate) fn splits_differ(&self) -> bool {
        !self.no_split.is_empty() || !self.use_on_oom.is_empty()
    }

    /// Private pools that nobody uses any more.
    pub(crate) fn freeable(&self) -> Vec<PoolId> {
        self.private.iter().filter(|(_, pool)| pool.users == 0).map(|(&id, _)| id).collect()
    }

    fn known(&mut self, id: PoolId) -> Result<&mut Pool, ControlError> {
        self.private.get_mut(&id).ok_or(ControlError::UnknownPool(id))
    }

    pub(crate) fn create(&mut self, id: PoolId) -> Result<(), ControlError> {
        if id == PoolId::DEFAULT {
            return Err(ControlError::PoolState { pool: id, why: "the default pool always exists" });
        }
        match self.private.get_mut(&id) {
            Some(pool) if pool.users == 0 => {
                return Err(ControlError::PoolState { pool: id, why: "it was released already" });
            }
            Some(pool) => pool.users += 1,
            None => drop(self.private.insert(id, Pool { users: 1, ..Pool::default() })),
        }
        Ok(())
    }

    pub(crate) fn begin(&mut self, id: PoolId) -> Result<(), ControlError> {
        self.create(id)?;
        if self.captures.contains(&id) {
            return Err(ControlError::PoolState { pool: id, why: "its context is open already" });
        }
        self.captures.push(id);
        Ok(())
    }

    pub(crate) fn end(&mut self, id: PoolId) -> Result<(), ControlError> {
        match self.captures.iter().position(|&open| open == id) {
            Some(at) => {
                self.captures.remove(at);
                Ok(())
            }
            None => Err(ControlError::PoolState { pool: id, why: "its context is not open" }),
        }
    }

    pub(crate) fn release(&mut self, id: PoolId) -> Result<(), ControlError> {
        let pool = self.known(id)?;
        if pool.users == 0 {
            return Err(ControlError::PoolState { pool: id, why: "it was released already" });
        }
        pool.users -= 1;
        Ok(())
    }
}

impl<R: Rules> Caching<R> {
    /// The number of an arena, made if need be.
    pub(crate) fn arena(&mut self, pool: PoolId, stream: StreamId, small: bool) -> u32 {
        let numbers = &mut self.pools.get_or_default(pool).arenas;
        if numbers.len() <= stream.index() {
            numbers.resize(stream.index() + 1, [u32::MAX; 2]);
        }
        let number = numbers[stream.index()][class(small)];
        if number != u32::MAX {
            return number;
        }
        let number = match self.pools.spare_arenas.pop() {
            Some(number) => {
                let spare = &mut self.arenas[number as usize];
                (spare.pool, spare.stream, spare.small) = (pool, stream, small);
                spare.areas = AddressMap::default();
                number
            }
            None => {
                let index = FreeIndex::new(&mut self.slab);
                let (areas, unmapped) = Default::default();
                self.arenas.push(Arena { index, areas, unmapped, stream, pool, small });
                (self.arenas.len() - 1) as u32
            }
        };
        self.pools.get_or_default(pool).arenas[stream.index()][class(small)] = number;
        number
    }

    /// `emptyCache` of one pool. Nothing happens to a pool that is in use, or gone.
    pub(crate) fn empty_pool(&mut self, dev: &mut dyn Device, id: PoolId) -> Result<(), ControlError> {
        if !self.pools.freeable().contains(&id) {
            return Ok(());
        }
        if !self.pools.captures.is_empty() {
            return Err(ControlError::PoolState { pool: id, why: "it cannot be emptied while a context is open" });
        }
        self.synchronize(dev, Some(id))?;
        Ok(self.release_private(dev, id)?)
    }
}
