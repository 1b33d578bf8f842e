//! `harness trace`: importing, printing, summarising and checking traces.

use crate::args::{ImportArgs, TraceCommand};
use harness::exit::Error;
use harness::load::{self, Unread};
use harness::output::Output;
use harness::size::{bytes, counted, grouped};
use std::path::{Path, PathBuf};
use workload_gen::format;
use workload_gen::import::{self, ImportError};
use workload_gen::{Percentiles, Trace, TraceStats};

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
            out.line(format_args!("{}: valid, {}", args.file.display(), summary(&trace)))?;
            notes(&trace, out)
        }
    }
}

fn show(trace: &Trace, out: &mut Output) -> Result<(), Error> {
    format::write(trace, out.writer()).map_err(Error::stdout)
}

fn summary(trace: &Trace) -> String {
    let events = grouped(trace.events.len() as u64);
    let slots = counted(trace.header.slots as usize, "slot", "slots");
    let streams = counted(trace.header.streams.len(), "stream", "streams");
    let device = trace.header.device_bytes.map_or(String::new(), |total| format!(", device of {}", bytes(total)));
    let limit = trace.header.limit_bytes.map_or(String::new(), |limit| format!(", limit of {}", bytes(limit)));
    format!("{events} events, {slots}, {streams}{device}{limit}")
}

fn notes(trace: &Trace, out: &mut Output) -> Result<(), Error> {
    trace.header.notes.iter().try_for_each(|note| out.line(format_args!("  {note}")))
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
        return Err(Error::Usage(format!("{} is one file; name a folder for several snapshots", args.out.display())));
    }
    let target = |snapshot: &Path| match is_file {
        true => args.out.clone(),
        false => args.out.join(format!("{}.trace.zst", load::name_of(snapshot))),
    };
    let mut imported: Vec<(PathBuf, Trace)> = Vec::new();
    for snapshot in &args.snapshots {
        let target = target(snapshot);
        if imported.iter().any(|(other, _)| *other == target) {
            return Err(Error::Usage(format!("two snapshots would become {}; import them apart", target.display())));
        }
        imported.push((target, read(snapshot, args.device)?));
    }
    if !is_file {
        std::fs::create_dir_all(&args.out).map_err(|why| Error::unwritable(&args.out, why))?;
    }
    for (target, trace) in imported {
        format::save(&trace, &target).map_err(|why| Error::Unwritable(why.to_string()))?;
        out.line(format_args!("{}: {}", target.display(), summary(&trace)))?;
        notes(&trace, out)?;
    }
    Ok(())
}

fn read(snapshot: &Path, device: Option<u32>) -> Result<Trace, Error> {
    import::import_file(snapshot, device).map_err(|why| match why {
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
    let mut row = |name: &str, text: String| out.line(format_args!("{name:<14}{text}"));
    row("trace", format!("{}: {}", file.display(), summary(&trace)))?;
    row("source", trace.header.source.clone())?;
    let open =
        if stats.late_frees_open > 0 { format!(", {} of them never", stats.late_frees_open) } else { String::new() };
    let late = format!("{} complete late{open}", grouped(stats.late_frees));
    row("allocations", format!("{} of {} in all", grouped(stats.allocs), bytes(stats.requested_bytes)))?;
    row("frees", format!("{}; {late}", grouped(stats.frees)))?;
    row("peak", format!("{} in {} blocks at most", bytes(stats.requested_peak_bytes), grouped(stats.blocks_peak)))?;
    row("at the end", format!("{} in {} blocks", bytes(stats.bytes_at_end), grouped(stats.blocks_at_end)))?;
    let percentiles = |p: &Percentiles, show: fn(u64) -> String| {
        format!(
            "min {}, median {}, 90 % {}, 99 % {}, max {}",
            show(p.min),
            show(p.p50),
            show(p.p90),
            show(p.p99),
            show(p.max)
        )
    };
    row("size", percentiles(&stats.size, bytes))?;
    row("  by bytes", percentiles(&stats.size_by_bytes, bytes))?;
    row("lifetime", format!("{} events", percentiles(&stats.lifetime_events, grouped)))?;
    row("other events", other_events(&stats))?;
    for stream in &stats.streams {
        let share = format!("{:#x}: {} allocations, {}", stream.raw, grouped(stream.allocs), bytes(stream.bytes));
        row(&format!("stream {}", stream.stream), share)?;
    }
    for pool in &stats.pools {
        row(&format!("pool {}", pool.pool), format!("{} allocations, {}", grouped(pool.allocs), bytes(pool.bytes)))?;
    }
    out.line(format_args!("sizes up to     allocations         bytes"))?;
    for class in &stats.size_histogram {
        let (allocs, sum) = (grouped(class.allocs), bytes(class.bytes));
        out.line(format_args!("{:>11}  {allocs:>14}  {sum:>12}", bytes(class.up_to_bytes)))?;
    }
    notes(&trace, out)
}

fn other_events(stats: &TraceStats) -> String {
    let counts = [
        (stats.uses, "uses on other streams"),
        (stats.empties, "empty_cache"),
        (stats.pool_events, "pool calls"),
        (stats.settings_changes, "changes of settings"),
        (stats.timing_events, "work and waits"),
        (stats.marks, "markers"),
    ];
    let present: Vec<String> = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, name)| format!("{} {name}", grouped(*count)))
        .collect();
    if present.is_empty() { "none".to_string() } else { present.join(", ") }
}
