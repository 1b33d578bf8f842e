//! The table that people read after a run: at most 80 columns, or as many as the terminal has, the worst news in colour.
//!
//! Everything in it is computed from what the files hold.

use crate::forms::{GAP, Table};
use crate::output::{BOLD, RED, RESET, YELLOW};
use crate::replay::Outcome;
use crate::run::{Job, Report};
use crate::size::{bytes, counted, excess, grouped, nanoseconds, percent};
use crate::timing::median;
use crate::wrap::{folded, wrapped};
use hdrhistogram::Histogram;
use std::fmt::Write;
use unicode_width::UnicodeWidthStr;
use workload_gen::plain;

/// Before the rows of a workload.
const MARGIN: &str = "   ";
const BEFORE_OUTCOME: &str = "    ";
/// The head of the last column. No outcome is longer.
const OUTCOME: &str = "outcome";

/// Memory figures of all jobs, grouped by workload. Empty if nothing was audited.
pub fn memory(jobs: &[Job<'_>], reports: &[Report], width: Option<usize>) -> String {
    let header = ["strategy", "reserved", "overhead", "utilised", "calls", "driver time"];
    let row = |report: &Report| -> Option<Vec<String>> {
        let memory = &report.audit.as_ref()?.memory;
        // Memory that was handed out wrongly is no memory saved.
        // What was refused is not in the load, so with one it says nothing either.
        let of_load = |ratio: fn(u64, u64) -> String| match report.outcome() {
            Outcome::Invalid | Outcome::Oom => String::new(),
            _ => ratio(memory.reserved_peak, memory.load_peak),
        };
        Some(vec![
            bytes(memory.reserved_peak),
            of_load(overhead),
            of_load(|reserved, load| share(load, reserved)),
            grouped(memory.calls.iter().sum()),
            nanoseconds(memory.driver_ns),
        ])
    };
    let title = |job: &Job<'_>| {
        // A run that failed an allocation has a lower load; the others tell the workload's.
        let of_workload = jobs
            .iter()
            .zip(reports)
            .filter(|(other, report)| other.workload.name == job.workload.name && report.outcome() != Outcome::Oom);
        let load = of_workload.filter_map(|(_, report)| Some(report.audit.as_ref()?.memory.load_peak)).max();
        let load = load.map_or(String::new(), |load| format!(", load bound {}", bytes(load)));
        format!("{}{load}", events(job))
    };
    grouped_table(&header, jobs, reports, row, title, width)
}

