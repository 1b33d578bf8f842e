//! The files of a run. `docs/RESULTS.md` describes every column; a test holds the page to it.
//!
//! Columns and values are written in one place, side by side, so that they cannot drift apart. The rows of a job are
//! written at once and whole: whatever stops a run, what was done is on the disk, and nothing is there by half.

use crate::audit::{Audit, Band, Memory, Point};
use crate::exit::Error;
use crate::integrity::Integrity;
use crate::machine::MachineFile;
use crate::peak::Piece;
use crate::replay::{Finding, Outcome, Spent};
use crate::run::{Job, Pass, Report};
use crate::timing::{Latencies, SAMPLED_EVERY, Times, median};
use allocator_core::CallKind;
use hdrhistogram::Histogram;
use std::borrow::Cow;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Results are kept here unless `-o` says otherwise.
pub(crate) const DEFAULT_PARENT: &str = "runs";

const MACHINE: &str = "machine.toml";
const RUN: &str = "run.csv";
const TIMES: &str = "times.csv";
const TIMELINE: &str = "timeline.csv";
const PEAK: &str = "peak.csv";
const INTEGRITY: &str = "integrity.csv";
const DECISIONS: &str = "decisions.csv";

/// Where rows go: files in a fresh folder, standard output, or both.
#[derive(Debug, Default)]
pub struct Records {
    folder: Option<PathBuf>,
    /// Whether the folder was made for this run.
    is_new: bool,
    run: Vec<Sheet>,
    times: Vec<Sheet>,
    timeline: Vec<Sheet>,
    peak: Vec<Sheet>,
    integrity: Vec<Sheet>,
    decisions: Vec<Sheet>,
}

impl Records {
    /// Makes the folder and opens all files in it, so that a run that cannot be kept does not begin. `folder` must be
    /// new or empty; without one, the next free `runs/run-NNN` is made. `sample` is any of the jobs to come.
    pub fn in_folder(
        folder: Option<&Path>,
        pass: Pass,
        machine: &MachineFile,
        sample: &Job<'_>,
    ) -> Result<Records, Error> {
        let text = toml::to_string(machine).map_err(|why| Error::Internal(format!("{MACHINE}: {why}")))?;
        let (folder, is_new) = match folder {
            Some(folder) => named_folder(folder)?,
            None => (numbered_folder(Path::new(DEFAULT_PARENT))?, true),
        };
        let path = folder.join(MACHINE);
        // Of two runs that found the folder empty, the second one stops here.
        let mut file = File::create_new(&path).map_err(|why| match why.kind() {
            io::ErrorKind::AlreadyExists => not_empty(&folder),
            _ => Error::unwritable(&path, why),
        })?;
        let mut records = Records { folder: Some(folder), is_new, ..Records::default() };
        let written = file.write_all(text.as_bytes()).map_err(|why| Error::unwritable(&path, why));
        match written.and_then(|()| records.open(pass, sample)) {
            Ok(()) => Ok(records),
            Err(error) => {
                records.discard();
                Err(error)
            }
        }
    }

