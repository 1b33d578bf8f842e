//! What can be said of a recording before it is replayed: which frees waited, whether the beginning is there, and
//! where the recording contradicts itself.

use std::collections::{BTreeMap, HashMap};
use workload_gen::snapshot::{Action, BlockState, Entry, Segment, Snapshot};

/// Whether an entry tells a decision of the allocator.
pub(super) fn is_decision(action: Action) -> bool {
    !matches!(action, Action::Snapshot | Action::Unknown)
}

/// A recording, read once.
pub(super) struct Plan {
    /// The entries, oldest first.
    pub entries: Vec<Entry>,
    /// By index into the snapshot's stream table: the stream's number, in the order of the raw handles.
    stream_numbers: Vec<u32>,
    /// Raw handles, ascending: a stream's number is its position.
    streams: Vec<u64>,
    /// Private pools of the final segments: a pool's number is its position plus one.
    pub pools: Vec<(u64, u64)>,
    /// The segments at the end.
    pub segments: Vec<Segment>,
    /// Numbers of `free_requested` entries that their completion does not directly follow.
    pub late: Vec<usize>,
    /// Entries at which the recording contradicts itself, with the reason.
    pub contradictions: BTreeMap<usize, String>,
    /// Why the state at the start is not known, if so.
    pub incomplete: Option<String>,
    /// Bytes of segments that existed before the first entry.
    pub reserved_at_start: u64,
    /// Whether memory ever ran short: failed requests are recorded.
    pub has_ooms: bool,
}

impl Plan {
    pub(super) fn new(snapshot: &Snapshot, device: usize) -> Plan {
        let entries: Vec<Entry> = snapshot.devices.get(device).map(|h| h.iter().copied().collect()).unwrap_or_default();
        let segments: Vec<Segment> =
            snapshot.segments.iter().filter(|segment| segment.device as usize == device).cloned().collect();
        let mut named = vec![false; snapshot.streams.len()];
        for entry in &entries {
            if let Some(named) = named.get_mut(entry.stream as usize) {
                *named = true;
            }
        }
        let mut streams: Vec<u64> =
            snapshot.streams.iter().zip(named).filter(|(_, n)| *n).map(|(&raw, _)| raw).collect();
        streams.extend(segments.iter().map(|segment| segment.stream));
        streams.push(0);
        streams.sort_unstable();
        streams.dedup();
        let number = |raw: &u64| streams.binary_search(raw).unwrap_or(0) as u32;
        let stream_numbers = snapshot.streams.iter().map(number).collect();
        let mut pools: Vec<(u64, u64)> = segments.iter().map(|segment| segment.pool).filter(|&p| p != (0, 0)).collect();
        pools.sort_unstable();
        pools.dedup();
        let has_ooms = entries.iter().any(|entry| entry.action == Action::Oom);
        let mut plan = Plan {
            streams,
            stream_numbers,
            pools,
            late: Vec::new(),
            contradictions: BTreeMap::new(),
            incomplete: None,
            reserved_at_start: 0,
            has_ooms,
            entries,
            segments,
        };
        plan.look_back();
        plan.pair_frees();
        plan
    }

    /// The number of an entry's stream.
    pub(super) fn stream(&self, entry: &Entry) -> u32 {
        self.stream_numbers.get(entry.stream as usize).copied().unwrap_or(0)
    }

    /// The number of the stream with a raw handle.
    pub(super) fn number(&self, raw: u64) -> u32 {
        self.streams.binary_search(&raw).unwrap_or(0) as u32
    }

    /// The number of a segment's pool.
    pub(super) fn pool(&self, segment: &Segment) -> u32 {
        self.pools.binary_search(&segment.pool).map_or(0, |at| at as u32 + 1)
    }

    /// The number of the next decision from `at` on, or the number of entries.
    pub(super) fn next(&self, at: usize) -> usize {
        let skipped = self.entries[at.min(self.entries.len())..].iter().take_while(|entry| !is_decision(entry.action));
        at + skipped.count()
    }

    /// Undoes the history on the final segments. What is left existed before it.
    fn look_back(&mut self) {
        if !self.entries.iter().any(|entry| is_decision(entry.action)) {
            self.incomplete = Some("no history is recorded: record it before the first allocation".to_owned());
            return;
        }
        let mut ranges: BTreeMap<u64, u64> = BTreeMap::new();
        for segment in &self.segments {
            add(&mut ranges, segment.address, segment.total_size);
        }
        let mut lived_before: HashMap<u64, bool> = HashMap::new();
        for entry in self.entries.iter().rev() {
            match entry.action {
                Action::SegmentAlloc | Action::SegmentMap => remove(&mut ranges, entry.addr, entry.size),
                Action::SegmentFree | Action::SegmentUnmap => add(&mut ranges, entry.addr, entry.size),
                Action::FreeRequested => drop(lived_before.insert(entry.addr, true)),
                Action::Alloc => drop(lived_before.insert(entry.addr, false)),
                _ => {}
            }
        }
        let inside = |addr: u64| {
            let below = ranges.range(..=addr).next_back();
            below.is_some_and(|(&start, &bytes)| addr - start < bytes)
        };
        let live = lived_before.iter().filter(|&(&addr, &lived)| lived && inside(addr)).count();
        // One segment without live blocks is no lost beginning but a lost entry, which the replay will meet.
        if ranges.len() > 1 || live > 0 {
            let bytes = ranges.values().fold(0u64, |sum, &bytes| sum.saturating_add(bytes));
            self.reserved_at_start = bytes;
            self.incomplete = Some(format!(
                "the history lost its beginning: {} segments of {bytes} bytes with at least {live} live blocks are \
                 older than its first entry; record from the first allocation on, with a larger max_entries",
                ranges.len()
            ));
        }
    }

