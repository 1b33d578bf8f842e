//! `harness trace compare`: how like a recording a generated trace is, and where the two part.

use crate::args::CompareTracesArgs;
use harness::exit::Error;
use harness::forms::Table;
use harness::interrupt::Interrupt;
use harness::load::{self, Workload};
use harness::output::{Output, width};
use harness::record::Records;
use harness::registry::{Entry, STRATEGIES, configure};
use harness::replay::Outcome;
use harness::run::{self, DEFAULT_CAPACITY, LimitChoice, Options, Pass, Report};
use harness::size::{bytes, grouped};
use harness::target::Target;
use harness::wrap::wrapped;
use serde_json::{Value, json};
use std::num::NonZeroUsize;
use workload_gen::likeness::{Alignment, Distance, Divergence, Pair, SizeCount, align, likeness, sizes, unlike_sizes};
use workload_gen::{Trace, plain};

/// The strategies whose utilisation has to be alike: PyTorch's two.
const COMPARED: [&str; 2] = ["caching", "expandable"];

/// Allocations of a side that are shown where the two part.
const SHOWN: usize = 12;

/// Something that the two are compared by.
struct Measure {
    title: String,
    values: Pair<String>,
    difference: String,
    bar: String,
    is_met: bool,
    /// For programs.
    record: Value,
}

/// Runs the command.
pub(super) fn compare(args: &CompareTracesArgs, out: &mut Output) -> Result<(), Error> {
    let workloads = [load::named(&args.recording)?.load()?, load::named(&args.generated)?.load()?];
    let traces = Pair { recording: &workloads[0].trace, generated: &workloads[1].trace };
    let alike = likeness(traces);
    let mut measures = vec![
        relative("peak requested", "peak_requested_bytes", alike.peak_bytes, bytes, args.peak),
        relative("allocations", "allocations", alike.allocs, grouped, args.allocs),
        distance("sizes, by bytes", "sizes", &alike.sizes, args.sizes),
        distance("lifetimes, by bytes", "lifetimes", &alike.lifetimes, args.lifetimes),
    ];
    measures.extend(utilisations(&workloads, args.utilisation)?);
    let details = (args.diff > 0).then(|| Details::new(traces, args.diff));
    if args.json {
        let measures: serde_json::Map<String, Value> = measures
            .iter()
            .filter_map(|one| Some((one.record["measure"].as_str()?.to_string(), one.record.clone())))
            .collect();
        let mut all = json!({
            "recording": workloads[0].name,
            "generated": workloads[1].name,
            "measures": measures,
        });
        if let (Some(details), Some(all)) = (&details, all.as_object_mut()) {
            all.insert("sizes".to_string(), details.sizes_record());
            all.insert("divergences".to_string(), details.divergences_record());
        }
        out.line(format_args!("{all:#}"))?;
    } else {
        let rows = measures.iter().map(|one| {
            let met = if one.is_met { "met" } else { "missed" };
            let Pair { recording, generated } = &one.values;
            vec![
                one.title.clone(),
                recording.clone(),
                generated.clone(),
                one.difference.clone(),
                one.bar.clone(),
                met.into(),
            ]
        });
        let head = ["", "recording", "generated", "difference", "bar", ""];
        out.text(&Table::plain(head, rows).text(width()))?;
        out.line(format_args!(""))?;
        place(out, "size", &alike.sizes, bytes)?;
        place(out, "lifetime", &alike.lifetimes, grouped)?;
        if let Some(details) = &details {
            details.print(out)?;
        }
    }
    let missed: Vec<&str> = measures.iter().filter(|one| !one.is_met).map(|one| one.title.as_str()).collect();
    match missed[..] {
        [] => Ok(()),
        _ => Err(Error::CheckFailed(format!(
            "{} is not like {}: {} of {} bars are missed ({})",
            workloads[1].name,
            workloads[0].name,
            missed.len(),
            measures.len(),
            missed.join("; ")
        ))),
    }
}