    /// Opens the sheets in the folder.
    fn open(&mut self, pass: Pass, sample: &Job<'_>) -> Result<(), Error> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let sheet = |is_wanted: bool, name: &str, header: Row| -> Result<Vec<Sheet>, Error> {
            if is_wanted { Ok(vec![Sheet::create(folder.join(name), &header)?]) } else { Ok(Vec::new()) }
        };
        let none = Report::default();
        self.run = sheet(!pass.only_checks(), RUN, run_row(sample, &none))?;
        self.times = sheet(pass.times(), TIMES, times_row(sample, 0, None, None))?;
        self.timeline = sheet(pass.audits(), TIMELINE, timeline_row(sample, &Point::new(0)))?;
        self.peak = sheet(pass.audits(), PEAK, peak_row(sample, &Piece::NONE))?;
        self.integrity = sheet(pass == Pass::Integrity, INTEGRITY, integrity_row(sample, &none))?;
        self.decisions = sheet(pass == Pass::Decisions, DECISIONS, decisions_row(sample, &none))?;
        Ok(())
    }

    /// Takes back the files of a run of which nothing is known, so that nobody takes them for results. What cannot be
    /// taken back stays; there is an error already.
    pub(crate) fn discard(&mut self) {
        let Some(folder) = self.folder.take() else { return };
        for name in [MACHINE, RUN, TIMES, TIMELINE, PEAK, INTEGRITY, DECISIONS] {
            let _ = fs::remove_file(folder.join(name));
        }
        if self.is_new {
            let _ = fs::remove_dir(folder);
        }
    }

    /// Writes one table to standard output as well: the exact rows, or the times if only those are made.
    pub fn and_to_stdout(mut self, pass: Pass, sample: &Job<'_>) -> Result<Records, Error> {
        let (sheets, header) = match pass {
            Pass::Time => (&mut self.times, times_row(sample, 0, None, None)),
            Pass::Audit | Pass::All => (&mut self.run, run_row(sample, &Report::default())),
            Pass::Integrity => (&mut self.integrity, integrity_row(sample, &Report::default())),
            Pass::Decisions => (&mut self.decisions, decisions_row(sample, &Report::default())),
        };
        match Sheet::stdout(&header) {
            Ok(sheet) => sheets.push(sheet),
            Err(Error::ClosedPipe) if self.folder.is_some() => {}
            Err(error) => return Err(error),
        }
        Ok(self)
    }

    /// Whether rows go to a terminal.
    pub(crate) fn are_watched(&self) -> bool {
        let sheets = [&self.run, &self.times, &self.integrity, &self.decisions];
        sheets.into_iter().flatten().any(|sheet| sheet.file.is_none()) && io::stdout().is_terminal()
    }

    /// The folder, if there is one.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Writes what the exact passes found out about a job.
    pub(crate) fn exact(&mut self, job: &Job<'_>, report: &Report) -> Result<(), Error> {
        let keep_going = self.folder.is_some();
        write_all(&mut self.run, keep_going, &[run_row(job, report)])?;
        let points = report.audit.iter().flat_map(|audit| &audit.timeline);
        let rows: Vec<Row> = points.map(|point| timeline_row(job, point)).collect();
        write_all(&mut self.timeline, keep_going, &rows)?;
        let rows: Vec<Row> = report.map.iter().map(|piece| peak_row(job, piece)).collect();
        write_all(&mut self.peak, keep_going, &rows)?;
        write_all(&mut self.integrity, keep_going, &[integrity_row(job, report)])?;
        write_all(&mut self.decisions, keep_going, &[decisions_row(job, report)])
    }

    /// Writes what was measured of a job.
    pub(crate) fn times(
        &mut self,
        job: &Job<'_>,
        repeats: u32,
        times: Option<&Times>,
        finding: Option<&Finding>,
    ) -> Result<(), Error> {
        let row = [times_row(job, repeats, times, finding)];
        write_all(&mut self.times, self.folder.is_some(), &row)
    }
}

/// Writes rows to all of `sheets`. If files are kept too, a reader of standard output who leaves ends nothing.
fn write_all(sheets: &mut Vec<Sheet>, keep_going: bool, rows: &[Row]) -> Result<(), Error> {
    let mut result = Ok(());
    sheets.retain_mut(|sheet| match sheet.write(rows) {
        Err(Error::ClosedPipe) if keep_going => false,
        written => {
            result = result.clone().and(written);
            true
        }
    });
    result
}

/// The folder, and whether it is new.
fn named_folder(folder: &Path) -> Result<(PathBuf, bool), Error> {
    if folder.is_file() {
        return Err(Error::unwritable(folder, "it is a file; name a folder"));
    }
    let is_new = !folder.exists();
    fs::create_dir_all(folder).map_err(|why| Error::unwritable(folder, why))?;
    let mut entries = fs::read_dir(folder).map_err(|why| Error::unwritable(folder, why))?;
    if entries.next().is_some() { Err(not_empty(folder)) } else { Ok((folder.to_path_buf(), is_new)) }
}

