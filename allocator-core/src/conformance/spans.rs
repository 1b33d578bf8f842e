//! Checks what [`crate::Strategy::inspect`] tells against the suite's own map.

use super::memory::{Memory, Placed};
use super::op::{Bytes, name};
use super::{Broken, Rule};
use crate::strategy::{Span, SpanState};
use std::collections::BTreeMap;

/// The spans must be in order, tile their segments, lie in held memory and show each live block once.
pub(super) fn check(spans: &[Span], blocks: &[Placed], memory: &Memory) -> Result<(), Broken> {
    let broken = |text: String| Err(Broken::new(Rule::Inspect, text));
    let mut blocks: BTreeMap<u64, &Placed> = blocks.iter().map(|block| (block.ptr, block)).collect();
    let mut covered: Vec<(u64, u64)> = Vec::new();
    let mut before: Option<&Span> = None;
    for span in spans {
        let Span { segment, ptr, size, state, stream, pool } = *span;
        let here = format!("the {state:?} span of {} at {ptr:#x}", Bytes(size));
        if size == 0 {
            return broken(format!("{here} is empty"));
        }
        match before {
            Some(last) if last.segment == segment && last.ptr + last.size != ptr => {
                return broken(format!(
                    "{here} does not follow the one before, which ends at {:#x}",
                    last.ptr + last.size
                ));
            }
            Some(last) if last.segment != segment && last.ptr + last.size > segment => {
                return broken(format!("{here} is out of order or overlaps segment {:#x}", last.segment));
            }
            Some(last) if last.segment == segment => {}
            _ if segment != ptr => return broken(format!("{here} leaves the start of segment {segment:#x} out")),
            _ => {}
        }
        before = Some(span);
        if state == SpanState::Unmapped {
            if memory.any_behind(ptr, size) {
                return broken(format!("{here} has memory"));
            }
            continue;
        }
        let Some(ranges) = memory.behind(ptr, size) else {
            return broken(format!("{here} lies outside the memory that the strategy holds"));
        };
        covered.extend(ranges);
        if state == SpanState::Live {
            let Some(block) = blocks.remove(&ptr) else { return broken(format!("{here} is no live block")) };
            if block.size > size || (block.stream, block.pool) != (stream, pool) {
                let shown = format!("stream {stream}, pool {}", pool.0);
                let (who, own) = (name(block.id), format!("stream {}, pool {}", block.stream, block.pool.0));
                return broken(format!("{here} ({shown}) does not describe {who} ({}, {own})", Bytes(block.size)));
            }
        }
    }
    if let Some(block) = blocks.values().next() {
        return broken(format!("{} is live at {:#x} and no Live span begins there", name(block.id), block.ptr));
    }
    let (shown, reachable) = (total(covered), memory.reachable());
    if shown != reachable {
        return broken(format!("the spans show {shown} bytes of the {reachable} that the strategy holds"));
    }
    Ok(())
}

/// Bytes of the union of ranges.
fn total(mut ranges: Vec<(u64, u64)>) -> u64 {
    ranges.sort_unstable();
    let mut reached = 0;
    let mut bytes = 0;
    for (at, size) in ranges {
        let end = at + size;
        bytes += end.saturating_sub(at.max(reached));
        reached = reached.max(end);
    }
    bytes
}
