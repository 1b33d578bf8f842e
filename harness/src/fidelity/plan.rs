//! A recording, read once for all replays: its entries, its streams and pools by number, and whether its beginning is
//! there.

use super::pairs::Pairs;
use super::ranges::Ranges;
use std::collections::{BTreeSet, HashMap};
use workload_gen::snapshot::{Action, Entry, Segment, Snapshot};

/// Whether an entry tells a decision of the allocator.
pub(super) fn is_decision(action: Action) -> bool {
    !matches!(action, Action::Snapshot | Action::Unknown)
}

/// The number of the next decision from `at` on, or a number beyond all entries.
pub(super) fn next_decision(entries: &[Entry], at: usize) -> usize {
    let ahead = entries.get(at..).unwrap_or_default();
    at + ahead.iter().take_while(|entry| !is_decision(entry.action)).count()
}

/// The most streams and private pools that are followed: each stream has its own free lists in each pool, which are
/// 256 KiB in our caching allocator. PyTorch makes some hundred.
pub(super) const MAX_FREE_LISTS: usize = 1000;

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
    /// Which frees waited, and whether the entries agree with each other.
    pub pairs: Pairs,
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
            pairs: Pairs::new(&entries, &segments),
            incomplete: None,
            reserved_at_start: 0,
            has_ooms,
            entries,
            segments,
        };
        plan.look_back();
        plan
    }

    /// See [`next_decision`].
    pub(super) fn next(&self, at: usize) -> usize {
        next_decision(&self.entries, at)
    }

    /// The number of an entry's stream.
    pub(super) fn stream(&self, entry: &Entry) -> u32 {
        self.stream_numbers.get(entry.stream as usize).copied().unwrap_or(0)
    }

    /// The number of the stream with a raw handle.
    pub(super) fn number(&self, raw: u64) -> u32 {
        self.streams.binary_search(&raw).unwrap_or(0) as u32
    }

    /// How many streams there are.
    pub(super) fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// The number of a segment's pool.
    pub(super) fn pool(&self, segment: &Segment) -> u32 {
        self.pools.binary_search(&segment.pool).map_or(0, |at| at as u32 + 1)
    }

    /// Undoes the history on the final segments. What is left existed before it.
    fn look_back(&mut self) {
        let private = self.segments.iter().filter(|segment| segment.pool != (0, 0));
        let pairs: BTreeSet<_> = private.map(|segment| (segment.pool, segment.stream)).collect();
        let free_lists = self.streams.len() + pairs.len();
        if free_lists > MAX_FREE_LISTS {
            self.incomplete = Some(format!(
                "{free_lists} streams in pools, where at most {MAX_FREE_LISTS} are followed: this is no recording of \
                 PyTorch's"
            ));
            return;
        }
        if !self.entries.iter().any(|entry| is_decision(entry.action)) {
            self.incomplete = Some("no history is recorded: record it before the first allocation".to_owned());
            return;
        }
        let mut older = Ranges::default();
        for segment in &self.segments {
            older.add(segment.address, segment.total_size);
        }
        let mut lived_before: HashMap<u64, bool> = HashMap::new();
        for entry in self.entries.iter().rev() {
            match entry.action {
                Action::SegmentAlloc | Action::SegmentMap => older.remove(entry.addr, entry.size),
                Action::SegmentFree | Action::SegmentUnmap => older.add(entry.addr, entry.size),
                Action::FreeRequested => drop(lived_before.insert(entry.addr, true)),
                Action::Alloc => drop(lived_before.insert(entry.addr, false)),
                _ => {}
            }
        }
        let live = lived_before.iter().filter(|&(&addr, &lived)| lived && older.overlap(addr, 1)).count();
        // One segment without live blocks is no lost beginning but a lost entry, which the replay will meet.
        if older.len() > 1 || live > 0 {
            let bytes = older.bytes();
            self.reserved_at_start = bytes;
            self.incomplete = Some(format!(
                "the history lost its beginning: {} segments of {bytes} bytes with at least {live} live blocks are \
                 older than its first entry; record from the first allocation on, with a larger max_entries",
                older.len()
            ));
        }
    }
}