fn not_empty(folder: &Path) -> Error {
    Error::unwritable(folder, "it is not empty, and results are never overwritten; name a new folder")
}

fn numbered_folder(parent: &Path) -> Result<PathBuf, Error> {
    let unwritable = |folder: &Path, why: &dyn Display| {
        let way_out = "name a folder elsewhere with -o DIR, or keep no files with --csv -";
        Error::unwritable(folder, format!("{why}; {way_out}"))
    };
    fs::create_dir_all(parent).map_err(|why| unwritable(parent, &why))?;
    for number in 1u32.. {
        let folder = parent.join(format!("run-{number:03}"));
        match fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists => {}
            Err(why) => return Err(unwritable(&folder, &why)),
        }
    }
    Err(unwritable(parent, &"all numbers are taken"))
}

/// Columns with their values.
#[derive(Debug, Default)]
struct Row(Vec<(Cow<'static, str>, String)>);

impl Row {
    fn put(&mut self, column: impl Into<Cow<'static, str>>, value: impl ToString) {
        self.0.push((column.into(), value.to_string()));
    }

    /// Unknown is an empty cell.
    fn maybe(&mut self, column: impl Into<Cow<'static, str>>, value: Option<u64>) {
        self.0.push((column.into(), value.map_or(String::new(), |value| value.to_string())));
    }

    fn outcome(&mut self, finding: Option<&Finding>) {
        self.put("outcome", finding.map_or(Outcome::Ok, |finding| finding.outcome).name());
        self.maybe("outcome_event", finding.and_then(|finding| finding.event));
        self.put("outcome_detail", finding.map_or("", |finding| &finding.text));
    }
}

/// A CSV file, or standard output as one.
#[derive(Debug)]
struct Sheet {
    /// The file and how long it was after its last whole row; nothing for standard output.
    file: Option<(File, PathBuf, u64)>,
}

impl Sheet {
    fn create(path: PathBuf, header: &Row) -> Result<Sheet, Error> {
        let file = File::create_new(&path).map_err(|why| Error::unwritable(&path, why))?;
        Sheet { file: Some((file, path, 0)) }.with_header(header)
    }

    fn stdout(header: &Row) -> Result<Sheet, Error> {
        Sheet { file: None }.with_header(header)
    }

    fn with_header(mut self, Row(cells): &Row) -> Result<Sheet, Error> {
        self.put(&csv_text([cells.iter().map(|(column, _)| column.as_bytes())])?)?;
        Ok(self)
    }

    fn write(&mut self, rows: &[Row]) -> Result<(), Error> {
        self.put(&csv_text(rows.iter().map(|Row(cells)| cells.iter().map(|(_, value)| value.as_bytes())))?)
    }

    /// Writes whole rows, or nothing of them.
    fn put(&mut self, rows: &[u8]) -> Result<(), Error> {
        let Some((file, path, len)) = &mut self.file else {
            let mut out = io::stdout().lock();
            return out.write_all(rows).and_then(|()| out.flush()).map_err(Error::stdout);
        };
        match file.write_all(rows) {
            Ok(()) => {
                *len += rows.len() as u64;
                Ok(())
            }
            Err(why) => {
                // The first error is the one to report.
                let _ = file.set_len(*len);
                Err(Error::unwritable(path, why))
            }
        }
    }
}

fn csv_text<'c>(rows: impl IntoIterator<Item = impl Iterator<Item = &'c [u8]>>) -> Result<Vec<u8>, Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in rows {
        writer.write_record(row).map_err(|why| Error::Internal(why.to_string()))?;
    }
    writer.into_inner().map_err(|why| Error::Internal(why.to_string()))
}

