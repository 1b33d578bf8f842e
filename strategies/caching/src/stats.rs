//! PyTorch's statistics: the 122 keys of `torch.cuda.memory_stats()`.
//!
//! Five quantities change with every call, and are kept as plain arrays with one combined test for new peaks. The
//! rest follows: what was freed is what was allocated less what is there; the sum over both pools is added up when
//! asked for, except for its peaks; and the *active* statistics equal the *allocation* ones until the first free that
//! has to wait for another stream.

use crate::slab::GRANULE_SHIFT;

/// Lanes of the hot arrays.
pub(crate) const COUNT: usize = 0;
const BYTES: usize = 1;
const REQUESTED: usize = 2;
const SPLIT: usize = 3;
const SPLIT_BYTES: usize = 4;
const LANES: usize = 5;

/// Index of the small pool in per-pool arrays; 1 is the large pool.
pub(crate) const fn class(small: bool) -> usize {
    !small as usize
}

#[derive(Clone, Copy, Default)]
struct Hot {
    current: [i64; LANES],
    peak: [i64; LANES],
    allocated: [i64; LANES],
}

/// The four figures of one statistic.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Now.
    pub current: i64,
    /// Highest value so far.
    pub peak: i64,
    /// Sum of all increases.
    pub allocated: i64,
    /// Sum of all decreases.
    pub freed: i64,
}

impl Stat {
    fn increase(&mut self, by: i64) {
        self.current += by;
        self.allocated += by;
        self.peak = self.peak.max(self.current);
    }

    fn decrease(&mut self, by: i64) {
        self.current -= by;
        self.freed += by;
    }
}

/// A statistic for both pools together, the small and the large one.
#[derive(Clone, Copy, Default)]
struct Stats3([Stat; 3]);

impl Stats3 {
    fn increase(&mut self, class: usize, by: i64) {
        self.0[0].increase(by);
        self.0[1 + class].increase(by);
    }

    fn decrease(&mut self, class: usize, by: i64) {
        self.0[0].decrease(by);
        self.0[1 + class].decrease(by);
    }
}

/// Frees that wait for other streams, and the peaks that count them.
#[derive(Clone, Copy)]
struct Pending {
    current: [[i64; 2]; 2],
    peak: [[i64; 2]; 2],
    peak_all: [i64; 2],
}

/// All counters of one allocator.
#[derive(Clone, Default)]
pub struct Stats {
    hot: [Hot; 2],
    peak_all: [i64; LANES],
    pending: Option<Pending>,
    segment: Stats3,
    reserved: Stats3,
    oversize_allocations: Stat,
    oversize_segments: Stat,
    pub(crate) num_alloc_retries: i64,
    pub(crate) num_ooms: i64,
    pub(crate) num_sync_all_streams: i64,
    num_device_alloc: i64,
    num_device_free: i64,
    /// Sampled when the allocator is made; -1 is unlimited.
    pub(crate) max_split_size: i64,
}

impl Stats {
    /// A block of `granules` is handed out for `requested` bytes; the free blocks beside others in a segment change
    /// by `split` in number and `split_granules` in size.
    #[inline(always)]
    pub(crate) fn handed_out(
        &mut self,
        class: usize,
        granules: u64,
        requested: u64,
        split: i64,
        split_granules: i64,
        fork: bool,
    ) {
        let bytes = (granules << GRANULE_SHIFT) as i64;
        let split_bytes = split_granules << GRANULE_SHIFT;
        let hot = &mut self.hot[class];
        hot.current[COUNT] += 1;
        hot.allocated[COUNT] += 1;
        hot.current[BYTES] += bytes;
        hot.allocated[BYTES] += bytes;
        hot.current[REQUESTED] += requested as i64;
        hot.allocated[REQUESTED] += requested as i64;
        hot.current[SPLIT] += split;
        hot.allocated[SPLIT] += split.max(0);
        hot.current[SPLIT_BYTES] += split_bytes;
        hot.allocated[SPLIT_BYTES] += split_bytes.max(0);
        let [this, other] = if class == 0 { [&self.hot[0], &self.hot[1]] } else { [&self.hot[1], &self.hot[0]] };
        let mut above = 0;
        for lane in 0..LANES {
            above |= (this.peak[lane] - this.current[lane])
                | (self.peak_all[lane] - this.current[lane] - other.current[lane]);
        }
        if above < 0 {
            self.raise_peaks();
        }
        if fork && self.pending.is_some() {
            self.raise_active_peaks();
        }
    }

    /// A block goes back to the cache at once; its neighbours' merging changes the split lanes.
    #[inline(always)]
    pub(crate) fn returned(&mut self, class: usize, granules: u64, requested: u64, split: i64, split_granules: i64) {
        let hot = &mut self.hot[class];
        hot.current[COUNT] -= 1;
        hot.current[BYTES] -= (granules << GRANULE_SHIFT) as i64;
        hot.current[REQUESTED] -= requested as i64;
        self.splits(class, split, split_granules);
    }

