//! `harness trace`: importing, generating, printing, summarising, comparing and checking traces.

mod compare;
mod generate;
mod stat;
mod targets;

use crate::args::{ImportArgs, TraceCommand};
use harness::exit::Error;
use harness::interrupt::Interrupt;
use harness::load::{self, Unread};
use harness::output::Output;
use harness::size::{bytes, counted};
use std::path::Path;
use targets::Targets;
use workload_gen::format;
use workload_gen::import::ImportError;
use workload_gen::{Header, Trace, plain, plain_path};

/// Runs the command.
pub fn trace(command: &TraceCommand, out: &mut Output) -> Result<(), Error> {
    match command {
        TraceCommand::Import(args) => import(args, out),
        TraceCommand::Gen(args) => generate::generate(args, out),
        TraceCommand::Show(args) => {
            let workload = load::named(&args.file)?.load()?;
            show(&workload.trace, out)
        }
        TraceCommand::Stat(args) => stat::stat(&args.file, args.json, out),
        TraceCommand::Compare(args) => compare::compare(args, out),
        TraceCommand::Check(args) => {
            let trace = load::named(&args.file)?.check()?;
            out.line(format_args!("{}: valid, {}", plain_path(&args.file), summary(&trace)))?;
            notes(&trace, out)
        }
    }
}

fn show(trace: &Trace, out: &mut Output) -> Result<(), Error> {
    format::write(trace, out.writer()).map_err(Error::stdout)
}

fn summary(trace: &Trace) -> String {
    outline(&trace.header, trace.events.len() as u64)
}

fn outline(header: &Header, events: u64) -> String {
    let events = counted(events as usize, "event", "events");
    let slots = counted(header.slots as usize, "slot", "slots");
    let streams = counted(header.streams.len(), "stream", "streams");
    let device = header.device_bytes.map_or(String::new(), |total| format!(", device of {}", bytes(total)));
    let limit = header.limit_bytes.map_or(String::new(), |limit| format!(", limit of {}", bytes(limit)));
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
    let stems = args.snapshots.iter().map(|snapshot| load::name_of(snapshot)).collect();
    let mut targets = Targets::new(&args.out, stems, "snapshots")?;
    let traces = args.snapshots.iter().map(|snapshot| read(snapshot, args.device));
    let traces = traces.collect::<Result<Vec<Trace>, Error>>()?;
    let interrupt = Interrupt::awaited();
    let files = targets.begin()?;
    let all = counted(files.len(), "trace was", "traces were");
    for (before, (target, trace)) in files.iter().zip(traces).enumerate() {
        format::save(&trace, target).map_err(|why| Error::Unwritable(why.to_string()))?;
        out.line(format_args!("{}: {}", plain_path(target), summary(&trace)))?;
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
