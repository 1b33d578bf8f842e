//! `harness trace`: importing, printing, summarising and checking traces.

use crate::args::{ImportArgs, TraceCommand};
use harness::exit::Error;
use harness::forms::Table;
use harness::interrupt::Interrupt;
use harness::load::{self, Unread};
use harness::output::{Output, width};
use harness::size::{bytes, counted, grouped};
use harness::wrap::wrapped;
use std::path::{Path, PathBuf};
use workload_gen::format;
use workload_gen::import::ImportError;
use workload_gen::{Percentiles, Trace, TraceStats, plain, plain_path};

/// Runs the command.
pub fn trace(command: &TraceCommand, out: &mut Output) -> Result<(), Error> {
    match command {
        TraceCommand::Import(args) => import(args, out),
        TraceCommand::Show(args) => {
            let workload = load::named(&args.file).load()?;
            show(&workload.trace, out)
        }
        TraceCommand::Stat(args) => stat(&args.file, args.json, out),
        TraceCommand::Check(args) => {
            let trace = load::named(&args.file).check()?;
            out.line(format_args!("{}: valid, {}", plain_path(&args.file), summary(&trace)))?;
            notes(&trace, out)
        }
    }
}

fn show(trace: &Trace, out: &mut Output) -> Result<(), Error> {
    format::write(trace, out.writer()).map_err(Error::stdout)
}

fn summary(trace: &Trace) -> String {
    let events = counted(trace.events.len(), "event", "events");
    let slots = counted(trace.header.slots as usize, "slot", "slots");
    let streams = counted(trace.header.streams.len(), "stream", "streams");
    let device = trace.header.device_bytes.map_or(String::new(), |total| format!(", device of {}", bytes(total)));
    let limit = trace.header.limit_bytes.map_or(String::new(), |limit| format!(", limit of {}", bytes(limit)));
    format!("{events}, {slots}, {streams}{device}{limit}")
}

fn notes(trace: &Trace, out: &mut Output) -> Result<(), Error> {
    trace.header.notes.iter().try_for_each(|note| out.line(format_args!("  {}", plain(note))))
}

/// Everything is read before anything is written: a bad snapshot among many leaves no half of the work behind.
fn import(args: &ImportArgs, out: &mut Output) -> Result<(), Error> {
    if args.out == Path::new("-") {
        let [snapshot] = args.snapshots.as_slice() else {
            return Err(Error::Usage("-o - takes one snapshot; name a folder for several".to_string()));
        };
        return show(&read(snapshot, args.device)?, out);
    }
    let is_file = [".trace", ".trace.zst"].iter().any(|ending| args.out.to_string_lossy().ends_with(ending));
    if is_file && args.snapshots.len() > 1 {
        return Err(Error::Usage(format!(
            "{} is one file; name a folder for several snapshots",
            plain_path(&args.out)
        )));
    }
    if !is_file && [".zst", ".gz"].iter().any(|ending| args.out.to_string_lossy().ends_with(ending)) {
        return Err(Error::Usage(format!(
            "{} is no name for a folder, and traces are called NAME.trace or NAME.trace.zst",
            plain_path(&args.out)
        )));
    }
    let target = |snapshot: &Path| match is_file {
        true => args.out.clone(),
        false => args.out.join(format!("{}.trace.zst", load::name_of(snapshot))),
    };
    let mut imported: Vec<(PathBuf, Trace)> = Vec::new();
    for snapshot in &args.snapshots {
        let target = target(snapshot);
        if imported.iter().any(|(other, _)| *other == target) {
            return Err(Error::Usage(format!("two snapshots would become {}; import them apart", plain_path(&target))));
        }
        // As results of a run: nothing is overwritten.
        if target.symlink_metadata().is_ok() {
            return Err(Error::unwritable(&target, "it exists, and nothing is overwritten; give another name with -o"));
        }
        imported.push((target, read(snapshot, args.device)?));
    }
    if !is_file {
        std::fs::create_dir_all(&args.out).map_err(|why| Error::unwritable(&args.out, why))?;
    }
    let interrupt = Interrupt::awaited();
    let all = counted(imported.len(), "trace was", "traces were");
    for (before, (target, trace)) in imported.into_iter().enumerate() {
        format::save(&trace, &target).map_err(|why| Error::Unwritable(why.to_string()))?;
        out.line(format_args!("{}: {}", plain_path(&target), summary(&trace)))?;
        notes(&trace, out)?;
        if interrupt.came() {
            return Err(interrupt.error(format!("{} of {all} written", before + 1)));
        }
    }
    Ok(())
}

fn read(snapshot: &Path, device: Option<u32>) -> Result<Trace, Error> {
    load::import(snapshot, device).map_err(|why| match why {
        ImportError::SeveralDevices { .. } => Error::Usage(format!("{why} with --device N")),
        why => Unread::Import(why).into_error(),
    })
}

fn stat(file: &Path, json: bool, out: &mut Output) -> Result<(), Error> {
    let trace = load::named(file).load()?.trace;
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
    out.line(format_args!(""))?;
    out.text(&percentiles(&stats).text(width))?;
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
    ];
    Table::plain(["", "min", "median", "90 %", "99 %", "max"], rows)
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