    #[inline(always)]
    fn splits(&mut self, class: usize, split: i64, split_granules: i64) {
        let split_bytes = split_granules << GRANULE_SHIFT;
        let hot = &mut self.hot[class];
        hot.current[SPLIT] += split;
        hot.allocated[SPLIT] += split.max(0);
        hot.current[SPLIT_BYTES] += split_bytes;
        hot.allocated[SPLIT_BYTES] += split_bytes.max(0);
        let [this, other] = if class == 0 { [&self.hot[0], &self.hot[1]] } else { [&self.hot[1], &self.hot[0]] };
        let mut above = 0;
        for lane in [SPLIT, SPLIT_BYTES] {
            above |= (this.peak[lane] - this.current[lane])
                | (self.peak_all[lane] - this.current[lane] - other.current[lane]);
        }
        if above < 0 {
            self.raise_peaks();
        }
    }

    #[cold]
    #[inline(never)]
    fn raise_peaks(&mut self) {
        for lane in 0..LANES {
            for hot in &mut self.hot {
                hot.peak[lane] = hot.peak[lane].max(hot.current[lane]);
            }
            self.peak_all[lane] = self.peak_all[lane].max(self.hot[0].current[lane] + self.hot[1].current[lane]);
        }
    }

    /// A block is freed by its owner and waits for other streams: allocated no more, but active.
    pub(crate) fn free_requested(&mut self, class: usize, granules: u64) {
        let hot = &self.hot;
        let pending = self.pending.get_or_insert_with(|| Pending {
            // Until now every active block was an allocated one.
            current: [[0; 2]; 2],
            peak: [[hot[0].peak[COUNT], hot[0].peak[BYTES]], [hot[1].peak[COUNT], hot[1].peak[BYTES]]],
            peak_all: [self.peak_all[COUNT], self.peak_all[BYTES]],
        });
        let bytes = (granules << GRANULE_SHIFT) as i64;
        pending.current[class][COUNT] += 1;
        pending.current[class][BYTES] += bytes;
        self.hot[class].current[COUNT] -= 1;
        self.hot[class].current[BYTES] -= bytes;
    }

    /// A waiting block goes back to the cache.
    pub(crate) fn free_completed(
        &mut self,
        class: usize,
        granules: u64,
        requested: u64,
        split: i64,
        split_granules: i64,
    ) {
        if let Some(pending) = &mut self.pending {
            pending.current[class][COUNT] -= 1;
            pending.current[class][BYTES] -= (granules << GRANULE_SHIFT) as i64;
        }
        self.hot[class].current[REQUESTED] -= requested as i64;
        self.splits(class, split, split_granules);
    }

    #[cold]
    #[inline(never)]
    fn raise_active_peaks(&mut self) {
        let hot = &self.hot;
        if let Some(pending) = &mut self.pending {
            for lane in [COUNT, BYTES] {
                let active = [0, 1].map(|class: usize| hot[class].current[lane] + pending.current[class][lane]);
                for (class, active) in active.into_iter().enumerate() {
                    pending.peak[class][lane] = pending.peak[class][lane].max(active);
                }
                pending.peak_all[lane] = pending.peak_all[lane].max(active[0] + active[1]);
            }
        }
    }

    /// `cudaMalloc` of a segment.
    pub(crate) fn segment_alloc(&mut self, class: usize, bytes: u64, oversize: bool) {
        self.segment.increase(class, 1);
        self.reserved.increase(class, bytes as i64);
        self.num_device_alloc += 1;
        if oversize {
            self.oversize_segments.increase(1);
        }
    }

    /// `cudaFree` of a segment.
    pub(crate) fn segment_free(&mut self, class: usize, bytes: u64, oversize: bool) {
        self.segment.decrease(class, 1);
        self.reserved.decrease(class, bytes as i64);
        self.num_device_free += 1;
        if oversize {
            self.oversize_segments.decrease(1);
        }
    }

    /// An expandable segment grew.
    pub(crate) fn segment_map(&mut self, class: usize, bytes: u64) {
        self.reserved.increase(class, bytes as i64);
        self.num_device_alloc += 1;
    }

    /// An expandable segment gave pages back.
    pub(crate) fn segment_unmap(&mut self, class: usize, bytes: u64) {
        self.reserved.decrease(class, bytes as i64);
        self.num_device_free += 1;
    }

    pub(crate) fn oversize_allocation(&mut self) {
        self.oversize_allocations.increase(1);
    }

    pub(crate) fn oversize_free(&mut self) {
        self.oversize_allocations.decrease(1);
    }

    /// Whether a free has ever waited, so that active and allocated differ or did.
    pub(crate) fn has_forked(&self) -> bool {
        self.pending.is_some()
    }

