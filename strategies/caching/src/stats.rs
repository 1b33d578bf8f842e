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

/// The lanes of one pool.
///
/// What is there now is `up` less what was taken off, which is `bar - cap`. So a call that adds to a lane changes one
/// number and compares it with another, and a call that takes off changes one number.
#[derive(Clone, Copy, Default)]
struct Hot {
    /// Sum of all increases.
    up: [i64; LANES],
    /// Sum of all decreases, plus `cap`: beyond this value of `up` there may be a new peak.
    bar: [i64; LANES],
    /// Highest value so far.
    peak: [i64; LANES],
    /// A lane may have this value without a new peak, be it of this pool or of both together: the caps of the two
    /// pools are not above their peaks, and their sum is not above the peak of both. When one is passed they are set
    /// anew.
    cap: [i64; LANES],
}

impl Hot {
    #[inline(always)]
    fn current(&self, lane: usize) -> i64 {
        self.up[lane] - self.freed(lane)
    }

    #[inline(always)]
    fn freed(&self, lane: usize) -> i64 {
        self.bar[lane] - self.cap[lane]
    }

    /// Adds to a lane. Negative: there may be a new peak.
    #[inline(always)]
    fn add(&mut self, lane: usize, by: i64) -> i64 {
        self.up[lane] += by;
        self.bar[lane] - self.up[lane]
    }

    /// Changes the lanes of split free blocks. No call makes them more but not larger. Negative: there may be a new
    /// peak.
    #[inline(always)]
    fn change_splits(&mut self, count: i64, granules: i64) -> i64 {
        let bytes = granules << GRANULE_SHIFT;
        if granules <= 0 {
            self.bar[SPLIT] -= count;
            self.bar[SPLIT_BYTES] -= bytes;
            return 0;
        }
        let fewer = count & count >> 63;
        self.bar[SPLIT] -= fewer;
        self.add(SPLIT, count - fewer) | self.add(SPLIT_BYTES, bytes)
    }
}