fn run_row(job: &Job<'_>, report: &Report) -> Row {
    let mut row = Row::default();
    row.put("run", &job.id);
    row.put("workload", &job.workload.name);
    row.put("trace_hash", &job.workload.hash);
    row.put("events", job.workload.trace.events.len());
    row.put("strategy", job.strategy.entry.name);
    row.put("params", job.strategy.params_json());
    row.put("device", job.target.name());
    row.put("profile", job.target.profile());
    row.put("capacity_bytes", job.capacity);
    row.maybe("limit_bytes", job.limit);
    row.outcome(report.finding.as_ref());

    let audit = report.audit.as_ref();
    let mut count = |column, pick: fn(&Audit) -> u64| row.maybe(column, audit.map(pick));
    count("failed_allocs", |audit| audit.failed_allocs);
    count("skipped_events", |audit| audit.skipped_events);
    count("pool_fallbacks", |audit| audit.pool_fallbacks);
    count("unsupported_controls", |audit| audit.unsupported_controls);

    let memory = audit.map(|audit| &audit.memory);
    let mut figure = |column, pick: fn(&Memory) -> u64| row.maybe(column, memory.map(pick));
    figure("requested_peak_bytes", |memory| memory.requested_peak);
    figure("load_peak_bytes", |memory| memory.load_peak);
    figure("pending_peak_bytes", |memory| memory.pending_peak);
    figure("reserved_peak_bytes", |memory| memory.reserved_peak);
    figure("device_used_peak_bytes", |memory| memory.device_used_peak);
    figure("reserved_peak_event", |memory| memory.reserved_peak_event);
    figure("load_at_reserved_peak_bytes", |memory| memory.load_at_reserved_peak);
    figure("requested_at_reserved_peak_bytes", |memory| memory.requested_at_reserved_peak);
    figure("reserved_end_bytes", |memory| memory.reserved_end);
    figure("requested_end_bytes", |memory| memory.requested_end);
    // Measured times are in times.csv.
    let modelled = memory.filter(|_| job.target.card().is_none());
    row.maybe("modelled_driver_ns", modelled.map(|memory| memory.driver_ns));
    row.maybe("modelled_end_ns", modelled.map(|memory| memory.end_ns));
    for kind in CallKind::ALL {
        row.maybe(format!("calls_{kind}"), memory.map(|memory| memory.calls[kind as usize]));
    }
    row.maybe("last_driver_event", memory.and_then(|memory| memory.last_driver_event));
    row
}

fn timeline_row(job: &Job<'_>, point: &Point) -> Row {
    let mut row = Row::default();
    row.put("run", &job.id);
    row.put("event", point.event);
    row.put("events", point.events);
    row.maybe("modelled_end_ns", job.target.card().is_none().then_some(point.end_ns));
    let series: [(&str, Band); 5] = [
        ("reserved", point.reserved),
        ("device_used", point.device_used),
        ("requested", point.requested),
        ("load", point.load),
        ("pending", point.pending),
    ];
    for (name, band) in series {
        row.put(format!("{name}_min_bytes"), band.min);
        row.put(format!("{name}_max_bytes"), band.max);
    }
    row
}

fn peak_row(job: &Job<'_>, piece: &Piece) -> Row {
    let mut row = Row::default();
    row.put("run", &job.id);
    row.put("segment", piece.segment);
    row.put("ptr", piece.ptr);
    row.put("size_bytes", piece.size);
    row.put("state", piece.state.name());
    row.put("stream", piece.stream);
    row.put("pool", piece.pool.0);
    row.put("spans", piece.spans);
    row
}

fn integrity_row(job: &Job<'_>, report: &Report) -> Row {
    let mut row = check_row(job, report);
    let mut count = |column, pick: fn(&Integrity) -> u64| row.maybe(column, report.integrity.as_ref().map(pick));
    count("blocks", |integrity| integrity.blocks);
    count("filled_bytes", |integrity| integrity.bytes);
    count("checks", |integrity| integrity.checks);
    count("cross_checks", |integrity| integrity.cross_checks);
    count("violations", |integrity| integrity.violations);
    row
}