    /// Bytes held from the device.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.reserved.0[0].current as u64
    }

    fn hot_stat(&self, lane: usize) -> Stats3 {
        let of = |hot: &Hot| Stat {
            current: hot.current[lane],
            peak: hot.peak[lane],
            allocated: hot.allocated[lane],
            freed: hot.allocated[lane] - hot.current[lane],
        };
        let [small, large] = [of(&self.hot[0]), of(&self.hot[1])];
        let all = Stat {
            current: small.current + large.current,
            peak: self.peak_all[lane],
            allocated: small.allocated + large.allocated,
            freed: small.freed + large.freed,
        };
        Stats3([all, small, large])
    }

    fn active_stat(&self, lane: usize) -> Stats3 {
        let mut stat = self.hot_stat(lane);
        if let Some(pending) = &self.pending {
            let waiting = [0, 1].map(|class: usize| pending.current[class][lane]);
            let waiting = [waiting[0] + waiting[1], waiting[0], waiting[1]];
            let peak = [pending.peak_all[lane], pending.peak[0][lane], pending.peak[1][lane]];
            for (i, stat) in stat.0.iter_mut().enumerate() {
                stat.current += waiting[i];
                stat.freed -= waiting[i];
                stat.peak = peak[i];
            }
        }
        stat
    }

    /// The statistic of that name for both pools, the small and the large one. The names are PyTorch's.
    pub fn get(&self, name: &str) -> Option<[Stat; 3]> {
        let stat = match name {
            "allocation" => self.hot_stat(COUNT),
            "allocated_bytes" => self.hot_stat(BYTES),
            "requested_bytes" => self.hot_stat(REQUESTED),
            "inactive_split" => self.hot_stat(SPLIT),
            "inactive_split_bytes" => self.hot_stat(SPLIT_BYTES),
            "active" => self.active_stat(COUNT),
            "active_bytes" => self.active_stat(BYTES),
            "segment" => self.segment,
            "reserved_bytes" => self.reserved,
            _ => return None,
        };
        Some(stat.0)
    }

    /// A statistic that is not kept by pool, or a counter as a value that only grew.
    pub fn get_single(&self, name: &str) -> Option<Stat> {
        match name {
            "oversize_allocations" => Some(self.oversize_allocations),
            "oversize_segments" => Some(self.oversize_segments),
            _ => None,
        }
    }

    /// A plain counter.
    pub fn counter(&self, name: &str) -> Option<i64> {
        Some(match name {
            "num_alloc_retries" => self.num_alloc_retries,
            "num_ooms" => self.num_ooms,
            "max_split_size" => self.max_split_size,
            "num_sync_all_streams" => self.num_sync_all_streams,
            "num_device_alloc" => self.num_device_alloc,
            "num_device_free" => self.num_device_free,
            _ => return None,
        })
    }

    /// Visits all 122 keys of `memory_stats()` in ascending order.
    pub fn visit(&self, visit: &mut dyn FnMut(&str, i64)) {
        let mut all: Vec<(String, i64)> = Vec::with_capacity(122);
        let fields = |stat: Stat| {
            [("current", stat.current), ("peak", stat.peak), ("allocated", stat.allocated), ("freed", stat.freed)]
        };
        for name in BY_POOL {
            for (pool, stat) in ["all", "small_pool", "large_pool"].into_iter().zip(self.get(name).unwrap_or_default())
            {
                all.extend(fields(stat).map(|(field, value)| (format!("{name}.{pool}.{field}"), value)));
            }
        }
        for name in SINGLE {
            let stat = self.get_single(name).unwrap_or_default();
            all.extend(fields(stat).map(|(field, value)| (format!("{name}.{field}"), value)));
        }
        for name in COUNTERS {
            all.push((name.to_owned(), self.counter(name).unwrap_or_default()));
        }
        all.sort_unstable();
        for (key, value) in &all {
            visit(key, *value);
        }
    }
}

/// Statistics kept by pool.
const BY_POOL: [&str; 9] = [
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
];
/// Statistics with four figures and no pools.
const SINGLE: [&str; 2] = ["oversize_allocations", "oversize_segments"];
/// Plain counters.
const COUNTERS: [&str; 6] =
    ["num_alloc_retries", "num_ooms", "max_split_size", "num_sync_all_streams", "num_device_alloc", "num_device_free"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_122_keys_in_order() {
        let mut keys = Vec::new();
        Stats::default().visit(&mut |key, _| keys.push(key.to_owned()));
        assert_eq!(keys.len(), 122);
        assert!(keys.is_sorted());
    }

    #[test]
    fn a_waiting_free_is_active_and_not_allocated() {
        let mut stats = Stats::default();
        stats.handed_out(0, 2, 1000, 0, 0, true);
        stats.handed_out(0, 2, 1000, 0, 0, true);
        stats.free_requested(0, 2);
        stats.handed_out(0, 4, 2000, 0, 0, true);
        let [all, ..] = stats.get("allocated_bytes").unwrap();
        assert_eq!((all.current, all.peak), (3072, 3072));
        let [all, small, _] = stats.get("active_bytes").unwrap();
        assert_eq!((all.current, all.peak, all.freed), (4096, 4096, 0));
        assert_eq!(all, small);
        stats.free_completed(0, 2, 1000, 0, 0);
        assert_eq!(stats.get("active_bytes").unwrap()[0].current, 3072);
        assert_eq!(stats.get("requested_bytes").unwrap()[0].current, 3000);
    }
}
