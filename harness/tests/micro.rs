//! The golden micro-tests: published reports of memory that could not be used, each as a trace of a few lines, with the
//! outcome of every strategy and the reason for it.
//!
//! `micro/NAME.trace` is what happens, `micro/NAME.csv` what comes of it, and `docs/MICRO-TESTS.md` shows both.
//! `BLESS=1 cargo test -p harness --test micro` writes the traces that are loops, the figures and the page's tables anew. It adds
//! a row for each strategy that has none, and empties the reason of each row whose figures are others than before: a
//! row without a reason fails, so somebody has to work out why.

mod common;
#[path = "micro/loops.rs"]
mod loops;

use allocator_core::SimDevice;
use common::succeeds;
use harness::audit::audit;
use harness::interrupt::Interrupt;
use harness::load;
use harness::registry::{STRATEGIES, Setting, configure};
use harness::replay::Outcome;
use harness::size::{bytes, grouped};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use workload_gen::{Event, Trace};

/// What comes of a trace on a strategy with settings (`key=value`, by blanks).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Row {
    strategy: String,
    settings: String,
    /// The first allocation that was refused, counted in events from 0.
    oom_event: Option<u64>,
    /// How many were refused.
    failed_allocs: u64,
    reserved_peak_bytes: u64,
    /// At the trace's markers, by blanks.
    reserved_at_marks_bytes: String,
    /// Those that take memory or addresses from the driver or give them back.
    driver_calls: u64,
    why: String,
}

struct Test {
    name: String,
    trace: Trace,
    rows: Vec<Row>,
    /// The same rows as they come out now, and one for each strategy that has none.
    now: Vec<Row>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/micro")
}

fn page_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/MICRO-TESTS.md")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// Read, replayed and, if wanted, written once for all tests here.
static TESTS: LazyLock<Vec<Test>> = LazyLock::new(|| {
    let blesses = std::env::var_os("BLESS").is_some();
    if blesses {
        loops::all().iter().for_each(|(name, text)| fs::write(file(name, "trace"), text).unwrap());
    }
    let mut names: Vec<String> = fs::read_dir(folder())
        .unwrap()
        .filter_map(|entry| {
            entry.unwrap().file_name().into_string().unwrap().strip_suffix(".trace").map(str::to_string)
        })
        .collect();
    names.sort();
    let mut tests: Vec<Test> = names.into_iter().map(Test::read).collect();
    if blesses {
        tests.iter_mut().for_each(Test::bless);
        fs::write(page_path(), with_tables(&read(&page_path()), &tests)).unwrap();
    }
    tests
});

fn file(name: &str, ending: &str) -> PathBuf {
    folder().join(format!("{name}.{ending}"))
}

impl Test {
    fn read(name: String) -> Test {
        let trace = load::in_files(&[file(&name, "trace")]).unwrap().remove(0).load().unwrap().trace;
        let rows: Vec<Row> = match csv::Reader::from_path(file(&name, "csv")) {
            Ok(mut reader) => {
                reader.deserialize().map(|row| row.unwrap_or_else(|why| panic!("{name}: {why}"))).collect()
            }
            Err(_) => Vec::new(),
        };
        let mut wanted: Vec<(&str, &str, &str)> =
            rows.iter().map(|row| (row.strategy.as_str(), row.settings.as_str(), row.why.as_str())).collect();
        // The driver's own pool is no model: it runs on cards only.
        let listed = STRATEGIES.iter().filter(|entry| !entry.stream_ordered);
        let missing =
            listed.filter(|entry| !rows.iter().any(|row| (row.strategy == entry.name) && row.settings.is_empty()));
        wanted.extend(missing.map(|entry| (entry.name, "", "")));
        wanted.sort();
        let now =
            wanted.iter().map(|(strategy, settings, why)| replayed(&name, &trace, strategy, settings, why)).collect();
        Test { name, trace, rows, now }
    }

    fn bless(&mut self) {
        for row in &mut self.now {
            if !self.rows.contains(row) {
                row.why.clear();
            }
        }
        self.rows = self.now.clone();
        let mut writer = csv::Writer::from_path(file(&self.name, "csv")).unwrap();
        self.rows.iter().for_each(|row| writer.serialize(row).unwrap());
    }

    fn marks(&self) -> impl Iterator<Item = (usize, &str)> {
        marks(&self.trace)
    }

    fn table(&self) -> String {
        let marks: String = self.marks().map(|(_, text)| format!(" {text} |")).collect();
        let rules = "---: |".repeat(self.marks().count());
        let mut table = format!(
            "| strategy | outcome | peak |{marks} driver calls | why |\n| --- | --- | ---: |{rules} ---: | --- |\n"
        );
        for row in &self.rows {
            let settings: String = row.settings.split_whitespace().map(|setting| format!(" `{setting}`")).collect();
            let outcome = match (row.oom_event, row.failed_allocs) {
                (None, _) => "ok".to_string(),
                (Some(event), 1) => format!("**OOM** at event {event}"),
                (Some(event), more) => format!("**OOM** at event {event}, {more} times in all"),
            };
            let at_marks: String = row.at_marks().map(|reserved| format!(" {} |", bytes(reserved))).collect();
            table.push_str(&format!(
                "| {}{settings} | {outcome} | {} |{at_marks} {} | {} |\n",
                row.strategy,
                bytes(row.reserved_peak_bytes),
                grouped(row.driver_calls),
                row.why
            ));
        }
        table
    }
}

