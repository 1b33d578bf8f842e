//! `harness run`: workloads on strategies, rows in files, a table for people.

use crate::args::RunArgs;
use harness::exit::Error;
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
use std::num::NonZeroUsize;
use workload_gen::plain_path;

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

fn workloads(args: &RunArgs) -> Result<Vec<Workload>, Error> {
    let filter = args.filters.workloads();
    let sources = load::sources(&args.traces)?;
    let names: Vec<String> = sources.iter().map(|source| source.name.clone()).collect();
    let workloads: Vec<Workload> = sources
        .into_iter()
        .filter(|source| filter.keeps(&source.name))
        .map(|source| source.load())
        .collect::<Result<_, _>>()?;
    if workloads.is_empty() {
        return Err(Error::NothingSelected(format!(
            "-w and -W leave no workload; without them all run, and there are: {}",
            names.join(", ")
        )));
    }
    Ok(workloads)
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
