//! The end of a replay: the segments and the statistics that were recorded there.

use super::plan::Plan;
use allocator_core::{Span, SpanState, Strategy};
use std::collections::BTreeMap;
use workload_gen::import::Sidecar;
use workload_gen::snapshot::BlockState;

/// The one statistic that is not compared: a flush that finds nothing leaves no entry, but it is counted.
const NOT_COMPARED: &str = "num_sync_all_streams";

/// What differs, and where the replay has another block than the recording.
type Difference = (String, Option<u64>);

/// Compares; returns how many statistics agreed, or what differs.
pub(super) fn compare<S: Strategy>(plan: &Plan, strategy: &S, sidecar: Option<&Sidecar>) -> Result<usize, Difference> {
    segments(plan, strategy)?;
    match sidecar {
        Some(sidecar) => statistics(strategy, &sidecar.stats).map_err(|why| (why, None)),
        None => Ok(0),
    }
}

/// A block as both sides describe it: address, bytes, state, the number of its stream.
type Piece = (u64, u64, &'static str, u32);

fn segments<S: Strategy>(plan: &Plan, strategy: &S) -> Result<(), Difference> {
    let mut recorded: Vec<Piece> = Vec::new();
    for segment in &plan.segments {
        let mut end = segment.address;
        for block in &segment.blocks {
            let state = match block.state {
                BlockState::Allocated => "allocated",
                BlockState::PendingFree => "pending",
                BlockState::Inactive => "free",
            };
            recorded.push((block.address, block.size, state, plan.number(segment.stream)));
            if block.address == end {
                end = end.saturating_add(block.size);
            }
        }
        if end != segment.address.saturating_add(segment.total_size) {
            let (address, bytes) = (segment.address, segment.total_size);
            let why = format!("at the end: the blocks of the segment of {bytes} bytes at {address:#x} do not tile it");
            return Err((why, Some(address)));
        }
    }
    recorded.sort_unstable();
    let mut replayed: Vec<Piece> = Vec::new();
    strategy.inspect(&mut |span: Span| {
        let state = match span.state {
            SpanState::Live => "allocated",
            SpanState::Pending => "pending",
            SpanState::Cached => "free",
            SpanState::Unmapped => return,
        };
        replayed.push((span.ptr, span.size, state, span.stream.0));
    });
    replayed.sort_unstable();
    let show = |piece: Option<&Piece>| match piece {
        Some((addr, bytes, state, stream)) => format!("{bytes} {state} bytes at {addr:#x} of stream {stream}"),
        None => "nothing more".to_owned(),
    };
    match (0..recorded.len().max(replayed.len())).find(|&i| recorded.get(i) != replayed.get(i)) {
        None => Ok(()),
        Some(i) => {
            let (want, have) = (recorded.get(i), replayed.get(i));
            let why = format!("at the end: recorded {}; replayed {}", show(want), show(have));
            Err((why, want.into_iter().chain(have).map(|piece| piece.0).min()))
        }
    }
}

fn statistics<S: Strategy>(strategy: &S, recorded: &BTreeMap<String, i64>) -> Result<usize, String> {
    let mut replayed = BTreeMap::new();
    strategy.counters(&mut |key, value| {
        replayed.insert(key.to_owned(), value);
    });
    let mut compared = 0;
    for (key, want) in recorded.iter().filter(|(key, _)| *key != NOT_COMPARED) {
        match replayed.get(key) {
            Some(have) if have == want => compared += 1,
            Some(have) => return Err(format!("at the end: {key} is {want} in the recording, {have} in the replay")),
            // A statistic of another release.
            None => {}
        }
    }
    Ok(compared)
}
