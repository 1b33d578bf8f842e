//! The comparison: every workload on every device and strategy, exact passes in parallel, times one after another.

use crate::exit::Error;
use crate::interrupt::Interrupt;
pub use crate::job::{DEFAULT_CAPACITY, Job, Report};
use crate::load::Workload;
use crate::progress::Progress;
use crate::record::Records;
use crate::registry::Configured;
use crate::size::counted;
use crate::target::Target;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use workload_gen::plain_path;

/// Which passes are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Pass {
    /// Exact memory figures, and a check of every address
    Audit,
    /// The time that the strategies' own code takes, on a card that of the driver too
    Time,
    /// Audit and time
    All,
    /// On a card: fill every block with a pattern of its own, and check it before it is freed
    Integrity,
    /// Log the run, and see whether the same decisions come out again from the log
    Decisions,
}

impl Pass {
    /// Whether memory figures are wanted.
    pub const fn audits(self) -> bool {
        matches!(self, Pass::Audit | Pass::All)
    }

    /// Whether only something is checked, and no figure made.
    pub const fn only_checks(self) -> bool {
        matches!(self, Pass::Integrity | Pass::Decisions)
    }

    /// Whether times are wanted.
    pub const fn times(self) -> bool {
        matches!(self, Pass::Time | Pass::All)
    }
}

/// The memory limit of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LimitChoice {
    /// The one that the trace was recorded under, if any.
    OfTrace,
    /// None.
    Lifted,
    /// This many bytes.
    Bytes(u64),
}

/// How to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Which passes.
    pub pass: Pass,
    /// How often each time pass is repeated.
    pub repeats: u32,
    /// Bytes of the device; by default those of the trace's device, else [`DEFAULT_CAPACITY`].
    pub capacity: Option<u64>,
    /// The memory limit.
    pub limit: LimitChoice,
    /// How many audits run at once.
    pub jobs: NonZeroUsize,
}

/// Every workload on every device and strategy, in the order of the rows. Strategies that a device cannot run are left
/// out.
pub fn jobs<'a>(
    workloads: &'a [Workload],
    targets: &'a [Target],
    strategies: &'a [Configured],
    options: &Options,
) -> Vec<Job<'a>> {
    let mut jobs = Vec::new();
    for workload in workloads {
        for target in targets {
            let can_run = |strategy: &&Configured| target.is_stream_ordered() || !strategy.entry.stream_ordered;
            let here = strategies.iter().filter(can_run);
            jobs.extend(here.map(|strategy| Job::new(workload, strategy, target, options)));
        }
    }
    jobs
}

