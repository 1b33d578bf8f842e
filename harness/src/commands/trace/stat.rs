//! `harness trace stat`: what a trace is like.

use super::{notes, summary};
use harness::exit::Error;
use harness::forms::Table;
use harness::load;
use harness::output::{Output, width};
use harness::size::{bytes, counted, grouped};
use harness::wrap::wrapped;
use std::path::Path;
use workload_gen::{Percentiles, Regularity, RoleStats, TraceStats, plain, plain_path};

/// Runs the command.
pub(super) fn stat(file: &Path, json: bool, out: &mut Output) -> Result<(), Error> {
    let trace = load::named(file)?.load()?.trace;
    let stats = workload_gen::stats(&trace);
    if json {
        let text = serde_json::to_string_pretty(&stats).map_err(|why| Error::Internal(why.to_string()))?;
        return out.line(format_args!("{text}"));
    }
    let width = width();
    let mut row = |name: &str, text: String| out.line(format_args!("{name:<14}{}", wrapped(&text, 14, width)));
    row("trace", format!("{}: {}", plain_path(file), summary(&trace)))?;
    row("source", plain(&trace.header.source).into_owned())?;
    let open =
        if stats.late_frees_open > 0 { format!(", {} of them never", stats.late_frees_open) } else { String::new() };
    let complete = if stats.late_frees == 1 { "completes" } else { "complete" };
    let late = format!("{} {complete} late{open}", grouped(stats.late_frees));
    row("allocations", format!("{} of {} in all", grouped(stats.allocs), bytes(stats.requested_bytes)))?;
    row("frees", format!("{}; {late}", grouped(stats.frees)))?;
    let blocks = |n| counted(n as usize, "block", "blocks");
    row("peak", format!("{} in {} at most", bytes(stats.requested_peak_bytes), blocks(stats.blocks_peak)))?;
    row("at the end", format!("{} in {}", bytes(stats.bytes_at_end), blocks(stats.blocks_at_end)))?;
    row("other events", other_events(&stats))?;
    let allocations = |n| counted(n as usize, "allocation", "allocations");
    for stream in &stats.streams {
        let share = format!("{:#x}: {}, {}", stream.raw, allocations(stream.allocs), bytes(stream.bytes));
        row(&format!("stream {}", stream.stream), share)?;
    }
    for pool in &stats.pools {
        row(&format!("pool {}", pool.pool), format!("{}, {}", allocations(pool.allocs), bytes(pool.bytes)))?;
    }
    if let Some(regularity) = &stats.regularity {
        row("regularity", alike(regularity))?;
    }
    out.line(format_args!(""))?;
    out.text(&percentiles(&stats).text(width))?;
    if !stats.roles.is_empty() {
        out.line(format_args!(""))?;
        out.text(&roles(&stats).text(width))?;
    }
    out.line(format_args!("\nsizes up to     allocations         bytes"))?;
    for class in &stats.size_histogram {
        let (allocs, sum) = (grouped(class.allocs), bytes(class.bytes));
        out.line(format_args!("{:>11}  {allocs:>14}  {sum:>12}", bytes(class.up_to_bytes)))?;
    }
    notes(&trace, out)
}

fn percentiles(stats: &TraceStats) -> Table {
    let row = |name: &str, p: &Percentiles, show: fn(u64) -> String| {
        let values = [p.min, p.p50, p.p90, p.p99, p.max].map(show);
        std::iter::once(name.to_string()).chain(values).collect()
    };
    let rows = [
        row("size", &stats.size, bytes),
        row("size, by bytes", &stats.size_by_bytes, bytes),
        row("lifetime, in events", &stats.lifetime_events, grouped),
        row("lifetime, by bytes", &stats.lifetime_events_by_bytes, grouped),
        row("held bytes", &stats.held_bytes, bytes),
        row("held blocks", &stats.held_blocks, grouped),
    ];
    Table::plain(["", "min", "median", "90 %", "99 %", "max"], rows)
}

fn alike(regularity: &Regularity) -> String {
    let share = |bytes: u64| share(bytes.into(), regularity.bytes.into());
    format!(
        "{} of what {} after the first allocate is in sizes of the one before, {} in the same order",
        share(regularity.same_size_bytes),
        counted(regularity.iterations as usize, "iteration", "iterations"),
        share(regularity.same_order_bytes),
    )
}

/// What the memory is for. Shares over time count each byte for as long as it is held.
fn roles(stats: &TraceStats) -> Table {
    let all: u128 = stats.roles.iter().map(|role| role.byte_events).sum();
    let row = |role: &RoleStats| {
        let text = plain(&role.role).into_owned();
        let of_all = share(role.bytes.into(), stats.requested_bytes.into());
        let over_time = share(role.byte_events, all);
        let at_peak = share(role.peak_bytes.into(), stats.requested_peak_bytes.into());
        vec![text, grouped(role.allocs), bytes(role.bytes), of_all, over_time, at_peak]
    };
    Table::plain(["role", "allocations", "bytes", "of all", "over time", "at the peak"], stats.roles.iter().map(row))
}

fn share(part: u128, all: u128) -> String {
    format!("{:.1} %", if all == 0 { 0.0 } else { part as f64 / all as f64 * 100.0 })
}

fn other_events(stats: &TraceStats) -> String {
    let counts = [
        (stats.uses, "use on another stream", "uses on other streams"),
        (stats.empties, "empty_cache", "empty_cache"),
        (stats.pool_events, "pool call", "pool calls"),
        (stats.settings_changes, "change of settings", "changes of settings"),
        (stats.timing_events, "piece of work or wait", "pieces of work or waits"),
        (stats.marks, "marker", "markers"),
    ];
    let present: Vec<String> = counts
        .iter()
        .filter(|(count, ..)| *count > 0)
        .map(|&(count, one, many)| counted(count as usize, one, many))
        .collect();
    if present.is_empty() { "none".to_string() } else { present.join(", ") }
}