/// The four figures of one statistic.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Stat {
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
    /// by `splits` in number and `split_granules` in size.
    #[inline(always)]
    pub(crate) fn handed_out(&mut self, class: usize, granules: u64, requested: u64, splits: i64, split_granules: i64) {
        let hot = &mut self.hot[class];
        let room = hot.add(COUNT, 1)
            | hot.add(BYTES, (granules << GRANULE_SHIFT) as i64)
            | hot.add(REQUESTED, requested as i64)
            | hot.change_splits(splits, split_granules);
        if room < 0 {
            self.raise_peaks();
        }
    }

    /// A block goes back to the cache at once; its neighbours' merging changes the split lanes.
    #[inline(always)]
    pub(crate) fn returned(&mut self, class: usize, granules: u64, requested: u64, splits: i64, split_granules: i64) {
        let hot = &mut self.hot[class];
        hot.bar[COUNT] += 1;
        hot.bar[BYTES] += (granules << GRANULE_SHIFT) as i64;
        self.cached(class, requested, splits, split_granules);
    }

    #[inline(always)]
    fn cached(&mut self, class: usize, requested: u64, splits: i64, split_granules: i64) {
        let hot = &mut self.hot[class];
        hot.bar[REQUESTED] += requested as i64;
        if hot.change_splits(splits, split_granules) < 0 {
            self.raise_peaks();
        }
    }

    /// Raises the peaks that were passed, and shares out what is left below the peaks of both pools together.
    #[cold]
    #[inline(never)]
    fn raise_peaks(&mut self) {
        let [small, large] = &mut self.hot;
        for lane in 0..LANES {
            let current = [small.current(lane), large.current(lane)];
            small.peak[lane] = small.peak[lane].max(current[0]);
            large.peak[lane] = large.peak[lane].max(current[1]);
            let all = &mut self.peak_all[lane];
            *all = (*all).max(current[0] + current[1]);
            let half = (*all - current[0] - current[1]) / 2;
            let small_cap = small.peak[lane].min(current[0] + half);
            let large_cap = large.peak[lane].min(*all - small_cap);
            for (hot, cap) in [(&mut *small, small_cap), (&mut *large, large_cap)] {
                hot.bar[lane] += cap - hot.cap[lane];
                hot.cap[lane] = cap;
            }
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
        self.hot[class].bar[COUNT] += 1;
        self.hot[class].bar[BYTES] += bytes;
    }

    /// A waiting block goes back to the cache.
    pub(crate) fn free_completed(
        &mut self,
        class: usize,
        granules: u64,
        requested: u64,
        splits: i64,
        split_granules: i64,
    ) {
        if let Some(pending) = &mut self.pending {
            pending.current[class][COUNT] -= 1;
            pending.current[class][BYTES] -= (granules << GRANULE_SHIFT) as i64;
        }
        self.cached(class, requested, splits, split_granules);
    }

    /// To be called after a block was handed out: the active statistics may have new peaks of their own.
    pub(crate) fn raise_active_peaks(&mut self) {
        let hot = &self.hot;
        if let Some(pending) = &mut self.pending {
            for lane in [COUNT, BYTES] {
                let active = [0, 1].map(|class: usize| hot[class].current(lane) + pending.current[class][lane]);
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
            current: hot.current(lane),
            peak: hot.peak[lane],
            allocated: hot.up[lane],
            freed: hot.freed(lane),
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
    pub(crate) fn get(&self, name: &str) -> Option<[Stat; 3]> {
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

    /// A statistic that is not kept by pool.
    pub(crate) fn get_single(&self, name: &str) -> Option<Stat> {
        match name {
            "oversize_allocations" => Some(self.oversize_allocations),
            "oversize_segments" => Some(self.oversize_segments),
            _ => None,
        }
    }

    /// A plain counter.
    fn counter(&self, name: &str) -> Option<i64> {
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
    pub(crate) fn visit(&self, visit: &mut dyn FnMut(&str, i64)) {
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

    /// Random calls against statistics that are added up plainly.
    #[test]
    fn peaks_are_exact() {
        let mut stats = Stats::default();
        let mut model = [Stats3::default(); LANES];
        let mut state = 1u64;
        let mut random = move |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        let change = |stat: &mut Stats3, class: usize, by: i64| {
            if by < 0 { stat.decrease(class, -by) } else { stat.increase(class, by) }
        };
        let mut live: Vec<(usize, u64, u64)> = Vec::new();
        for step in 0..20_000u64 {
            let splits = random(4) as i64 - 2;
            let split_granules = if splits > 0 { 1 + random(40) as i64 } else { random(80) as i64 - 40 };
            // Grow for a while, then shrink, in one pool more than in the other, and slowly near the peak.
            let grow = random(10) < if step / 3_000 % 2 == 0 { 6 } else { 4 };
            let (class, bytes, requested) = if grow || live.is_empty() {
                let (class, granules) = (usize::from(random(3) == 0), 1 + random(9));
                let requested = granules * 512 - random(512);
                stats.handed_out(class, granules, requested, splits, split_granules);
                live.push((class, granules, requested));
                change(&mut model[COUNT], class, 1);
                (class, granules as i64 * 512, requested as i64)
            } else {
                let (class, granules, requested) = live.swap_remove(random(live.len() as u64) as usize);
                stats.returned(class, granules, requested, splits, split_granules);
                change(&mut model[COUNT], class, -1);
                (class, -(granules as i64) * 512, -(requested as i64))
            };
            for (lane, by) in
                [(BYTES, bytes), (REQUESTED, requested), (SPLIT, splits), (SPLIT_BYTES, split_granules * 512)]
            {
                change(&mut model[lane], class, by);
            }
            for (lane, want) in model.iter().enumerate() {
                assert_eq!(stats.hot_stat(lane).0, want.0, "lane {lane} after {step} calls");
            }
        }
    }

    #[test]
    fn a_waiting_free_is_active_and_not_allocated() {
        let mut stats = Stats::default();
        stats.handed_out(0, 2, 1000, 0, 0);
        stats.handed_out(0, 2, 1000, 0, 0);
        stats.free_requested(0, 2);
        stats.handed_out(0, 4, 2000, 0, 0);
        stats.raise_active_peaks();
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