/// Refuses what cannot run, before anything does.
pub fn check(jobs: &[Job<'_>], pass: Pass) -> Result<(), Error> {
    jobs.iter().try_for_each(|job| job.check(pass))
}

/// Runs all jobs and writes a row of each as soon as those before it are written. After an interrupt, what was measured
/// is written and the rest is not begun.
pub fn run(
    jobs: &[Job<'_>],
    options: &Options,
    records: &mut Records,
    interrupt: &Interrupt,
) -> Result<Vec<Report>, Error> {
    let is_exact = options.pass != Pass::Time;
    let passes = u64::from(is_exact) + u64::from(options.pass.times());
    let progress = Progress::new(jobs.len() as u64 * passes, records.are_watched());
    let mut reports = Vec::with_capacity(jobs.len());
    let examined = if options.pass.audits() { "audited" } else { "checked" };
    if is_exact {
        examine_all(jobs, options, &progress, interrupt, |job, report| {
            records.exact(job, &report)?;
            reports.push(report);
            Ok(())
        })?;
        if reports.len() < jobs.len() {
            return Err(interrupted(interrupt, records, jobs.len(), &[(examined, reports.len())]));
        }
    } else {
        reports.resize_with(jobs.len(), Report::default);
    }
    if options.pass.times() {
        for (timed, (job, report)) in jobs.iter().zip(&mut reports).enumerate() {
            progress.doing(&format!("timing {}", job.title()));
            let Some(measured) = job.time(options.repeats, interrupt) else {
                let done = [(examined, jobs.len()), ("timed", timed)];
                return Err(interrupted(interrupt, records, jobs.len(), &done[usize::from(!is_exact)..]));
            };
            let (times, finding) = match measured {
                Ok(times) => (Some(times.clone()), times.finding),
                Err(finding) => (None, Some(finding)),
            };
            report.times = times;
            if !is_exact {
                report.finding = finding.clone();
                records.exact(job, report)?;
            }
            records.times(job, options.repeats, report.times.as_ref(), finding.as_ref())?;
            progress.step();
        }
    }
    Ok(reports)
}

/// What an interrupted run ends with. Results without a row are none, and their folder goes.
fn interrupted(interrupt: &Interrupt, records: &mut Records, jobs: usize, done: &[(&str, usize)]) -> Error {
    let counts: Vec<String> = done.iter().map(|(how, count)| format!("{count} {how}")).collect();
    let counts = format!("of {}, {}", counted(jobs, "run", "runs"), counts.join(" and "));
    let has_rows = done.iter().any(|(_, count)| *count > 0);
    if !has_rows {
        records.discard();
    }
    interrupt.error(match records.folder().map(plain_path) {
        Some(folder) => format!("{counts}; the rows are in {folder}"),
        None if has_rows => counts,
        None => format!("{counts}; nothing is kept"),
    })
}

/// Makes the exact passes on several threads; `done` gets the results in the order of the jobs, on this thread. After an
/// interrupt it gets those that there are.
fn examine_all<'a>(
    jobs: &[Job<'a>],
    options: &Options,
    progress: &Progress,
    interrupt: &Interrupt,
    mut done: impl FnMut(&Job<'a>, Report) -> Result<(), Error>,
) -> Result<(), Error> {
    let threads = options.jobs.get().min(jobs.len()).max(1);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|why| Error::Internal(format!("no threads to run on: {why}")))?;
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (sender, receiver) = mpsc::channel();
    pool.in_place_scope(|scope| {
        for _ in 0..threads {
            let (sender, next, stop) = (sender.clone(), &next, &stop);
            scope.spawn(move |_| {
                while !stop.load(Ordering::Relaxed)
                    && !interrupt.came()
                    && let index = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(job) = jobs.get(index)
                {
                    progress.doing(&job.title());
                    let Some(report) = job.examine(options.pass, interrupt) else { return };
                    progress.step();
                    if sender.send((index, report)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut ready: Vec<Option<Report>> = Vec::new();
        ready.resize_with(jobs.len(), || None);
        let mut write =
            |index: usize, report| done(&jobs[index], report).inspect_err(|_| stop.store(true, Ordering::Relaxed));
        let mut written = 0;
        for (index, report) in receiver {
            ready[index] = Some(report);
            while let Some(report) = ready.get_mut(written).and_then(Option::take) {
                write(written, report)?;
                written += 1;
            }
        }
        // Behind a job that was interrupted others may be done.
        let mut behind = ready.into_iter().enumerate().filter_map(|(index, report)| Some((index, report?)));
        behind.try_for_each(|(index, report)| write(index, report))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{Entry, Params, entry};
    use crate::replay::Outcome;
    use allocator_core::{AllocError, Block, ConfigError, Configure, Device, DeviceInfo, FreeError, Request, Span};
    use allocator_core::{Strategy, StreamId};
    use serde::{Deserialize, Serialize};
    use std::sync::LazyLock;
    use workload_gen::Trace;

    /// Panics at the second allocation, and when looked into.
    struct Panicking(bool);

    #[derive(Default, Serialize, Deserialize)]
    struct NoParams {}

    impl Strategy for Panicking {
        fn allocate(&mut self, _: &mut dyn Device, _: Request) -> Result<Block, AllocError> {
            assert!(!std::mem::replace(&mut self.0, true), "no second block");
            Ok(Block::empty())
        }
        fn free(&mut self, _: &mut dyn Device, _: Block) -> Result<(), FreeError> {
            Ok(())
        }
        fn record_stream(&mut self, _: &mut dyn Device, _: &Block, _: StreamId) -> Result<(), AllocError> {
            Ok(())
        }
        fn trim(&mut self, _: &mut dyn Device, _: u64) -> Result<u64, AllocError> {
            Ok(0)
        }
        fn inspect(&self, _: &mut dyn FnMut(Span)) {
            panic!("no look inside");
        }
    }

    impl Configure for Panicking {
        const NAME: &'static str = "panicking";
        const ABOUT: &'static str = "Panics.";
        type Params = NoParams;
        fn new(_: NoParams, _: &DeviceInfo) -> Result<Self, ConfigError> {
            Ok(Panicking(false))
        }
    }

    static PANICKING: Entry = entry::<Panicking>();

    const OPTIONS: Options = Options {
        pass: Pass::All,
        repeats: 1,
        capacity: Some(1 << 30),
        limit: LimitChoice::OfTrace,
        jobs: NonZeroUsize::MIN,
    };

    fn workload(text: &str) -> Workload {
        let trace: Trace = workload_gen::format::read(text.as_bytes(), "test").unwrap();
        Workload { name: "test".into(), hash: crate::hash::of_trace(&trace), trace }
    }

    #[test]
    fn a_strategy_is_left_out_where_its_pool_is_missing() {
        let workloads = [workload("gpu-alloc-trace 1\na 0 0 0\n")];
        let entries: Vec<&'static Entry> = crate::registry::STRATEGIES.iter().collect();
        let strategies = crate::registry::configure(&entries, &[]).unwrap();
        let targets = [Target::default(), Target::default()];
        let jobs = jobs(&workloads, &targets, &strategies, &OPTIONS);
        let (left_out, here): (Vec<&'static Entry>, Vec<_>) = entries.iter().partition(|entry| entry.stream_ordered);
        assert_eq!(left_out[0].name, "cuda-async");
        let names = |entries: &[&'static Entry]| entries.iter().map(|entry| entry.name).collect::<Vec<_>>();
        let ran: Vec<&str> = jobs.iter().map(|job| job.strategy.entry.name).collect();
        assert_eq!(ran, names(&here).repeat(2));
    }

    #[test]
    fn a_panic_is_a_row_and_the_next_job_runs() {
        let workloads = [workload("gpu-alloc-trace 1\na 0 0 0\na 1 0 0\n")];
        let direct = crate::registry::STRATEGIES.iter().find(|entry| entry.name == "direct").unwrap();
        let strategies = [&PANICKING, direct].map(|entry| Configured { entry, params: Params::new() });
        let targets = [Target::default()];
        let jobs = jobs(&workloads, &targets, &strategies, &OPTIONS);
        let reports = run(&jobs, &OPTIONS, &mut Records::default(), &Interrupt::default()).unwrap();
        let finding = reports[0].finding.as_ref().unwrap();
        assert_eq!((finding.outcome, finding.text.as_str()), (Outcome::Panic, "no second block"));
        assert!(reports[0].audit.is_none() && reports[0].times.is_none());
        assert_eq!(reports[1].outcome(), Outcome::Ok);
        assert!(reports[1].audit.is_some() && reports[1].times.is_some());
    }

    #[test]
    fn a_panic_when_looked_into_loses_no_figures() {
        let workloads = [workload("gpu-alloc-trace 1\na 0 0 0\n")];
        let strategies = [Configured { entry: &PANICKING, params: Params::new() }];
        let targets = [Target::default()];
        let jobs = jobs(&workloads, &targets, &strategies, &OPTIONS);
        let report = run(&jobs, &OPTIONS, &mut Records::default(), &Interrupt::default()).unwrap().remove(0);
        let finding = report.finding.as_ref().unwrap();
        assert_eq!((finding.outcome, finding.text.as_str()), (Outcome::Panic, "no look inside"));
        assert!(report.audit.is_some());
    }

    static INTERRUPT: LazyLock<Interrupt> = LazyLock::new(Interrupt::default);

    /// Is interrupted at the first allocation.
    struct Interrupted;

    impl Strategy for Interrupted {
        fn allocate(&mut self, _: &mut dyn Device, _: Request) -> Result<Block, AllocError> {
            INTERRUPT.raise();
            Ok(Block::empty())
        }
        fn free(&mut self, _: &mut dyn Device, _: Block) -> Result<(), FreeError> {
            Ok(())
        }
        fn record_stream(&mut self, _: &mut dyn Device, _: &Block, _: StreamId) -> Result<(), AllocError> {
            Ok(())
        }
        fn trim(&mut self, _: &mut dyn Device, _: u64) -> Result<u64, AllocError> {
            Ok(0)
        }
        fn inspect(&self, _: &mut dyn FnMut(Span)) {}
    }

    impl Configure for Interrupted {
        const NAME: &'static str = "interrupted";
        const ABOUT: &'static str = "Is interrupted.";
        type Params = NoParams;
        fn new(_: NoParams, _: &DeviceInfo) -> Result<Self, ConfigError> {
            Ok(Interrupted)
        }
    }

    static INTERRUPTED: Entry = entry::<Interrupted>();

    #[test]
    fn an_interrupt_keeps_what_is_done_and_nothing_else() {
        let folder = tempfile::TempDir::new().unwrap();
        let workloads = [workload("gpu-alloc-trace 1\na 0 0 0\na 1 0 0\n")];
        let direct = crate::registry::STRATEGIES.iter().find(|entry| entry.name == "direct").unwrap();
        let strategies = [direct, &INTERRUPTED, direct].map(|entry| Configured { entry, params: Params::new() });
        let targets = [Target::default()];
        let jobs = jobs(&workloads, &targets, &strategies, &OPTIONS);
        let interrupted = |folder: &std::path::Path| {
            let machine = crate::machine::MachineFile::here_and_now(Vec::new());
            let mut records = Records::in_folder(Some(folder), Pass::All, &machine, &jobs[0]).unwrap();
            run(&jobs, &OPTIONS, &mut records, &INTERRUPT).unwrap_err().to_string()
        };
        let some = folder.path().join("some");
        let error = interrupted(&some);
        assert!(error.starts_with("interrupted; of 3 runs, 1 audited; the rows are in "), "{error}");
        let rows = |file: &str| std::fs::read_to_string(some.join(file)).unwrap().lines().count();
        assert_eq!(["run.csv", "timeline.csv", "times.csv"].map(rows), [2, 3, 1]);

        let (new, old) = (folder.path().join("new"), folder.path().join("old"));
        std::fs::create_dir(&old).unwrap();
        for none in [&new, &old] {
            assert_eq!(interrupted(none), "interrupted; of 3 runs, 0 audited; nothing is kept");
        }
        assert!(!new.exists(), "a folder without a row is no result");
        assert_eq!(std::fs::read_dir(&old).unwrap().count(), 0, "a folder that was there stays");
    }

    #[test]
    fn the_id_follows_what_a_run_depends_on() {
        let direct = crate::registry::STRATEGIES.iter().find(|entry| entry.name == "direct").unwrap();
        let strategy = Configured { entry: direct, params: Params::new() };
        let id = |text: &str, options: &Options| Job::new(&workload(text), &strategy, &Target::default(), options).id;
        let base = id("gpu-alloc-trace 1\na 0 1 0\n", &OPTIONS);
        let others = [
            id("gpu-alloc-trace 1\na 0 2 0\n", &OPTIONS),
            id("gpu-alloc-trace 1\n# limit_bytes = 5\na 0 1 0\n", &OPTIONS),
            id("gpu-alloc-trace 1\na 0 1 0\n", &Options { capacity: Some(2 << 30), ..OPTIONS }),
            id("gpu-alloc-trace 1\na 0 1 0\n", &Options { limit: LimitChoice::Bytes(9), ..OPTIONS }),
        ];
        assert!(others.iter().all(|other| *other != base), "{base} among {others:?}");
        for limit in [LimitChoice::Lifted, LimitChoice::Bytes(u64::MAX)] {
            let same = Options { pass: Pass::Audit, repeats: 9, limit, ..OPTIONS };
            assert_eq!(id("gpu-alloc-trace 1\na 0 1 0\n", &same), base);
        }
    }

    #[test]
    fn capacity_and_limit_come_from_the_trace_unless_given() {
        let strategy = Configured { entry: &PANICKING, params: Params::new() };
        let recorded = workload("gpu-alloc-trace 1\n# device_bytes = 1000\n# limit_bytes = 500\n");
        let bare = workload("gpu-alloc-trace 1\n");
        let none = Options { capacity: None, ..OPTIONS };
        let target = Target::default();
        let job = Job::new(&recorded, &strategy, &target, &none);
        assert_eq!((job.capacity, job.limit), (1000, Some(500)));
        let job = Job::new(&bare, &strategy, &target, &none);
        assert_eq!((job.capacity, job.limit), (DEFAULT_CAPACITY, None));
        let given = Options { capacity: Some(7), limit: LimitChoice::Lifted, ..OPTIONS };
        let job = Job::new(&recorded, &strategy, &target, &given);
        assert_eq!((job.capacity, job.limit), (7, None));
    }
}
