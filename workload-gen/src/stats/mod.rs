//! What a trace is like, in numbers.

mod percentiles;
mod regularity;
mod roles;

pub use percentiles::Percentiles;
pub use regularity::Regularity;
pub use roles::RoleStats;

use crate::trace::{Event, Trace};
use allocator_core::{PoolId, StreamId};
use regularity::Iterations;
use roles::Roles;
use serde::Serialize;
use std::collections::BTreeMap;

/// Statistics of a trace. Bytes are requested bytes; times are counted in events.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct TraceStats {
    /// All events.
    pub events: u64,
    /// Allocations.
    pub allocs: u64,
    /// Frees.
    pub frees: u64,
    /// Frees that wait for a ticket.
    pub late_frees: u64,
    /// Of these, how many never complete.
    pub late_frees_open: u64,
    /// Uses of a block on another stream.
    pub uses: u64,
    /// Calls of `empty_cache`, of everything or of one pool.
    pub empties: u64,
    /// Changes of settings or of the memory limit.
    pub settings_changes: u64,
    /// Work, waits, synchronisations and other host time.
    pub timing_events: u64,
    /// Calls on private pools.
    pub pool_events: u64,
    /// Markers.
    pub marks: u64,
    /// Of these, those that start with `iteration`.
    pub iterations: u64,
    /// Bytes of all allocations.
    pub requested_bytes: u64,
    /// The most bytes at a time in blocks that are live or wait for a ticket.
    pub requested_peak_bytes: u64,
    /// The event after which that was so for the first time.
    pub requested_peak_event: u64,
    /// The most blocks at a time that are live or wait for a ticket.
    pub blocks_peak: u64,
    /// Blocks that are never freed.
    pub blocks_at_end: u64,
    /// Their bytes.
    pub bytes_at_end: u64,
    /// Sizes of allocations, each allocation counted once.
    pub size: Percentiles,
    /// Sizes of allocations, each byte counted once: half of all bytes are in allocations of at most `p50`.
    pub size_by_bytes: Percentiles,
    /// Sizes by powers of two, without the empty classes.
    pub size_histogram: Vec<SizeClass>,
    /// Events between the allocation and the free of a block, for blocks that are freed.
    pub lifetime_events: Percentiles,
    /// The same, each byte counted once.
    pub lifetime_events_by_bytes: Percentiles,
    /// Bytes that are live or wait for a ticket after each allocation, free and completion.
    pub held_bytes: Percentiles,
    /// Blocks that are.
    pub held_blocks: Percentiles,
    /// Whether iterations are alike, if markers tell at least two.
    pub regularity: Option<Regularity>,
    /// What the allocations are for, by the first word of their labels; empty if the trace has no labels.
    pub roles: Vec<RoleStats>,
    /// The streams that allocate.
    pub streams: Vec<StreamStats>,
    /// The private pools that are allocated from.
    pub pools: Vec<PoolStats>,
}

