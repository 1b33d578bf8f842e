//! `harness run`: workloads on strategies, rows in files, a table for people.

use crate::args::RunArgs;
use harness::exit::Error;
use harness::filter::Filter;
use harness::interrupt::Interrupt;
use harness::load::{self, Workload};
use harness::machine::{MachineFile, is_debug_build};
use harness::output::{Output, complain, width};
use harness::plot;
use harness::record::Records;
use harness::registry::{Configured, Entry, STRATEGIES, configure};
use harness::run::{self, Job, LimitChoice, Options, Pass, Report};
use harness::size::counted;
use harness::table;
use harness::target::{DeviceName, Target};
use harness::wrap::wrapped;
use regex_lite::Regex;
use std::num::NonZeroUsize;
use workload_gen::plain_path;
use workload_gen::spec::Spec;

/// Runs the command.
pub fn run(args: &RunArgs, out: &mut Output) -> Result<(), Error> {
    let pass = pass(args)?;
    let targets = targets(args)?;
    let strategies = strategies(args, &targets)?;
    let workloads = workloads(args)?;
    let options = Options {
        pass,
        repeats: args.repeats,
        capacity: args.capacity,
        limit: args.limit.unwrap_or(LimitChoice::OfTrace),
        jobs: args.jobs.or_else(|| std::thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN),
    };
    let jobs = run::jobs(&workloads, &targets, &strategies, &options);
    run::check(&jobs, pass)?;
    if pass.times() && is_debug_build() {
        complain(format_args!("warning: this is a debug build, its times say nothing; build with --release"));
    }
    // From here on there are files.
    let interrupt = Interrupt::awaited();
    let mut records = Records::default();
    if args.csv.is_none() || args.out.is_some() {
        let command = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned());
        let machine = MachineFile::here_and_now(command.collect());
        records = Records::in_folder(args.out.as_deref(), pass, &machine, &jobs[0])?;
    }
    if args.csv.is_some() {
        records = records.and_to_stdout(pass, &jobs[0])?;
    }
    let reports = run::run(&jobs, &options, &mut records, &interrupt)?;
    let printed = match args.csv {
        None => print(&jobs, &reports, &workloads, &strategies, &records, out).and_then(|()| out.flush()),
        Some(_) => Ok(()),
    };
    // Figures are drawn even if nobody wanted to see the end of the table.
    let drawn = draw(pass, &records, args.csv.is_none(), &interrupt, out);
    let faults = reports.iter().filter(|report| report.outcome().is_fault()).count();
    let ended = match drawn {
        Err(Error::Interrupted { .. }) => return drawn,
        drawn => printed.and(drawn),
    };
    if faults == 0 {
        return ended;
    }
    match ended {
        Ok(()) | Err(Error::ClosedPipe) => {}
        Err(why) => complain(format_args!("warning: {why}")),
    }
    let all = counted(jobs.len(), "run", "runs");
    Err(Error::CheckFailed(format!("went wrong: {faults} of {all}; see the outcome of each")))
}

