//! `harness fidelity`: PyTorch's recorded decisions against those of our caching allocator.

use crate::args::FidelityArgs;
use allocator_core::DeviceInfo;
use harness::exit::Error;
use harness::fidelity::{Report, Verdict, check};
use harness::load::{self, Unread};
use harness::output::{Output, complain};
use harness::size::{bytes, counted, grouped};
use std::panic::catch_unwind;
use std::path::Path;
use strategy_caching::{Caching, Settings, Torch211};
use workload_gen::import::{ImportError, choose_device};
use workload_gen::plain_path;
use workload_gen::snapshot::{Snapshot, SnapshotError};

const COLUMNS: [&str; 8] = [
    "file",
    "events",
    "matched",
    "inferred",
    "first_divergence",
    "reserved_peak_bytes",
    "recorded_reserved_peak_bytes",
    "verdict",
];

/// Runs the command: a line for each file, as soon as it is known. A file that cannot be checked does not keep the others
/// from it.
pub fn fidelity(args: &FidelityArgs, out: &mut Output) -> Result<(), Error> {
    let is_csv = args.csv.is_some();
    if is_csv {
        csv_line(out, COLUMNS.map(str::to_string))?;
    }
    let (mut unlike, mut failed) = (0, None);
    for file in &args.files {
        let name = plain_path(file);
        let checked = catch_unwind(|| report(file, args.device));
        match checked.unwrap_or_else(|_| Err(Error::Internal(format!("{name}: a bug of the check, see above")))) {
            Ok(report) => {
                unlike += usize::from(report.verdict != Verdict::Exact);
                if is_csv {
                    csv_line(out, cells(name, &report))?
                } else {
                    out.line(format_args!("{}", line(&name, &report)))?
                }
            }
            Err(error) => {
                if is_csv {
                    csv_line(out, error_cells(name))?
                }
                // The last one is reported when the program ends.
                if let Some(before) = failed.replace(error) {
                    complain(format_args!("error: {before}"));
                }
            }
        }
        out.flush()?;
    }
    match (failed, unlike) {
        (Some(error), _) => Err(error),
        (None, 0) => Ok(()),
        (None, _) => {
            Err(Error::CheckFailed(format!("not exact: {unlike} of {}", counted(args.files.len(), "file", "files"))))
        }
    }
}

fn report(file: &Path, device: Option<u32>) -> Result<Report, Error> {
    let import_error = |why: ImportError| match why {
        ImportError::SeveralDevices { .. } => Error::Usage(format!("{why} with --device N")),
        why => Unread::Import(why).into_error(),
    };
    let sidecar = load::sidecar(file).map_err(import_error)?;
    let input = load::open(file).map_err(|source| SnapshotError::Open { file: plain_path(file), source });
    let snapshot = input.and_then(Snapshot::read_input).map_err(|why| import_error(why.into()))?;
    let device = match choose_device(&snapshot, device) {
        Ok(device) => device,
        // Without any history there is nothing to choose; the check says that it is incomplete.
        Err(ImportError::NoHistory { .. }) => 0,
        Err(why) => return Err(import_error(why)),
    };
    let make = |conf: &str, info: &DeviceInfo| {
        let mut settings = Settings::default();
        settings.parse(conf)?;
        Caching::<Torch211>::with_settings(settings, info)
    };
    check(&snapshot, device as usize, sidecar.as_ref(), make).map_err(|why| {
        let (name, file) = (load::name_of(file), plain_path(file));
        let way_out = format!("correct them as `conf` in {name}.json beside it, which goes before the snapshot's own");
        Error::Unreadable(format!("{file}: the settings it was recorded under: {why}; {way_out}"))
    })
}

fn cells(file: String, report: &Report) -> [String; COLUMNS.len()] {
    [
        file,
        report.events.to_string(),
        report.matched.to_string(),
        report.inferred.to_string(),
        report.first_divergence.map_or(String::new(), |entry| entry.to_string()),
        report.reserved_peak_bytes.to_string(),
        report.recorded_reserved_peak_bytes.to_string(),
        report.verdict.to_string(),
    ]
}

/// A row without numbers: why there are none is said on standard error.
fn error_cells(file: String) -> [String; COLUMNS.len()] {
    let mut cells = [const { String::new() }; COLUMNS.len()];
    cells[0] = file;
    cells[COLUMNS.len() - 1] = "error".to_owned();
    cells
}

fn csv_line(out: &mut Output, cells: [String; COLUMNS.len()]) -> Result<(), Error> {
    let mut writer = csv::Writer::from_writer(out.writer());
    writer.write_record(cells).map_err(|why| Error::stdout(why.into()))?;
    writer.flush().map_err(Error::stdout)
}

fn line(file: &str, report: &Report) -> String {
    let verdict = report.verdict.to_string();
    let decisions = counted(report.events as usize, "decision", "decisions");
    let detail = match (report.verdict, report.first_divergence) {
        (Verdict::Exact, _) => {
            let peak = bytes(report.reserved_peak_bytes);
            let inferred = counted(report.inferred as usize, "inference", "inferences");
            format!("{decisions}, {inferred}, {peak} reserved, {} statistics", report.statistics)
        }
        (_, Some(entry)) => {
            format!("after {} of {decisions}, at entry {entry}: {}", grouped(report.matched), report.why)
        }
        (_, None) => report.why.clone(),
    };
    format!("{verdict:<10}  {file}: {detail}")
}