impl Row {
    fn at_marks(&self) -> impl Iterator<Item = u64> {
        self.reserved_at_marks_bytes.split_whitespace().map(|bytes| bytes.parse().unwrap())
    }
}

fn marks(trace: &Trace) -> impl Iterator<Item = (usize, &str)> {
    trace.events.iter().enumerate().filter_map(|(at, event)| match event {
        Event::Mark { text } => Some((at, trace.texts[*text as usize].as_str())),
        _ => None,
    })
}

fn replayed(name: &str, trace: &Trace, strategy: &str, settings: &str, why: &str) -> Row {
    let title = format!("{name} on {strategy} {settings}");
    let entry = STRATEGIES.iter().find(|entry| entry.name == strategy);
    let entry = entry.unwrap_or_else(|| panic!("{title}: there is no such strategy; remove its row"));
    let pairs = settings.split_whitespace().map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let given: Vec<Setting> = pairs.map(|(key, value)| Setting { key: key.into(), value: value.into() }).collect();
    let configured = configure(&[entry], &given).unwrap_or_else(|why| panic!("{title}: {why}"));
    let [configured] = &configured[..] else { panic!("{title}: a row has one value for each setting") };
    let capacity = trace.header.device_bytes.unwrap_or_else(|| panic!("{title}: the trace does not say device_bytes"));
    let mut device = SimDevice::new(capacity);
    let mut built = configured.strategy(&mut device).unwrap_or_else(|why| panic!("{title}: {why}"));
    let audit = audit(trace, built.as_mut(), device, &Interrupt::default());
    if let Some(finding) = audit.finding.as_ref().filter(|finding| finding.outcome != Outcome::Oom) {
        panic!("{title}: {:?} at event {:?}: {}", finding.outcome, finding.event, finding.text);
    }
    assert_eq!(audit.timeline.len(), trace.events.len(), "{title}: too long to see single events");
    let at_marks: Vec<String> = marks(trace).map(|(at, _)| audit.timeline[at].reserved.max.to_string()).collect();
    let calls = allocator_core::CallKind::ALL.iter().filter(|kind| kind.moves_memory());
    Row {
        strategy: strategy.to_string(),
        settings: settings.to_string(),
        oom_event: audit.finding.and_then(|finding| finding.event),
        failed_allocs: audit.failed_allocs,
        reserved_peak_bytes: audit.memory.reserved_peak,
        reserved_at_marks_bytes: at_marks.join(" "),
        driver_calls: calls.map(|kind| audit.memory.calls[*kind as usize]).sum(),
        why: why.to_string(),
    }
}

/// Tests down, strategies with their defaults across.
fn overview(tests: &[Test]) -> String {
    let rows = || tests.iter().flat_map(|test| &test.rows).filter(|row| row.settings.is_empty());
    let strategies: BTreeSet<&str> = rows().map(|row| row.strategy.as_str()).collect();
    let head: String = strategies.iter().map(|name| format!(" {name} |")).collect();
    let mut table = format!("| test |{head}\n| --- |{}\n", " ---: |".repeat(strategies.len()));
    for test in tests {
        let cells = strategies.iter().map(|name| {
            let row = test.rows.iter().find(|row| row.strategy == *name && row.settings.is_empty());
            row.map_or(" |".to_string(), |row| {
                let oom = if row.oom_event.is_some() { "**OOM** " } else { "" };
                format!(" {oom}{} |", bytes(row.reserved_peak_bytes))
            })
        });
        table.push_str(&format!("| [{0}](#{0}) |{1}\n", test.name, cells.collect::<String>()));
    }
    table
}

/// The page with the first table under each heading as the rows have it.
fn with_tables(page: &str, tests: &[Test]) -> String {
    let tables = tests.iter().map(|test| (test.name.as_str(), test.table()));
    let tables = tables.chain([("All outcomes", overview(tests))]);
    tables.fold(page.to_string(), |page, (heading, table)| {
        let missing = || panic!("docs/MICRO-TESTS.md has no table under '## {heading}'; a line '| |' is enough");
        let section = page.find(&format!("\n## {heading}\n")).map_or_else(missing, |at| at + 1);
        let end = page[section..].find("\n## ").map_or(page.len(), |length| section + length + 1);
        let start = page[section..end].find("\n|").map_or_else(missing, |at| section + at + 1);
        let lines = page[start..end].split_inclusive('\n').take_while(|line| line.starts_with('|'));
        let old: usize = lines.map(str::len).sum();
        format!("{}{table}{}", &page[..start], &page[start + old..])
    })
}