fn targets(args: &RunArgs) -> Result<Vec<Target>, Error> {
    let mut names: Vec<DeviceName> = Vec::new();
    for name in &args.devices {
        // The same twice would make rows that nothing tells apart.
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    if names.is_empty() {
        names.push(DeviceName::Sim);
    }
    names.iter().map(Target::open).collect()
}

fn pass(args: &RunArgs) -> Result<Pass, Error> {
    let has_folder = args.csv.is_none() || args.out.is_some();
    match args.pass {
        None if has_folder => Ok(Pass::All),
        None => Ok(Pass::Audit),
        Some(Pass::All) if !has_folder => Err(Error::Usage(
            "--pass all makes two tables and --csv - takes one; add -o DIR, or choose a pass".to_string(),
        )),
        Some(pass) => Ok(pass),
    }
}

/// The selected strategies, without those that no device can run.
fn strategies(args: &RunArgs, targets: &[Target]) -> Result<Vec<Configured>, Error> {
    let filter = args.filters.strategies();
    let has_pool = targets.iter().any(Target::is_stream_ordered);
    let (here, elsewhere): (Vec<&'static Entry>, Vec<_>) =
        STRATEGIES.iter().partition(|entry| has_pool || !entry.stream_ordered);
    let selected = |entries: &[&'static Entry]| -> Vec<&'static Entry> {
        entries.iter().copied().filter(|entry| filter.keeps(entry.name)).collect()
    };
    let names = |entries: &[&'static Entry]| entries.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ");
    let entries = selected(&here);
    if !entries.is_empty() {
        return configure(&entries, &args.params);
    }
    Err(Error::NothingSelected(match selected(&elsewhere)[..] {
        [] => {
            format!("-s and -S leave no strategy; without them all run, and there are: {}", names(&here))
        }
        ref only => {
            let devices: Vec<&str> = targets.iter().map(Target::name).collect();
            let (only, devices) = (names(only), devices.join(", "));
            format!("{devices} has no stream-ordered pool for {only}: run it on a card that has one, with -d cuda")
        }
    }))
}

/// Recordings or files whose names are wanted, and generated workloads. Where only the latter are named, no recording runs.
fn workloads(args: &RunArgs) -> Result<Vec<Workload>, Error> {
    let filter = args.filters.workloads();
    let takes_recordings = !filter.include.is_empty() || filter.names.is_empty();
    let mut sources = match args.traces[..] {
        [] if takes_recordings => load::embedded(),
        [] => Vec::new(),
        ref files => load::in_files(files)?,
    };
    let mut names: Vec<String> = sources.iter().map(|source| source.name.clone()).collect();
    let hint = unmatched(&filter, &names);
    // A line names what is generated; of files and recordings the patterns decide.
    let of_files = Filter { names: Vec::new(), ..filter.clone() };
    sources.retain(|source| of_files.keeps(&source.name));
    let files = names.len();
    for source in args.filters.specs().map(load::generated) {
        match names.iter().position(|name| *name == source.name) {
            Some(at) if at < files => {
                let name = &source.name;
                return Err(Error::Usage(format!(
                    "a second workload would be called '{name}'; give the file another name"
                )));
            }
            // The same twice is the same.
            Some(_) => continue,
            None => names.push(source.name.clone()),
        }
        if filter.keeps(&source.name) {
            sources.push(source);
        }
    }
    if sources.is_empty() {
        let names = names.join(", ");
        return Err(Error::NothingSelected(format!(
            "-w and -W leave no workload; without them all run, and there are: {names}{hint}"
        )));
    }
    if !hint.is_empty() {
        complain(format_args!("note: a -w matches nothing{hint}"));
    }
    sources.into_iter().map(load::Source::load).collect()
}

/// What may have been meant by a pattern that matches none of the names, if it looks like a generated workload.
fn unmatched(filter: &Filter, names: &[String]) -> String {
    let matches_none = |pattern: &&Regex| !names.iter().any(|name| pattern.is_match(name));
    let hints = filter.include.iter().filter(matches_none).filter_map(|pattern| {
        let text = pattern.as_str();
        if Spec::is_meant(&format!("{text}:")) {
            return Some(format!("; write '{text}:' with a colon for the generated workload"));
        }
        let why = text.contains(':').then(|| Spec::parse(text).err()).flatten()?;
        Some(format!("; as a generated workload '{text}' is none: {why}"))
    });
    hints.collect()
}

fn print(
    jobs: &[Job<'_>],
    reports: &[Report],
    workloads: &[Workload],
    strategies: &[Configured],
    records: &Records,
    out: &mut Output,
) -> Result<(), Error> {
    let width = width();
    let sections = [
        table::memory(jobs, reports, width),
        table::times(jobs, reports, width),
        table::integrity(jobs, reports, width),
        table::decisions(jobs, reports, width),
        table::findings(jobs, reports),
    ];
    for section in sections.iter().filter(|section| !section.is_empty()) {
        out.text(section)?;
        out.line(format_args!(""))?;
    }
    let workloads = counted(workloads.len(), "workload", "workloads");
    let strategies = counted(strategies.len(), "strategy", "strategies");
    match records.folder() {
        Some(folder) => {
            let kept = format!("{workloads} on {strategies}; the rows are in {}", plain_path(folder));
            out.line(format_args!("{}", wrapped(&kept, 0, width)))
        }
        None => Ok(()),
    }
}

/// The figures come last, when rows and table are out: if they fail, nothing else is lost.
fn draw(pass: Pass, records: &Records, is_told: bool, interrupt: &Interrupt, out: &mut Output) -> Result<(), Error> {
    let Some(folder) = records.folder().filter(|_| pass.audits()) else { return Ok(()) };
    let Some(drawn) = plot::draw_after_run(folder, interrupt)? else { return Ok(()) };
    for note in &drawn.notes {
        complain(format_args!("note: {note}"));
    }
    if is_told && !drawn.files.is_empty() {
        let kept = format!("the figures are in {}", plain_path(&drawn.folder));
        out.line(format_args!("{}", wrapped(&kept, 0, width())))?;
    }
    Ok(())
}