fn relative(title: &str, key: &str, values: Pair<u64>, show: fn(u64) -> String, bar: f64) -> Measure {
    let percent = values.excess() * 100.0;
    let is_met = percent.abs() <= bar;
    Measure {
        title: title.to_string(),
        values: values.of(show),
        difference: format!("{percent:+.2} %"),
        bar: format!("{bar} %"),
        is_met,
        record: json!({
            "measure": key, "recording": values.recording, "generated": values.generated,
            "difference_percent": percent.is_finite().then_some(percent), "bar_percent": bar, "met": is_met,
        }),
    }
}

fn distance(title: &str, key: &str, distance: &Distance, bar: f64) -> Measure {
    let is_met = distance.distance <= bar;
    Measure {
        title: title.to_string(),
        values: Pair { recording: String::new(), generated: String::new() },
        difference: format!("{:.4}", distance.distance),
        bar: bar.to_string(),
        is_met,
        record: json!({
            "measure": key, "distance": distance.distance, "at": distance.at,
            "recording_share": distance.below.recording, "generated_share": distance.below.generated,
            "bar": bar, "met": is_met,
        }),
    }
}

/// Where a distance comes from.
fn place(out: &mut Output, what: &str, distance: &Distance, show: fn(u64) -> String) -> Result<(), Error> {
    if distance.distance == 0.0 {
        return Ok(());
    }
    let Pair { recording, generated } = distance.below.of(|share| format!("{:.1} %", share * 100.0));
    let text = format!(
        "{what}s are furthest apart at {}: {recording} of the recording's bytes have no greater {what}, {generated} of the \
         generated",
        show(distance.at)
    );
    out.line(format_args!("{}", wrapped(&text, 2, width())))
}

/// How well each of the compared strategies uses memory on both traces. Both run as the recording did, on the recording's
/// device and under its limit.
fn utilisations(workloads: &[Workload; 2], bar: f64) -> Result<Vec<Measure>, Error> {
    let recording = &workloads[0].trace.header;
    let options = Options {
        pass: Pass::Audit,
        repeats: 1,
        capacity: Some(recording.device_bytes.unwrap_or(DEFAULT_CAPACITY)),
        limit: recording.limit_bytes.map_or(LimitChoice::Lifted, LimitChoice::Bytes),
        jobs: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
    };
    let entries: Vec<&'static Entry> = STRATEGIES.iter().filter(|entry| COMPARED.contains(&entry.name)).collect();
    let strategies = configure(&entries, &[])?;
    let targets = [Target::default()];
    let jobs = run::jobs(workloads, &targets, &strategies, &options);
    run::check(&jobs, options.pass)?;
    let reports = run::run(&jobs, &options, &mut Records::default(), &Interrupt::default())?;
    let (recorded, generated) = reports.split_at(strategies.len());
    let both = recorded.iter().zip(generated).zip(&strategies);
    let measure = |((recording, generated), strategy): ((&Report, &Report), &harness::registry::Configured)| {
        let shares = Pair { recording, generated }.of(utilisation);
        let difference = match (shares.recording, shares.generated) {
            (Ok(recording), Ok(generated)) => Some((generated - recording) * 100.0),
            _ => None,
        };
        let is_met = difference.is_some_and(|points| points.abs() <= bar);
        Measure {
            title: format!("utilisation, {}", strategy.entry.name),
            values: shares.of(|share| share.map_or_else(str::to_string, |share| format!("{:.2} %", share * 100.0))),
            difference: difference.map_or(String::new(), |points| format!("{points:+.2} points")),
            bar: format!("{bar} points"),
            is_met,
            record: json!({
                "measure": format!("utilisation_{}", strategy.entry.name),
                "recording": shares.recording.ok(), "generated": shares.generated.ok(),
                "difference_points": difference, "bar_points": bar, "met": is_met,
            }),
        }
    };
    Ok(both.map(measure).collect())
}

/// The load bound over the reserved peak. What was refused is in neither, so a run that failed says how and no more.
fn utilisation(report: &Report) -> Result<f64, &'static str> {
    match (&report.audit, report.outcome()) {
        (Some(audit), Outcome::Ok) => {
            let memory = &audit.memory;
            Ok(if memory.reserved_peak == 0 { 1.0 } else { memory.load_peak as f64 / memory.reserved_peak as f64 })
        }
        (_, outcome) => Err(outcome.name()),
    }
}

