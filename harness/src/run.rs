//! The comparison: every workload on every strategy, audited in parallel, then timed one after another.

use crate::audit::{Audit, audit};
use crate::exit::Error;
use crate::hash::Hash;
use crate::load::Workload;
use crate::peak::{Piece, peak};
use crate::progress::Progress;
use crate::record::Records;
use crate::registry::{Configured, MemoryLimit};
use crate::replay::{Finding, Outcome, Replay};
use crate::size::bytes;
use crate::timing::{Times, time};
use allocator_core::{ConfigError, SimDevice};
use std::any::Any;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use workload_gen::Event;

/// Capacity of the simulated device if neither the command line nor the trace says one: 80 GiB, as on an A100 or H100.
pub const DEFAULT_CAPACITY: u64 = 80 << 30;

/// The device model that runs take place on, as results name it.
pub const DEVICE: &str = "sim";

/// Which passes are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Pass {
    /// Exact memory figures, and a check of every address
    Audit,
    /// The time that the strategies' own code takes
    Time,
    /// Both
    All,
}

impl Pass {
    /// Whether memory figures are wanted.
    pub const fn audits(self) -> bool {
        matches!(self, Pass::Audit | Pass::All)
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
    /// Bytes of the simulated device; by default those of the trace's device, else [`DEFAULT_CAPACITY`].
    pub capacity: Option<u64>,
    /// The memory limit.
    pub limit: LimitChoice,
    /// How many audits run at once.
    pub jobs: NonZeroUsize,
}

/// One workload on one strategy.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// The workload.
    pub(crate) workload: &'a Workload,
    /// The strategy.
    pub(crate) strategy: &'a Configured,
    /// Bytes of the device.
    pub capacity: u64,
    /// Bytes that the strategy may hold.
    pub limit: Option<u64>,
    /// The call costs in force, by name.
    pub(crate) profile: String,
    /// Identifies the job in all files: a hash of everything above.
    pub(crate) id: String,
}

/// What became of a job.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The audit, unless not wanted or not finished.
    pub audit: Option<Audit>,
    /// The times, unless not wanted or not finished.
    pub times: Option<Times>,
    /// What went wrong in the audit, or in the time pass if there was no audit.
    pub finding: Option<Finding>,
}

impl Report {
    /// How it ended.
    pub fn outcome(&self) -> Outcome {
        self.finding.as_ref().map_or(Outcome::Ok, |finding| finding.outcome)
    }
}

/// Every workload on every strategy, in the order of the rows.
pub fn jobs<'a>(workloads: &'a [Workload], strategies: &'a [Configured], options: &Options) -> Vec<Job<'a>> {
    workloads
        .iter()
        .flat_map(|workload| strategies.iter().map(move |strategy| Job::new(workload, strategy, options)))
        .collect()
}

impl<'a> Job<'a> {
    fn new(workload: &'a Workload, strategy: &'a Configured, options: &Options) -> Job<'a> {
        let header = &workload.trace.header;
        let capacity = options.capacity.or(header.device_bytes).unwrap_or(DEFAULT_CAPACITY);
        let limit = match options.limit {
            LimitChoice::OfTrace => header.limit_bytes,
            LimitChoice::Lifted => None,
            // Nothing can reach it, so it is none; the id of a run says so too.
            LimitChoice::Bytes(u64::MAX) => None,
            LimitChoice::Bytes(bytes) => Some(bytes),
        };
        let profile = SimDevice::new(capacity).profile().name.clone();
        let mut hash = Hash::default();
        for text in [&workload.name, &workload.hash, strategy.entry.name, &strategy.params_json(), DEVICE, &profile] {
            hash.text(text);
        }
        hash.number(capacity);
        hash.number(limit.unwrap_or(u64::MAX));
        Job { workload, strategy, capacity, limit, profile, id: hash.hex() }
    }

    /// `workload on strategy`.
    pub(crate) fn title(&self) -> String {
        format!("{} on {}", self.workload.name, self.strategy.entry.name)
    }

    fn device(&self) -> SimDevice {
        SimDevice::new(self.capacity)
    }

    fn build(&self, dev: &mut SimDevice) -> Result<Box<dyn Replay>, ConfigError> {
        let sets_limit = |event: &Event| matches!(event, Event::Limit { .. });
        let limit = match self.limit {
            Some(bytes) => MemoryLimit::Now(bytes),
            None if self.workload.trace.events.iter().any(sets_limit) => MemoryLimit::Later,
            None => MemoryLimit::Never,
        };
        self.strategy.build(dev, limit)
    }

    fn check(&self) -> Result<(), Error> {
        let Err(why) = self.build(&mut self.device()) else { return Ok(()) };
        let (name, why) = (self.strategy.entry.name, why.to_string());
        let why = why.trim_end();
        // What works on the usual device does not fail for its parameters.
        let usual = Job { capacity: DEFAULT_CAPACITY, ..self.clone() };
        if usual.build(&mut usual.device()).is_ok() {
            let capacity = bytes(self.capacity);
            return Err(Error::Usage(format!(
                "{name} cannot manage {}'s device of {capacity}: {why}; choose another size with --capacity, or leave \
                 the strategy out with -S {name}",
                self.workload.name
            )));
        }
        let defaults = self.strategy.entry.defaults();
        let changed = self.strategy.params.iter().filter(|&(key, value)| defaults.get(key) != Some(value));
        let changed: Vec<String> = changed
            .map(|(key, value)| format!("-p {key}={}", value.as_str().map_or(value.to_string(), str::to_string)))
            .collect();
        Err(Error::Usage(format!(
            "{}: {name}: {why}\n  `harness list` shows every parameter with its default, \
             strategies/{name}/README.md what each takes",
            changed.join(" ")
        )))
    }

    /// The audit, and the address map at the peak that it found.
    fn audit(&self) -> Result<(Audit, Vec<Piece>), Finding> {
        let fresh = || -> Result<_, Finding> {
            let mut dev = self.device();
            let strategy = self.build(&mut dev).map_err(not_built)?;
            Ok((strategy, dev))
        };
        let mut audited = guarded(|| {
            let (mut strategy, dev) = fresh()?;
            Ok(audit(&self.workload.trace, strategy.as_mut(), dev))
        })?;
        let map = guarded(|| {
            let (mut strategy, dev) = fresh()?;
            Ok(peak(&self.workload.trace, strategy.as_mut(), dev, audited.memory.reserved_peak_event))
        });
        let map = map.unwrap_or_else(|finding| {
            if audited.finding.as_ref().is_none_or(|known| known.outcome < finding.outcome) {
                audited.finding = Some(finding);
            }
            Vec::new()
        });
        Ok((audited, map))
    }

    fn time(&self, repeats: u32) -> Result<Times, Finding> {
        guarded(|| time(&self.workload.trace, repeats, || self.device(), |dev| self.build(dev)).map_err(not_built))
    }
}