#[test]
fn every_strategy_does_what_was_reasoned() {
    let mut wrong = Vec::new();
    for test in TESTS.iter() {
        for now in &test.now {
            let title = format!("{}: {} {}", test.name, now.strategy, now.settings);
            match test.rows.iter().find(|row| (&row.strategy, &row.settings) == (&now.strategy, &now.settings)) {
                None => wrong.push(format!(
                    "{title}: no row in micro/{}.csv; BLESS=1 cargo test -p harness --test micro adds it, then give the reason",
                    test.name
                )),
                Some(row) if row != now => {
                    wrong.push(format!("{title}: the row says\n  {row:?}\nbut now it is\n  {now:?}"))
                }
                Some(row) if row.why.is_empty() => {
                    wrong.push(format!("{title}: the row in micro/{}.csv does not say why", test.name));
                }
                Some(_) => {}
            }
        }
        let sorted = test.rows.is_sorted_by(|a, b| (&a.strategy, &a.settings) < (&b.strategy, &b.settings));
        assert!(sorted, "micro/{}.csv: rows stand by strategy and settings, each once", test.name);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_page_shows_every_row() {
    let page = read(&page_path());
    assert!(with_tables(&page, &TESTS) == page, "docs/MICRO-TESTS.md has other tables; BLESS=1 writes them");
    let headings: BTreeSet<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let names = TESTS.iter().map(|test| test.name.as_str());
    assert_eq!(headings, names.chain(["All outcomes", "Not here"]).collect(), "the page has other sections");
}

#[test]
fn long_traces_are_what_their_loops_give() {
    let tests = &*TESTS;
    for (name, text) in loops::all() {
        assert!(tests.iter().any(|test| test.name == name), "{name}: no trace; BLESS=1 writes it");
        assert!(read(&file(name, "trace")) == text, "{name}.trace is not what its loop gives; BLESS=1 writes it");
    }
}

/// What PyTorch 2.11's own library reserved in these cycles, in MiB. No blessing changes it.
#[test]
fn split_cap_is_what_pytorch_reserves() {
    let test = TESTS.iter().find(|test| test.name == "split-cap").unwrap();
    for (strategy, settings, reserved) in [
        ("caching", "", [158, 198, 358]),
        ("caching", "max_split_size_mb=128", [158, 198, 358]),
        ("expandable", "", [140, 180, 340]),
        ("expandable", "max_split_size_mb=128", [140, 2920, 14000]),
    ] {
        let row = test.now.iter().find(|row| (row.strategy.as_str(), row.settings.as_str()) == (strategy, settings));
        let at_marks: Vec<u64> = row.unwrap().at_marks().map(|bytes| bytes >> 20).collect();
        assert_eq!(at_marks, reserved, "{strategy} {settings}");
    }
}

/// The page says that arena's rows with a size have the smallest one, or all of the device.
#[test]
fn arena_has_no_more_than_it_needs() {
    for test in TESTS.iter() {
        let rows: Vec<&Row> =
            test.rows.iter().filter(|row| row.strategy == "arena" && !row.settings.is_empty()).collect();
        let [row] = rows[..] else { panic!("{}: {} rows of arena with a size", test.name, rows.len()) };
        let size = row.reserved_peak_bytes;
        assert_eq!(row.settings, format!("arena_size={size}"), "{}", test.name);
        if row.oom_event.is_some() {
            assert_eq!(Some(size), test.trace.header.device_bytes, "{}", test.name);
        } else {
            let less = replayed(&test.name, &test.trace, "arena", &format!("arena_size={}", size - 512), "");
            assert!(less.oom_event.is_some(), "{}: {} would do", test.name, size - 512);
        }
    }
}

#[test]
fn the_program_says_the_same() {
    let files: Vec<String> = TESTS.iter().map(|test| format!("{}.trace", test.name)).collect();
    let traces = files.iter().flat_map(|file| ["--trace", file]);
    let args: Vec<&str> = ["run", "--pass", "audit", "--csv", "-"].into_iter().chain(traces).collect();
    let out = succeeds(folder(), &args);
    let mut reader = csv::Reader::from_reader(out.as_bytes());
    let head = reader.headers().unwrap().clone();
    let columns = ["workload", "strategy", "outcome_event", "reserved_peak_bytes"];
    let columns = columns.map(|name| head.iter().position(|column| column == name).unwrap());
    let said: BTreeSet<[String; 4]> =
        reader.records().map(|row| row.unwrap()).map(|row| columns.map(|at| row[at].to_string())).collect();
    let event = |row: &Row| row.oom_event.map_or(String::new(), |event| event.to_string());
    let ours = |test: &'static Test| {
        let rows = test.now.iter().filter(|row| row.settings.is_empty());
        rows.map(|row| [test.name.clone(), row.strategy.clone(), event(row), row.reserved_peak_bytes.to_string()])
    };
    assert_eq!(said, TESTS.iter().flat_map(ours).collect());
}
