//! The arguments of `harness trace`.

use clap::{Args, Subcommand};
use std::path::PathBuf;
use workload_gen::spec::Spec;

pub(super) const HELP: &str = "\
Examples:
  harness trace import snapshot.pickle -o job.trace.zst
  harness trace gen churn:seed=7 -o churn.trace.zst
  harness trace stat job.trace.zst
  harness trace show gnn.default | head

docs/TRACE-FORMAT.md describes the format.";

const SHOW_HELP: &str = "\
Examples:
  harness trace show job.trace.zst | head
  harness trace show gnn.default > gnn.trace   a recording, to edit by hand";

const STAT_HELP: &str = "\
Examples:
  harness trace stat job.trace.zst
  harness trace stat snapshot.pickle --json | jq .requested_peak_bytes";

const CHECK_HELP: &str = "\
Examples:
  harness trace check job.trace && harness run --trace job.trace

Exit code 0 if the trace makes sense, 4 if not; the first line that does not is named.";

/// `harness trace …`
#[derive(Subcommand, Debug)]
pub enum TraceCommand {
    /// Turn PyTorch snapshots into traces
    #[command(after_help = IMPORT_HELP)]
    Import(ImportArgs),
    /// Write the traces of generated workloads
    #[command(after_help = GEN_HELP)]
    Gen(GenArgs),
    /// Print a trace as text
    #[command(after_help = SHOW_HELP)]
    Show(FileArgs),
    /// Summarise a trace: sizes, lifetimes, streams
    #[command(after_help = STAT_HELP)]
    Stat(StatArgs),
    /// Check that a trace makes sense; exit code 4 if not
    #[command(after_help = CHECK_HELP)]
    Check(FileArgs),
    /// Measure how like a recording a generated trace is; exit code 4 if it is not like enough
    #[command(after_help = COMPARE_HELP)]
    Compare(CompareTracesArgs),
}

const COMPARE_HELP: &str = "\
Examples:
  harness trace compare gnn.default mine.trace
  harness trace compare gpt2_varlen.default train:gpt2 --diff 10
  harness trace compare job.pickle mine.trace --json | jq .measures

Distances are those of Kolmogorov and Smirnov, with each byte counted once; a lifetime is counted in allocations and frees. \
Utilisation is the load bound over the reserved peak, on the simulated device of the recording's size and under its limit. \
docs/METHODOLOGY.md has the definitions.

Exit code 0 if every difference is within its bar, 4 if not.";

/// `harness trace compare`
#[derive(Args, Debug)]
pub struct CompareTracesArgs {
    /// What is held to be right: a trace or a PyTorch snapshot, '-' for standard input, an embedded recording's name, or a
    /// generated workload
    #[arg(value_name = "RECORDING")]
    pub recording: PathBuf,
    /// What is measured by it, named in the same way
    #[arg(value_name = "GENERATED")]
    pub generated: PathBuf,
    /// Also list the sizes of which the two allocate unlike numbers, and the places where their allocations part: so many
    /// of each
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub diff: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// The greatest difference of the most bytes requested at a time, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0, value_parser = bar, allow_hyphen_values = true, help_heading = "Bars")]
    pub peak: f64,
    /// The greatest difference of the number of allocations, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 15.0, value_parser = bar, allow_hyphen_values = true, help_heading = "Bars")]
    pub allocs: f64,
    /// The greatest distance of sizes
    #[arg(long, value_name = "DISTANCE", default_value_t = 0.1, value_parser = bar, allow_hyphen_values = true, help_heading = "Bars")]
    pub sizes: f64,
    /// The greatest distance of lifetimes
    #[arg(long, value_name = "DISTANCE", default_value_t = 0.1, value_parser = bar, allow_hyphen_values = true, help_heading = "Bars")]
    pub lifetimes: f64,
    /// The greatest difference of the utilisation of 'caching' and of 'expandable', in points of per cent
    #[arg(long, value_name = "POINTS", default_value_t = 3.0, value_parser = bar, allow_hyphen_values = true, help_heading = "Bars")]
    pub utilisation: f64,
}

fn bar(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number >= 0.0 && number.is_finite() => Ok(number),
        _ => Err("write a number from 0 on, such as 0.05".to_string()),
    }
}

const IMPORT_HELP: &str = "\
Examples:
  harness trace import snapshot.pickle -o job.trace.zst
  harness trace import rank*.pickle -o traces    a folder, a trace for each
  harness trace import snapshot.pickle -o - | head

A snapshot comes from torch.cuda.memory._record_memory_history() and _dump_snapshot('snapshot.pickle').

The ending of OUT decides: .trace is text, .trace.zst is compressed text, anything else is a folder.";

/// `harness trace import`
#[derive(Args, Debug)]
pub struct ImportArgs {
    /// The snapshots (plain, gzip or zstd); '-' is standard input
    #[arg(required = true, value_name = "SNAPSHOT")]
    pub snapshots: Vec<PathBuf>,
    /// The trace, a folder for several, or '-' for standard output
    #[arg(short = 'o', long = "out", value_name = "OUT")]
    pub out: PathBuf,
    /// The device whose history to take [default: the only one that has any]
    #[arg(long, value_name = "N")]
    pub device: Option<u32>,
}

const GEN_HELP: &str = "\
Examples:
  harness trace gen train:llama-2-7b,batch=4 -o llama.trace.zst
  harness trace gen churn:seed=1 churn:seed=2 -o traces   a folder
  harness trace gen churn: -o - | head

A workload is GENERATOR:KEY=VALUE,...; what is not given has its default. `harness list` has the generators. The same text gives \
the same bytes on every machine.

The ending of OUT decides: .trace is text, .trace.zst is compressed text, anything else is a folder. A trace of any length \
needs little memory: its events are written as they come.";

/// `harness trace gen`
#[derive(Args, Debug)]
pub struct GenArgs {
    /// The workloads
    #[arg(required = true, value_name = "SPEC", value_parser = super::spec)]
    pub specs: Vec<Spec>,
    /// The trace, a folder for several, or '-' for standard output
    #[arg(short = 'o', long = "out", value_name = "OUT")]
    pub out: PathBuf,
}

/// A verb on one trace.
#[derive(Args, Debug)]
pub struct FileArgs {
    /// A trace or a PyTorch snapshot (plain, gzip or zstd), '-' for standard input, an embedded recording's name, or a
    /// generated workload (GENERATOR:KEY=VALUE,...)
    #[arg(value_name = "FILE|SPEC")]
    pub file: PathBuf,
}

/// `harness trace stat`
#[derive(Args, Debug)]
pub struct StatArgs {
    /// A trace or a PyTorch snapshot (plain, gzip or zstd), '-' for standard input, an embedded recording's name, or a
    /// generated workload (GENERATOR:KEY=VALUE,...)
    #[arg(value_name = "FILE|SPEC")]
    pub file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