fn decisions_row(job: &Job<'_>, report: &Report) -> Row {
    let mut row = check_row(job, report);
    let decisions = report.decisions.as_ref();
    row.maybe("blocks", decisions.map(|decisions| decisions.blocks));
    row.maybe("device_calls", decisions.map(|decisions| decisions.device_calls));
    row.maybe("elsewhere_on_sim", decisions.and_then(|decisions| decisions.elsewhere));
    row.maybe("first_elsewhere_event", decisions.and_then(|decisions| decisions.first_elsewhere));
    row
}

/// How the rows of a check begin.
fn check_row(job: &Job<'_>, report: &Report) -> Row {
    let mut row = Row::default();
    row.put("run", &job.id);
    row.put("workload", &job.workload.name);
    row.put("strategy", job.strategy.entry.name);
    row.put("params", job.strategy.params_json());
    row.put("device", job.target.name());
    row.put("profile", job.target.profile());
    row.put("capacity_bytes", job.capacity);
    row.outcome(report.finding.as_ref());
    row
}

fn times_row(job: &Job<'_>, repeats: u32, times: Option<&Times>, finding: Option<&Finding>) -> Row {
    let mut row = Row::default();
    row.put("run", &job.id);
    row.put("workload", &job.workload.name);
    row.put("strategy", job.strategy.entry.name);
    row.outcome(finding);
    row.put("repeats", repeats);
    let mut total = |column, pick: fn(&Times) -> Option<u64>| row.maybe(column, times.and_then(pick));
    total("ops", |times| Some(times.ops));
    total("total_median_ns", |times| median(&times.total_ns));
    total("total_min_ns", |times| times.total_ns.first().copied());
    total("total_max_ns", |times| times.total_ns.last().copied());
    total("null_total_median_ns", |times| median(&times.null_ns));
    total("null_total_min_ns", |times| times.null_ns.first().copied());
    let (subject, null) = (times.map(|times| &times.latencies), times.map(|times| &times.null_latencies));
    row.put("sampled_every", SAMPLED_EVERY);
    latency_cells(&mut row, "alloc", subject, |latencies| &latencies.alloc);
    latency_cells(&mut row, "alloc_hit", subject, |latencies| &latencies.alloc_hit);
    latency_cells(&mut row, "free", subject, |latencies| &latencies.free);
    latency_cells(&mut row, "null_alloc", null, |latencies| &latencies.alloc);
    latency_cells(&mut row, "null_free", null, |latencies| &latencies.free);
    row.put("device", job.target.name());
    latency_cells(&mut row, "alloc_miss", subject, |latencies| &latencies.alloc_miss);
    let measured = subject.filter(|_| job.target.card().is_some());
    latency_cells(&mut row, "alloc_driver", measured, |latencies| &latencies.alloc_driver);
    let spent = times.filter(|_| job.target.card().is_some()).map_or(&[][..], |times| &times.driver);
    let ascending = |pick: &dyn Fn(&Spent) -> u64| {
        let mut all: Vec<u64> = spent.iter().map(pick).collect();
        all.sort_unstable();
        all
    };
    let totals = ascending(&Spent::total_ns);
    row.maybe("driver_median_ns", median(&totals));
    row.maybe("driver_min_ns", totals.first().copied());
    row.maybe("driver_max_ns", totals.last().copied());
    for kind in CallKind::ALL {
        row.maybe(format!("driver_{kind}_ns"), median(&ascending(&|spent| spent.ns[kind as usize])));
    }
    row
}

fn latency_cells(row: &mut Row, name: &str, latencies: Option<&Latencies>, pick: fn(&Latencies) -> &Histogram<u64>) {
    let histogram = latencies.map(pick);
    // Without a sample there is no percentile.
    let sampled = histogram.filter(|histogram| !histogram.is_empty());
    row.maybe(format!("{name}_samples"), histogram.map(Histogram::len));
    for (column, quantile) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
        row.maybe(format!("{name}_{column}_ns"), sampled.map(|histogram| histogram.value_at_quantile(quantile)));
    }
    row.maybe(format!("{name}_max_ns"), sampled.map(Histogram::max));
}