/// Times of all jobs, grouped by workload. Empty if nothing was timed.
pub fn times(jobs: &[Job<'_>], reports: &[Report], width: Option<usize>) -> String {
    let header = ["strategy", "ns/op", "null", "alloc p50", "p99", "p99.9", "free p50"];
    let row = |report: &Report| -> Option<Vec<String>> {
        let times = report.times.as_ref()?;
        let at = |histogram: &Histogram<u64>, quantile| match histogram.is_empty() {
            true => String::new(),
            false => histogram.value_at_quantile(quantile).to_string(),
        };
        let alloc = |quantile| at(&times.latencies.alloc, quantile);
        Some(vec![
            per_op(median(&times.total_ns), times.ops),
            per_op(median(&times.null_ns), times.ops),
            alloc(0.5),
            alloc(0.99),
            alloc(0.999),
            at(&times.latencies.free, 0.5),
        ])
    };
    let table = grouped_table(&header, jobs, reports, row, events, width);
    if table.is_empty() {
        return table;
    }
    // A time without its form cannot be compared with another.
    let form = "in ns; calls by handle, without a lock; null: an empty strategy in the same loop";
    format!("{}\n{table}", wrapped(form, 0, width))
}

/// What the integrity pass did, grouped by workload. Empty if it was not made.
pub fn integrity(jobs: &[Job<'_>], reports: &[Report], width: Option<usize>) -> String {
    let header = ["strategy", "blocks", "filled", "checks", "on other streams", "wrong"];
    let row = |report: &Report| -> Option<Vec<String>> {
        let integrity = report.integrity.as_ref()?;
        Some(vec![
            grouped(integrity.blocks),
            bytes(integrity.bytes),
            grouped(integrity.checks),
            grouped(integrity.cross_checks),
            grouped(integrity.violations),
        ])
    };
    grouped_table(&header, jobs, reports, row, events, width)
}

/// What the decisions pass compared, grouped by workload. Empty if it was not made.
pub fn decisions(jobs: &[Job<'_>], reports: &[Report], width: Option<usize>) -> String {
    let header = ["strategy", "blocks", "device calls", "elsewhere on sim"];
    let row = |report: &Report| -> Option<Vec<String>> {
        let decisions = report.decisions.as_ref()?;
        let elsewhere = decisions.elsewhere.map_or(String::new(), grouped);
        Some(vec![grouped(decisions.blocks), grouped(decisions.device_calls), elsewhere])
    };
    grouped_table(&header, jobs, reports, row, events, width)
}

fn events(job: &Job<'_>) -> String {
    counted(job.workload.trace.events.len(), "event", "events")
}

fn grouped_table(
    header: &[&str],
    jobs: &[Job<'_>],
    reports: &[Report],
    row: impl Fn(&Report) -> Option<Vec<String>>,
    title: impl Fn(&Job<'_>) -> String,
    width: Option<usize>,
) -> String {
    let rows: Vec<Option<Vec<String>>> = reports.iter().map(row).collect();
    if rows.iter().all(Option::is_none) {
        return String::new();
    }
    let rows = jobs.iter().zip(rows).map(|(job, row)| {
        let mut cells = row.unwrap_or_default();
        cells.insert(0, plain(&job.strategy.title()).into_owned());
        cells.resize(header.len(), String::new());
        cells
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let widest = |at: usize| rows.iter().map(|row| row[at].width()).chain([header[at].width()]).max().unwrap_or(0);
    let outcomes = BEFORE_OUTCOME.len() + OUTCOME.len();
    let others: Vec<usize> = (1..header.len()).map(|at| GAP.len() + widest(at)).chain([outcomes]).collect();
    let tables = folded(MARGIN.len() + widest(0), &others, width).into_iter().map(|fold| {
        let has_outcomes = fold.end == others.len();
        let fold = fold.start..fold.end - usize::from(has_outcomes);
        let columns: Vec<usize> = std::iter::once(0).chain(fold.map(|at| at + 1)).collect();
        let picked = |row: &Vec<String>| columns.iter().map(|at| row[*at].clone()).collect();
        let table = Table::plain(columns.iter().map(|at| header[*at]), rows.iter().map(picked));
        by_workload(&table.text(None), jobs, reports, &title, has_outcomes)
    });
    tables.collect::<Vec<_>>().join("\n")
}

/// The lines of a table, with a line above those of each workload, and with the outcome behind each row or without.
fn by_workload(
    table: &str,
    jobs: &[Job<'_>],
    reports: &[Report],
    title: impl Fn(&Job<'_>) -> String,
    has_outcomes: bool,
) -> String {
    let mut lines = table.lines();
    let head = lines.next().unwrap_or_default();
    // Rows may end early, in blanks, and the head may be shorter than the names below it.
    let width = table.lines().map(UnicodeWidthStr::width).max().unwrap_or(0);
    let with = |line: &str, outcome: &str| match has_outcomes {
        true => format!("{MARGIN}{line}{}{BEFORE_OUTCOME}{outcome}\n", " ".repeat(width - line.width())),
        false => format!("{MARGIN}{line}\n"),
    };
    let mut text = with(head, OUTCOME);
    let mut group = ("", "");
    for ((job, report), line) in jobs.iter().zip(reports).zip(lines) {
        let (workload, device) = (job.workload.name.as_str(), job.target.name());
        if group != (workload, device) {
            group = (workload, device);
            let on = job.target.card().map_or(String::new(), |card| format!(" on {}", card.name));
            let _ = writeln!(text, "{BOLD}{workload}{RESET}{on}  {}", title(job));
        }
        text.push_str(&with(line, &outcome(report)));
    }
    text
}

fn outcome(report: &Report) -> String {
    let name = report.outcome().name();
    match report.outcome() {
        Outcome::Ok => name.to_string(),
        Outcome::Oom => format!("{YELLOW}{name}{RESET}"),
        _ => format!("{RED}{name}{RESET}"),
    }
}

/// What went wrong, a line for each job in which something did. Empty if nothing.
pub fn findings(jobs: &[Job<'_>], reports: &[Report]) -> String {
    let mut text = String::new();
    for (job, report) in jobs.iter().zip(reports) {
        let Some(finding) = &report.finding else { continue };
        let at = finding.event.map_or(String::new(), |event| format!(" at event {event}"));
        let failed = report.audit.as_ref().map_or(0, |audit| audit.failed_allocs);
        let more = if failed > 1 { format!(" (and {} more)", grouped(failed - 1)) } else { String::new() };
        let _ = writeln!(text, "{}: {}{at}: {}{more}", job.title(), outcome(report), plain(&finding.text));
    }
    text
}

fn overhead(reserved: u64, load: u64) -> String {
    if load == 0 { String::new() } else { excess(reserved as f64 / load as f64) }
}

fn share(part: u64, whole: u64) -> String {
    if whole == 0 { String::new() } else { percent(part as f64 / whole as f64) }
}

fn per_op(total: Option<u64>, ops: u64) -> String {
    match total {
        Some(total) if ops > 0 => format!("{:.1}", total as f64 / ops as f64),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::{Audit, Memory};
    use crate::load::Workload;
    use crate::registry::{Configured, STRATEGIES};
    use crate::replay::Finding;
    use crate::target::Target;
    use crate::timing::Times;
    use workload_gen::Trace;

    #[test]
    fn what_is_unknown_or_meaningless_is_blank() {
        let workload = Workload { name: "w".into(), trace: Trace::default(), hash: String::new() };
        let entry = STRATEGIES.iter().find(|entry| entry.name == "caching").unwrap();
        let strategy = Configured { entry, params: entry.defaults() };
        let target = Target::default();
        let job = Job {
            workload: &workload,
            strategy: &strategy,
            target: &target,
            capacity: 1,
            limit: None,
            id: String::new(),
        };
        let report = |outcome| {
            let memory = Memory { reserved_peak: 1 << 20, load_peak: 2 << 20, ..Memory::default() };
            let finding = Some(Finding { outcome, event: None, text: "a\x1b[31m".into() });
            let (timeline, counts) = (Vec::new(), 0);
            let audit = Audit {
                memory,
                timeline,
                finding: finding.clone(),
                failed_allocs: counts,
                skipped_events: counts,
                pool_fallbacks: counts,
                unsupported_controls: counts,
            };
            let times = Some(Times { ops: 1, ..Times::default() });
            [Report { audit: Some(audit), times, finding, ..Report::default() }]
        };
        let jobs = [job];
        assert!(memory(&jobs, &report(Outcome::Ok), None).contains("200.0 %"));
        for outcome in [Outcome::Oom, Outcome::Invalid] {
            assert!(!memory(&jobs, &report(outcome), None).contains('%'), "{outcome:?}");
        }
        assert!(!memory(&jobs, &report(Outcome::Oom), None).contains("load bound"), "not all of it was served");
        let table = times(&jobs, &report(Outcome::Ok), None);
        let row = table.lines().last().unwrap();
        assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["caching", "ok"], "{table}");
        assert!(findings(&jobs, &report(Outcome::Oom)).contains(r"a\u{1b}[31m"));

        let narrow = memory(&jobs, &report(Outcome::Ok), Some(40));
        let plain = narrow.replace(BOLD, "").replace(RESET, "");
        let expected = [
            "   strategy  reserved  overhead",
            "w  0 events, load bound 2.00 MiB",
            "   caching   1.00 MiB   -50.0 %",
            "",
            "   strategy  utilised  calls",
            "w  0 events, load bound 2.00 MiB",
            "   caching    200.0 %      0",
            "",
            "   strategy  driver time    outcome",
            "w  0 events, load bound 2.00 MiB",
            "   caching          0 ns    ok",
            "",
        ]
        .join("\n");
        assert_eq!(plain, expected, "what does not fit follows below");

        // Names with parameters are longer than their head.
        let mut longer = strategy.clone();
        longer.params.insert("conf".to_string(), "garbage_collection_threshold:0.6".into());
        let [job] = jobs;
        let jobs = [Job { strategy: &longer, ..job }];
        for width in 1..130 {
            let table = memory(&jobs, &report(Outcome::Ok), Some(width));
            assert!(table.lines().filter(|line| line.ends_with("    ok")).count() == 1, "{width}: {table}");
        }
    }
}
