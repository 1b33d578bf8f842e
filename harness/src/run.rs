//! The comparison: every workload on every device and strategy, exact passes in parallel, times one after another.

use crate::exit::Error;
pub use crate::job::{DEFAULT_CAPACITY, Job, Report};
use crate::load::Workload;
use crate::progress::Progress;
use crate::record::Records;
use crate::registry::Configured;
use crate::target::Target;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

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

/// Runs all jobs and writes a row of each as soon as those before it are written.
pub fn run(jobs: &[Job<'_>], options: &Options, records: &mut Records) -> Result<Vec<Report>, Error> {
    let is_exact = options.pass != Pass::Time;
    let passes = u64::from(is_exact) + u64::from(options.pass.times());
    let progress = Progress::new(jobs.len() as u64 * passes);
    let mut reports = Vec::with_capacity(jobs.len());
    if is_exact {
        examine_all(jobs, options, &progress, |job, report| {
            records.exact(job, &report)?;
            reports.push(report);
            Ok(())
        })?;
    } else {
        reports.resize_with(jobs.len(), Report::default);
    }
    if options.pass.times() {
        for (job, report) in jobs.iter().zip(&mut reports) {
            progress.doing(&format!("timing {}", job.title()));
            let (times, finding) = match job.time(options.repeats) {
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

/// Makes the exact passes on several threads; `done` gets the results in the order of the jobs, on this thread.
fn examine_all<'a>(
    jobs: &[Job<'a>],
    options: &Options,
    progress: &Progress,
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
                    && let index = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(job) = jobs.get(index)
                {
                    progress.doing(&job.title());
                    let report = job.examine(options.pass);
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
        let mut written = 0;
        for (index, report) in receiver {
            ready[index] = Some(report);
            while let Some(report) = ready.get_mut(written).and_then(Option::take) {
                if let Err(error) = done(&jobs[written], report) {
                    stop.store(true, Ordering::Relaxed);
                    return Err(error);
                }
                written += 1;
            }
        }
        Ok(())
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
    fn a_panic_is_a_row_and_the_next_job_runs() {
        let workloads = [workload("gpu-alloc-trace 1\na 0 0 0\na 1 0 0\n")];
        let direct = crate::registry::STRATEGIES.iter().find(|entry| entry.name == "direct").unwrap();
        let strategies = [&PANICKING, direct].map(|entry| Configured { entry, params: Params::new() });
        let targets = [Target::default()];
        let jobs = jobs(&workloads, &targets, &strategies, &OPTIONS);
        let reports = run(&jobs, &OPTIONS, &mut Records::default()).unwrap();
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
        let report = run(&jobs, &OPTIONS, &mut Records::default()).unwrap().remove(0);
        let finding = report.finding.as_ref().unwrap();
        assert_eq!((finding.outcome, finding.text.as_str()), (Outcome::Panic, "no look inside"));
        assert!(report.audit.is_some());
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