/// Allocations of sizes above one power of two and up to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct SizeClass {
    /// The greatest size of the class.
    pub up_to_bytes: u64,
    /// Allocations.
    pub allocs: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What a stream allocates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct StreamStats {
    /// Its number.
    pub stream: u32,
    /// Its raw handle.
    pub raw: u64,
    /// Allocations.
    pub allocs: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What is allocated from a private pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct PoolStats {
    /// Its number.
    pub pool: u32,
    /// The framework's pair.
    pub pair: (u64, u64),
    /// Allocations.
    pub allocs: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A block between its allocation and its end.
#[derive(Clone, Copy, Default)]
struct Held {
    size: u64,
    since: u64,
    role: usize,
}

#[derive(Clone, Copy, Default)]
struct Share {
    allocs: u64,
    bytes: u64,
}

impl Share {
    fn add(&mut self, size: u64) {
        self.allocs += 1;
        self.bytes = self.bytes.saturating_add(size);
    }
}

/// Computes the statistics of a trace that [`crate::check()`] accepts. In one that it does not, events on empty slots
/// count as events and nothing else.
pub fn stats(trace: &Trace) -> TraceStats {
    let mut stats = TraceStats { events: trace.events.len() as u64, ..TraceStats::default() };
    let mut slots: BTreeMap<u32, Held> = BTreeMap::new();
    let mut waiting: BTreeMap<u32, Held> = BTreeMap::new();
    let mut sizes = Vec::new();
    let mut lifetimes = Vec::new();
    let mut held_bytes = Vec::new();
    let mut held_blocks = Vec::new();
    let mut iterations = Iterations::default();
    let mut roles = Roles::new(trace);
    let mut classes: BTreeMap<u64, Share> = BTreeMap::new();
    let mut streams: BTreeMap<StreamId, Share> = BTreeMap::new();
    let mut pools: BTreeMap<PoolId, Share> = BTreeMap::new();
    let (mut bytes, mut blocks) = (0u64, 0u64);
    for (number, event) in (0..).zip(&trace.events) {
        match *event {
            Event::Alloc { slot, size, stream, pool } => {
                stats.allocs += 1;
                stats.requested_bytes = stats.requested_bytes.saturating_add(size);
                sizes.push(size);
                classes.entry(size.checked_next_power_of_two().unwrap_or(u64::MAX)).or_default().add(size);
                streams.entry(stream).or_default().add(size);
                if pool != PoolId::DEFAULT {
                    pools.entry(pool).or_default().add(size);
                }
                iterations.allocated(size);
                slots.insert(slot, Held { size, since: number, role: roles.allocated(size) });
                bytes = bytes.saturating_add(size);
                blocks += 1;
                stats.blocks_peak = stats.blocks_peak.max(blocks);
                if bytes > stats.requested_peak_bytes {
                    (stats.requested_peak_bytes, stats.requested_peak_event) = (bytes, number);
                    roles.peak();
                }
            }
            Event::Free { slot, ticket } => {
                stats.frees += 1;
                stats.late_frees += u64::from(ticket.is_some());
                if let Some(held) = slots.remove(&slot) {
                    lifetimes.push((number - held.since, held.size));
                    match ticket {
                        Some(ticket) => {
                            waiting.insert(ticket, held);
                        }
                        None => {
                            bytes = bytes.saturating_sub(held.size);
                            blocks -= 1;
                            roles.ended(held.role, held.size, number - held.since);
                        }
                    }
                }
            }
            Event::Done { ticket } => {
                if let Some(held) = waiting.remove(&ticket) {
                    bytes = bytes.saturating_sub(held.size);
                    blocks -= 1;
                    roles.ended(held.role, held.size, number - held.since);
                }
            }
            Event::Use { .. } => stats.uses += 1,
            Event::Work { .. } | Event::Wait { .. } | Event::Sync { .. } | Event::Host { .. } => {
                stats.timing_events += 1
            }
            Event::Empty { .. } => stats.empties += 1,
            Event::Pool { .. } => stats.pool_events += 1,
            Event::Limit { .. } | Event::Settings { .. } => stats.settings_changes += 1,
            Event::Mark { text } => {
                stats.marks += 1;
                let iteration = trace.texts.get(text as usize).is_some_and(|text| text.starts_with("iteration"));
                if iteration {
                    stats.iterations += 1;
                    iterations.begin();
                }
            }
        }
        if let Event::Alloc { .. } | Event::Free { .. } | Event::Done { .. } = event {
            held_bytes.push(bytes);
            held_blocks.push(blocks);
        }
    }
    for held in slots.values().chain(waiting.values()) {
        roles.ended(held.role, held.size, stats.events - held.since);
    }
    stats.late_frees_open = waiting.len() as u64;
    stats.blocks_at_end = slots.len() as u64;
    stats.bytes_at_end = slots.values().map(|held| held.size).fold(0, u64::saturating_add);
    stats.size = Percentiles::new(sizes.iter().copied());
    stats.size_by_bytes = Percentiles::weighted(sizes.iter().map(|&size| (size, size)));
    stats.lifetime_events = Percentiles::new(lifetimes.iter().map(|&(events, _)| events));
    stats.lifetime_events_by_bytes = Percentiles::weighted(lifetimes);
    stats.held_bytes = Percentiles::new(held_bytes);
    stats.held_blocks = Percentiles::new(held_blocks);
    stats.regularity = iterations.end();
    stats.roles = roles.end();
    stats.size_histogram = classes
        .into_iter()
        .map(|(up_to_bytes, Share { allocs, bytes })| SizeClass { up_to_bytes, allocs, bytes })
        .collect();
    stats.streams = streams
        .into_iter()
        .map(|(stream, Share { allocs, bytes })| {
            let raw = trace.header.streams.get(stream.index()).copied().unwrap_or(0);
            StreamStats { stream: stream.0, raw, allocs, bytes }
        })
        .collect();
    stats.pools = pools
        .into_iter()
        .map(|(pool, Share { allocs, bytes })| {
            let pair = trace.header.pools.get(pool.0 as usize - 1).copied().unwrap_or((0, 0));
            PoolStats { pool: pool.0, pair, allocs, bytes }
        })
        .collect();
    stats
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_a_small_trace() {
        let text = "gpu-alloc-trace 1\n# streams = 0:0x0 1:0x20\n# pools = 1:0,7\n\
                    m iteration 1\np create 1\na 0 1000 0\na 1 3000 1 p1\nu 1 0\nf 1 !0\na 1 24 0\nc 0\nf 0\n\
                    m iteration 2\ne\nf 1 !0\na 0 7 0\nt 5\nl 9\n";
        let stats = stats(&crate::format::read(text.as_bytes(), "x").unwrap());
        assert_eq!((stats.events, stats.allocs, stats.frees, stats.uses), (15, 4, 3, 1));
        assert_eq!((stats.late_frees, stats.late_frees_open, stats.empties), (2, 1, 1));
        assert_eq!((stats.marks, stats.iterations, stats.timing_events, stats.settings_changes), (2, 2, 1, 1));
        assert_eq!((stats.requested_bytes, stats.requested_peak_bytes, stats.requested_peak_event), (4031, 4024, 6));
        assert_eq!((stats.blocks_peak, stats.blocks_at_end, stats.bytes_at_end), (3, 1, 7));
        assert_eq!(stats.size, Percentiles { min: 7, p50: 24, p90: 3000, p99: 3000, max: 3000 });
        assert_eq!(stats.size_by_bytes.p50, 3000);
        assert_eq!(stats.lifetime_events, Percentiles { min: 2, p50: 5, p90: 6, p99: 6, max: 6 });
        assert_eq!(stats.lifetime_events_by_bytes, Percentiles { min: 2, p50: 2, p90: 6, p99: 6, max: 6 });
        assert_eq!(stats.held_bytes, Percentiles { min: 24, p50: 1000, p90: 4024, p99: 4024, max: 4024 });
        assert_eq!(stats.held_blocks, Percentiles { min: 1, p50: 2, p90: 3, p99: 3, max: 3 });
        let regularity = Regularity { iterations: 1, bytes: 7, same_size_bytes: 0, same_order_bytes: 0 };
        assert_eq!((stats.regularity, stats.roles.len()), (Some(regularity), 0));
        assert_eq!(stats.streams[1], StreamStats { stream: 1, raw: 0x20, allocs: 1, bytes: 3000 });
        assert_eq!(stats.pools, [PoolStats { pool: 1, pair: (0, 7), allocs: 1, bytes: 3000 }]);
        assert_eq!(stats.size_histogram[0], SizeClass { up_to_bytes: 8, allocs: 1, bytes: 7 });
        assert_eq!(stats.size_histogram.len(), 4);
    }

    #[test]
    fn an_empty_trace_has_none() {
        let empty = stats(&Trace::default());
        assert_eq!(empty, TraceStats::default());
    }
}