fn not_built(why: ConfigError) -> Finding {
    Finding { outcome: Outcome::Error, event: None, text: why.to_string() }
}

/// A panic of one strategy is a row in the results, and the other runs go on.
fn guarded<T>(run: impl FnOnce() -> Result<T, Finding>) -> Result<T, Finding> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        Err(Finding { outcome: Outcome::Panic, event: None, text: panic_text(payload.as_ref()) })
    })
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_string())
}

/// Refuses what cannot run, before anything does: parameters that make no sense.
pub fn check(jobs: &[Job<'_>]) -> Result<(), Error> {
    jobs.iter().try_for_each(Job::check)
}

/// Runs all jobs and writes a row of each as soon as those before it are written.
pub fn run(jobs: &[Job<'_>], options: &Options, records: &mut Records) -> Result<Vec<Report>, Error> {
    let passes = u64::from(options.pass.audits()) + u64::from(options.pass.times());
    let progress = Progress::new(jobs.len() as u64 * passes);
    let mut reports = Vec::with_capacity(jobs.len());
    if options.pass.audits() {
        audit_all(jobs, options.jobs, &progress, |job, result| {
            let mut report = Report::default();
            let mut map = Vec::new();
            match result {
                Ok((audit, at_peak)) => {
                    report.finding = audit.finding.clone();
                    report.audit = Some(audit);
                    map = at_peak;
                }
                Err(finding) => report.finding = Some(finding),
            }
            records.run(job, &report)?;
            records.peak(job, &map)?;
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
            if !options.pass.audits() {
                report.finding = finding.clone();
                records.run(job, report)?;
            }
            records.times(job, options.repeats, report.times.as_ref(), finding.as_ref())?;
            progress.step();
        }
    }
    Ok(reports)
}

/// Audits on `threads` threads; `done` gets the results in the order of the jobs, on this thread.
fn audit_all<'a>(
    jobs: &[Job<'a>],
    threads: NonZeroUsize,
    progress: &Progress,
    mut done: impl FnMut(&Job<'a>, Result<(Audit, Vec<Piece>), Finding>) -> Result<(), Error>,
) -> Result<(), Error> {
    let threads = threads.get().min(jobs.len()).max(1);
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
                    let result = job.audit();
                    progress.step();
                    if sender.send((index, result)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut ready: Vec<Option<Result<_, Finding>>> = Vec::new();
        ready.resize_with(jobs.len(), || None);
        let mut written = 0;
        for (index, result) in receiver {
            ready[index] = Some(result);
            while let Some(result) = ready.get_mut(written).and_then(Option::take) {
                if let Err(error) = done(&jobs[written], result) {
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
    use allocator_core::{AllocError, Block, Configure, Device, DeviceInfo, FreeError, Request, Span};
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
        let jobs = jobs(&workloads, &strategies, &OPTIONS);
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
        let jobs = jobs(&workloads, &strategies, &OPTIONS);
        let report = run(&jobs, &OPTIONS, &mut Records::default()).unwrap().remove(0);
        let finding = report.finding.as_ref().unwrap();
        assert_eq!((finding.outcome, finding.text.as_str()), (Outcome::Panic, "no look inside"));
        assert!(report.audit.is_some());
    }

    #[test]
    fn the_id_follows_what_a_run_depends_on() {
        let direct = crate::registry::STRATEGIES.iter().find(|entry| entry.name == "direct").unwrap();
        let strategy = Configured { entry: direct, params: Params::new() };
        let id = |text: &str, options: &Options| Job::new(&workload(text), &strategy, options).id;
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
        let job = Job::new(&recorded, &strategy, &none);
        assert_eq!((job.capacity, job.limit), (1000, Some(500)));
        let job = Job::new(&bare, &strategy, &none);
        assert_eq!((job.capacity, job.limit), (DEFAULT_CAPACITY, None));
        let given = Options { capacity: Some(7), limit: LimitChoice::Lifted, ..OPTIONS };
        let job = Job::new(&recorded, &strategy, &given);
        assert_eq!((job.capacity, job.limit), (7, None));
    }
}