    /// Finds each free's completion, and sizes that disagree between an allocation, its free and its end.
    fn pair_frees(&mut self) {
        struct Open {
            alloc: usize,
            requested: Option<usize>,
        }
        let mut open: HashMap<u64, Open> = HashMap::new();
        for number in 0..self.entries.len() {
            let entry = self.entries[number];
            match entry.action {
                Action::Alloc => {
                    let before = open.insert(entry.addr, Open { alloc: number, requested: None });
                    if let Some(Open { requested: Some(requested), .. }) = before {
                        // Memory that waits for a stream cannot be handed out: the completion is missing.
                        let at = self.next(requested + 1);
                        self.contradict(
                            at,
                            format!("{:#x} is allocated again, but its free is never completed", entry.addr),
                        );
                    }
                }
                Action::FreeRequested => {
                    if let Some(block) = open.get_mut(&entry.addr) {
                        block.requested.get_or_insert(number);
                    }
                    let next = self.next(number + 1);
                    let follows = self.entries.get(next);
                    if !follows.is_some_and(|n| n.action == Action::FreeCompleted && n.addr == entry.addr) {
                        self.late.push(number);
                    }
                }
                Action::FreeCompleted => {
                    if let Some(Open { alloc, requested: Some(requested) }) = open.remove(&entry.addr) {
                        self.agree([alloc, requested, number]);
                    }
                }
                _ => {}
            }
        }
        let last: HashMap<u64, (u64, BlockState)> = self
            .segments
            .iter()
            .flat_map(|segment| &segment.blocks)
            .map(|block| (block.address, (block.requested_size, block.state)))
            .collect();
        let mut ends: Vec<(u64, Open)> = open.into_iter().collect();
        ends.sort_unstable_by_key(|(_, open)| open.alloc);
        for (addr, Open { alloc, requested }) in ends {
            let state = last.get(&addr);
            match (requested, state) {
                (None, Some(&(size, BlockState::Allocated))) if size != self.entries[alloc].size => {
                    let recorded = self.entries[alloc].size;
                    self.contradict(alloc, format!("{recorded} bytes, but the block at the end has {size}"));
                }
                (Some(requested), state) if !self.segments.is_empty() => {
                    if self.entries[alloc].size != self.entries[requested].size {
                        self.contradict(requested, "the size is not that of the allocation".to_owned());
                    }
                    if !matches!(state, Some((_, BlockState::PendingFree))) {
                        let at = self.next(requested + 1);
                        self.contradict(
                            at,
                            format!("the free of {addr:#x} is never completed, but it does not wait at the end"),
                        );
                    }
                }
                _ => {}
            }
        }
    }

    /// Of three sizes that should be one, the odd one is wrong; so for streams.
    fn agree(&mut self, numbers: [usize; 3]) {
        let entries = numbers.map(|number| self.entries[number]);
        if let Some((odd, other)) = odd_one(entries.map(|entry| entry.size)) {
            let why = format!("{} bytes, but the block has {}", entries[odd].size, entries[other].size);
            self.contradict(numbers[odd], why);
        } else if let Some((odd, _)) = odd_one(entries.map(|entry| u64::from(entry.stream))) {
            self.contradict(numbers[odd], "the block is on another stream".to_owned());
        }
    }

    fn contradict(&mut self, at: usize, why: String) {
        self.contradictions.entry(at).or_insert(why);
    }
}

/// The position of the one of three values that is unlike the others, and of one of those. If all differ, the last.
fn odd_one(values: [u64; 3]) -> Option<(usize, usize)> {
    match values {
        [a, b, c] if a == b && b == c => None,
        [_, b, c] if b == c => Some((0, 1)),
        [a, _, c] if a == c => Some((1, 0)),
        _ => Some((2, 0)),
    }
}

/// Adds a range, merging it with its neighbours.
fn add(ranges: &mut BTreeMap<u64, u64>, mut start: u64, bytes: u64) {
    let mut end = start.saturating_add(bytes);
    while let Some((&other, &size)) = ranges.range(..=end).next_back()
        && other.saturating_add(size) >= start
    {
        ranges.remove(&other);
        (start, end) = (start.min(other), end.max(other.saturating_add(size)));
    }
    ranges.insert(start, end - start);
}

/// Takes a range out.
fn remove(ranges: &mut BTreeMap<u64, u64>, start: u64, bytes: u64) {
    let end = start.saturating_add(bytes);
    while let Some((&other, &size)) = ranges.range(..end).next_back()
        && other.saturating_add(size) > start
    {
        ranges.remove(&other);
        if other.saturating_add(size) > end {
            ranges.insert(end, other.saturating_add(size) - end);
        }
        if other < start {
            ranges.insert(other, start - other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge_and_split() {
        let mut ranges = BTreeMap::new();
        add(&mut ranges, 10, 10);
        add(&mut ranges, 30, 10);
        add(&mut ranges, 20, 10);
        assert_eq!(ranges, BTreeMap::from([(10, 30)]));
        remove(&mut ranges, 15, 10);
        assert_eq!(ranges, BTreeMap::from([(10, 5), (25, 15)]));
        remove(&mut ranges, 0, 100);
        assert!(ranges.is_empty());
    }
}
