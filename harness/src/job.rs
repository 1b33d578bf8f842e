//! One workload on one strategy on one device: what it is, and the passes over it.

use crate::audit::{Audit, audit};
use crate::decisions::{Decisions, decisions};
use crate::exit::Error;
use crate::hash::Hash;
use crate::integrity::{Integrity, integrity};
use crate::interrupt::Interrupt;
use crate::load::Workload;
use crate::peak::{Piece, peak};
use crate::registry::{Configured, MemoryLimit, written};
use crate::replay::{Finding, Outcome, Replay};
use crate::run::{LimitChoice, Options, Pass};
use crate::size::bytes;
use crate::target::Target;
use crate::timing::{Times, time};
use allocator_core::cuda::CudaDevice;
use allocator_core::{ConfigError, Device, DeviceError, Machine, SimDevice};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use workload_gen::Event;

/// Capacity of the device if neither the command line nor the trace says one: 80 GiB, as on an A100 or H100.
pub const DEFAULT_CAPACITY: u64 = 80 << 30;

/// A strategy and a device that have served nothing.
type Fresh = (Box<dyn Replay>, Box<dyn Machine>);

/// See the module.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// The workload.
    pub workload: &'a Workload,
    /// The strategy.
    pub strategy: &'a Configured,
    /// The device.
    pub target: &'a Target,
    /// Bytes of the device.
    pub capacity: u64,
    /// Bytes that the strategy may hold.
    pub limit: Option<u64>,
    /// Identifies the job in all files: a hash of everything above.
    pub id: String,
}

/// What became of a job.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The audit, unless not wanted or not finished.
    pub audit: Option<Audit>,
    /// The address map at the peak that the audit found.
    pub map: Vec<Piece>,
    /// The times, unless not wanted or not finished.
    pub times: Option<Times>,
    /// The integrity pass, unless not wanted or not finished.
    pub integrity: Option<Integrity>,
    /// The comparison of decisions, unless not wanted or not finished.
    pub decisions: Option<Decisions>,
    /// What went wrong in the first of these that was wanted.
    pub finding: Option<Finding>,
}

impl Report {
    /// How it ended.
    pub fn outcome(&self) -> Outcome {
        self.finding.as_ref().map_or(Outcome::Ok, |finding| finding.outcome)
    }
}

