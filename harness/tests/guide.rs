//! The strategy of `docs/ADDING-A-STRATEGY.md`: it is compiled, it keeps the rules, and what the page shows is what
//! happens.

#[path = "guide/exact.rs"]
mod exact;

use allocator_core::conformance::{boxed, rules};
use allocator_core::{AllocError, Block, Configure, Device, FreeError, Request, Span, Strategy, StreamId};
use exact::{Exact, Params};
use harness::filter::Filter;
use harness::forms::Form;
use harness::grid::Grid;
use harness::interrupt::Interrupt;
use harness::load::{self, Workload};
use harness::machine::MachineFile;
use harness::metric::Metric;
use harness::record::Records;
use harness::registry::{Configured, Entry, STRATEGIES, Setting, configure, entry};
use harness::run::{LimitChoice, Options, Pass, jobs, run};
use harness::target::Target;
use harness::{compare, results, table};
use std::num::NonZeroUsize;
use std::path::Path;

allocator_core::conformance!(|info| Exact::new(Default::default(), info).unwrap());

mod large {
    use super::*;
    allocator_core::conformance!(|info| Exact::new(Params { round: 2 << 20 }, info).unwrap());
}

static EXACT: Entry = entry::<Exact>();

fn page() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/ADDING-A-STRATEGY.md")).unwrap()
}

/// Wants this on the page, without what makes it bold on a terminal.
#[track_caller]
fn shows(block: &str) {
    let block = block.replace("\x1b[1m", "").replace("\x1b[0m", "");
    assert!(page().contains(&block), "the page does not show\n{block}");
}

#[test]
fn the_page_has_this_code() {
    shows(&format!("```rust\n{}```\n", include_str!("guide/exact.rs")));
    let this = include_str!("guide.rs");
    let (start, end) = (this.find("mod large {").unwrap(), this.find("\nstatic EXACT").unwrap());
    shows(&format!("```rust,ignore\n{}```\n", this[start..end].trim_end_matches('\n').to_string() + "\n"));
}

/// The mistake on the page: `exact`, but with the `record_stream` of `direct`, which remembers nothing.
struct Forgetful(Exact);

impl Strategy for Forgetful {
    fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        self.0.allocate(dev, req)
    }
    fn free(&mut self, dev: &mut dyn Device, block: Block) -> Result<(), FreeError> {
        self.0.free(dev, block)
    }
    fn record_stream(&mut self, _: &mut dyn Device, _: &Block, _: StreamId) -> Result<(), AllocError> {
        Ok(())
    }
    fn trim(&mut self, dev: &mut dyn Device, keep: u64) -> Result<u64, AllocError> {
        self.0.trim(dev, keep)
    }
    fn inspect(&self, visit: &mut dyn FnMut(Span)) {
        self.0.inspect(visit);
    }
}

#[test]
fn the_page_has_this_violation() {
    let violation =
        rules::stream_order(&boxed(|info| Forgetful(Exact::new(Default::default(), info).unwrap()))).unwrap_err();
    shows(&format!("```text\n{violation}\n```\n"));
}

#[test]
fn the_page_has_these_tables() {
    let names = ["gnn.default", "llama_lora_ckpt.default", "multistream.default"];
    let sources = load::embedded().into_iter().filter(|source| names.contains(&source.name.as_str()));
    let workloads: Vec<Workload> = sources.map(|source| source.load().unwrap()).collect();
    let folder = tempfile::TempDir::new().unwrap();
    let options = Options {
        pass: Pass::Audit,
        repeats: 1,
        capacity: None,
        limit: LimitChoice::OfTrace,
        jobs: NonZeroUsize::new(2).unwrap(),
    };
    // The table that `run` prints; the rows are in `name`.
    let made = |strategies: &[Configured], name: &str| {
        let machine = MachineFile::here_and_now(Vec::new());
        let targets = [Target::default()];
        let jobs = jobs(&workloads, &targets, strategies, &options);
        let mut records =
            Records::in_folder(Some(&folder.path().join(name)), options.pass, &machine, &jobs[0]).unwrap();
        let reports = run(&jobs, &options, &mut records, &Interrupt::default()).unwrap();
        table::memory(&jobs, &reports, None)
    };
    let known = |name: &str| STRATEGIES.iter().find(|entry| entry.name == name).unwrap();
    let first = configure(&[known("caching"), known("direct"), &EXACT], &[]).unwrap();
    shows(&made(&first, "run-001"));
    let round = Setting { key: "round".to_string(), value: "2MiB".to_string() };
    made(&configure(&[&EXACT], &[round]).unwrap(), "run-002");

    let grid = |metric: &str, folders: &[&str], strategies: &[&str]| {
        let folders: Vec<_> = folders.iter().map(|name| folder.path().join(name)).collect();
        let include = strategies.iter().map(|pattern| pattern.parse().unwrap()).collect();
        let filter = Filter { include, ..Filter::default() };
        Grid::new(&results::read(&folders).unwrap(), Metric::named(metric), &Filter::default(), &filter).unwrap()
    };
    let text = |grid: &Grid, baseline| compare::page(grid, baseline).form(Form::Text, None).unwrap();
    let overhead = grid("overhead", &["run-001"], &[]);
    assert_eq!(overhead.column("caching"), Ok(0));
    shows(&text(&overhead, Some(0)));
    let mut rounded = grid("reserved", &["run-001", "run-002"], &["exact"]);
    // On the page the program has the strategy, and so knows its default.
    rounded.strategies[0].params.clear();
    shows(&text(&rounded, None));
}