/// What `--diff` shows.
struct Details<'t> {
    traces: Pair<&'t Trace>,
    limit: usize,
    sizes: Pair<Vec<u64>>,
    unlike: Vec<SizeCount>,
    alignment: Alignment,
}

impl<'t> Details<'t> {
    fn new(traces: Pair<&'t Trace>, limit: usize) -> Details<'t> {
        let sizes = traces.of(|trace| sizes(trace).collect::<Vec<u64>>());
        let alignment = align(&sizes.recording, &sizes.generated);
        Details { traces, limit, unlike: unlike_sizes(traces), sizes, alignment }
    }

    fn print(&self, out: &mut Output) -> Result<(), Error> {
        let more = |all: usize| match all.saturating_sub(self.limit) {
            0 => String::new(),
            more => format!("; {} more follow", grouped(more as u64)),
        };
        let all = self.unlike.len();
        out.line(format_args!("\n{} sizes are allocated unlike often{}", grouped(all as u64), more(all)))?;
        let rows = self.unlike.iter().take(self.limit).map(|one| {
            let Pair { recording, generated } = one.allocs.of(grouped);
            vec![grouped(one.size), recording, generated]
        });
        if all > 0 {
            out.text(&Table::plain(["bytes", "recording", "generated"], rows).text(width()))?;
        }
        let parts = self.alignment.divergences.len();
        let (alike, all) = (self.alignment.alike as u64, self.sizes.recording.len() as u64);
        out.line(format_args!(
            "\n{} of the recording's {} allocations are met in order; the two part {} times{}",
            grouped(alike),
            grouped(all),
            grouped(parts as u64),
            more(parts)
        ))?;
        for divergence in self.alignment.divergences.iter().take(self.limit) {
            let before = divergence.at.generated.checked_sub(1);
            let before = before.and_then(|before| label(self.traces.generated, before));
            let before = before.map_or(String::new(), |label| format!(", after {}", plain(label)));
            let at = divergence.at.of(|at| grouped(at as u64));
            out.line(format_args!("@ allocation {} / {}{before}", at.recording, at.generated))?;
            self.side(
                out,
                '-',
                self.traces.recording,
                &self.sizes.recording,
                divergence.at.recording,
                divergence.len.recording,
            )?;
            self.side(
                out,
                '+',
                self.traces.generated,
                &self.sizes.generated,
                divergence.at.generated,
                divergence.len.generated,
            )?;
        }
        Ok(())
    }

    fn side(
        &self,
        out: &mut Output,
        sign: char,
        trace: &Trace,
        sizes: &[u64],
        at: usize,
        len: usize,
    ) -> Result<(), Error> {
        for (number, size) in sizes.iter().enumerate().skip(at).take(len.min(SHOWN)) {
            let label = label(trace, number).map_or(String::new(), |label| format!("  {}", plain(label)));
            out.line(format_args!("{sign} {:>15}{label}", grouped(*size)))?;
        }
        match len.saturating_sub(SHOWN) {
            0 => Ok(()),
            more => out.line(format_args!("{sign} and {} more", grouped(more as u64))),
        }
    }

    fn sizes_record(&self) -> Value {
        let record = |one: &SizeCount| json!({ "bytes": one.size, "recording": one.allocs.recording, "generated": one.allocs.generated });
        self.unlike.iter().take(self.limit).map(record).collect()
    }

    fn divergences_record(&self) -> Value {
        let side = |trace: &Trace, sizes: &[u64], at: usize, len: usize| {
            let shown = at..at + len.min(SHOWN);
            let labels: Vec<&str> = shown.clone().filter_map(|number| label(trace, number)).collect();
            json!({ "at": at, "allocations": len, "first_sizes": sizes[shown], "first_labels": labels })
        };
        let record = |Divergence { at, len }: &Divergence| {
            json!({
                "recording": side(self.traces.recording, &self.sizes.recording, at.recording, len.recording),
                "generated": side(self.traces.generated, &self.sizes.generated, at.generated, len.generated),
            })
        };
        self.alignment.divergences.iter().take(self.limit).map(record).collect()
    }
}

/// The label of an allocation, by its number.
fn label(trace: &Trace, allocation: usize) -> Option<&str> {
    let label = *trace.labels.get(allocation)?;
    trace.label_texts.get(label as usize).map(String::as_str)
}