impl<'a> Job<'a> {
    pub(crate) fn new(
        workload: &'a Workload,
        strategy: &'a Configured,
        target: &'a Target,
        options: &Options,
    ) -> Job<'a> {
        let header = &workload.trace.header;
        let capacity = options.capacity.or(header.device_bytes).unwrap_or(DEFAULT_CAPACITY);
        let limit = match options.limit {
            LimitChoice::OfTrace => header.limit_bytes,
            LimitChoice::Lifted => None,
            // Nothing can reach it, so it is none; the id of a run says so too.
            LimitChoice::Bytes(u64::MAX) => None,
            LimitChoice::Bytes(bytes) => Some(bytes),
        };
        let mut hash = Hash::default();
        let (params, profile) = (strategy.params_json(), target.profile());
        for text in [&workload.name, &workload.hash, strategy.entry.name, &params, target.name(), &profile] {
            hash.text(text);
        }
        hash.number(capacity);
        hash.number(limit.unwrap_or(u64::MAX));
        Job { workload, strategy, target, capacity, limit, id: hash.hex() }
    }

    /// `workload on strategy`, and the device if it is a card.
    pub fn title(&self) -> String {
        let device = self.target.card().map_or(String::new(), |_| format!(", {}", self.target.name()));
        format!("{} on {}{device}", self.workload.name, self.strategy.title())
    }

    fn machine(&self, is_watched: bool) -> Result<Box<dyn Machine>, Finding> {
        self.target.machine(self.capacity, is_watched).map_err(no_machine)
    }

    fn build(&self, dev: &mut dyn Device) -> Result<Box<dyn Replay>, ConfigError> {
        let sets_limit = |event: &Event| matches!(event, Event::Limit { .. });
        let limit = match self.limit {
            Some(bytes) => MemoryLimit::Now(bytes),
            None if self.workload.trace.events.iter().any(sets_limit) => MemoryLimit::Later,
            None => MemoryLimit::Never,
        };
        self.strategy.build(dev, limit)
    }

    fn fresh(&self, is_watched: bool) -> Result<Fresh, Finding> {
        let mut machine = self.machine(is_watched)?;
        let strategy = self.build(&mut machine).map_err(not_built)?;
        Ok((strategy, machine))
    }

    /// Refuses what cannot run: parameters that make no sense, more memory than a card has.
    pub(crate) fn check(&self, pass: Pass) -> Result<(), Error> {
        if pass == Pass::Integrity && self.target.card().is_none() {
            return Err(Error::Usage("--pass integrity writes to real memory; add -d cuda".to_string()));
        }
        if let Some(card) = self.target.card()
            && self.capacity > card.total
        {
            let (capacity, total) = (bytes(self.capacity), bytes(card.total));
            return Err(Error::Usage(format!(
                "{}'s device has {capacity}, and {} has {total}; choose another size with --capacity",
                self.workload.name, card.name
            )));
        }
        let mut machine = self.target.machine(self.capacity, false).map_err(|why| {
            Error::NoDevice(format!("{} does not give {}: {why}", self.target.name(), bytes(self.capacity)))
        })?;
        let Err(why) = self.build(&mut machine) else { return Ok(()) };
        let (name, why) = (self.strategy.entry.name, why.to_string());
        let why = why.trim_end();
        // What works on the usual device does not fail for its parameters.
        if self.build(&mut SimDevice::new(DEFAULT_CAPACITY)).is_ok() {
            let capacity = bytes(self.capacity);
            return Err(Error::Usage(format!(
                "{name} cannot manage {}'s device of {capacity}: {why}; choose another size with --capacity, or leave \
                 the strategy out with -S {name}",
                self.workload.name
            )));
        }
        let changed = self.strategy.changed();
        let changed: Vec<String> = changed.map(|(key, value)| format!("-p {key}={}", written(key, value))).collect();
        Err(Error::Usage(format!(
            "{}: {name}: {why}\n  `harness list` shows every parameter with its default, \
             strategies/{name}/README.md what each takes",
            changed.join(" ")
        )))
    }

    /// Makes the exact passes among those wanted; the report has their results and what they found. After an interrupt
    /// there is none.
    pub(crate) fn examine(&self, pass: Pass, interrupt: &Interrupt) -> Option<Report> {
        let _turn = self.target.turn();
        let mut report = Report::default();
        let result = match pass {
            Pass::Time => Ok(()),
            Pass::Audit | Pass::All => self.audit(interrupt).map(|(audit, map)| {
                report.finding = audit.finding.clone();
                (report.audit, report.map) = (Some(audit), map);
            }),
            Pass::Integrity => self.integrity(interrupt).map(|integrity| {
                report.finding = integrity.finding.clone();
                report.integrity = Some(integrity);
            }),
            Pass::Decisions => self.decisions(interrupt).map(|decisions| {
                report.finding = decisions.finding.clone();
                report.decisions = Some(decisions);
            }),
        };
        if let Err(finding) = result {
            report.finding = Some(finding);
        }
        (!interrupt.came()).then_some(report)
    }

    /// The audit, and the address map at the peak that it found.
    fn audit(&self, interrupt: &Interrupt) -> Result<(Audit, Vec<Piece>), Finding> {
        let mut audited = guarded(|| {
            let (mut strategy, machine) = self.fresh(true)?;
            Ok(audit(&self.workload.trace, strategy.as_mut(), machine, interrupt))
        })?;
        let map = guarded(|| {
            let (mut strategy, machine) = self.fresh(false)?;
            let event = audited.memory.reserved_peak_event;
            Ok(peak(&self.workload.trace, strategy.as_mut(), machine, event, interrupt))
        });
        let map = map.unwrap_or_else(|finding| {
            if audited.finding.as_ref().is_none_or(|known| known.outcome < finding.outcome) {
                audited.finding = Some(finding);
            }
            Vec::new()
        });
        Ok((audited, map))
    }

    /// The times, or what went wrong. After an interrupt there is neither.
    pub(crate) fn time(&self, repeats: u32, interrupt: &Interrupt) -> Option<Result<Times, Finding>> {
        let times = guarded(|| {
            let strategy = |machine: &mut Box<dyn Machine>| self.build(machine).map_err(not_built);
            time(&self.workload.trace, repeats, || self.machine(false), strategy, interrupt)
        });
        (!interrupt.came()).then_some(times)
    }

    fn integrity(&self, interrupt: &Interrupt) -> Result<Integrity, Finding> {
        guarded(|| {
            let Some(card) = self.target.card() else {
                return Err(Finding { outcome: Outcome::Error, event: None, text: "not a card".to_string() });
            };
            let mut device = CudaDevice::new(card.clone(), Some(self.capacity)).map_err(no_machine)?;
            let mut strategy = self.build(&mut device).map_err(not_built)?;
            Ok(integrity(&self.workload.trace, strategy.as_mut(), device, interrupt))
        })
    }

    fn decisions(&self, interrupt: &Interrupt) -> Result<Decisions, Finding> {
        guarded(|| {
            let build = |dev: &mut dyn Device| self.build(dev).map_err(not_built);
            decisions(&self.workload.trace, build, self.machine(false)?, SimDevice::new(self.capacity), interrupt)
        })
    }
}

fn no_machine(why: DeviceError) -> Finding {
    Finding { outcome: Outcome::Error, event: None, text: format!("the device cannot be made: {why}") }
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
