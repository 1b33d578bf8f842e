//! `harness trace`: importing, printing, summarising, comparing and checking traces.

mod compare;
mod stat;

use crate::args::{ImportArgs, TraceCommand};
use harness::exit::Error;
use harness::interrupt::Interrupt;
use harness::load::{self, Unread};
use harness::output::Output;
use harness::size::{bytes, counted};
use std::path::{Path, PathBuf};
use workload_gen::format;
use workload_gen::import::ImportError;
use workload_gen::{Trace, plain, plain_path};

/// Runs the command.
pub fn trace(command: &TraceCommand, out: &mut Output) -> Result<(), Error> {
    match command {
        TraceCommand::Import(args) => import(args, out),
        TraceCommand::Show(args) => {
            let workload = load::named(&args.file).load()?;
            show(&workload.trace, out)
        }
        TraceCommand::Stat(args) => stat::stat(&args.file, args.json, out),
        TraceCommand::Compare(args) => compare::compare(args, out),
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
