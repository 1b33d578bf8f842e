//! The command line as plain data. What it means is decided in `commands`.

mod trace;

pub use trace::{CompareTracesArgs, GenArgs, ImportArgs, TraceCommand};

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use harness::filter::Filter;
use harness::forms::Form;
use harness::metric::{METRICS, Metric};
use harness::plot::{Figure, Format, Width};
use harness::registry::Setting;
use harness::run::{LimitChoice, Pass};
use harness::size;
use harness::target::DeviceName;
use regex_lite::Regex;
use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use workload_gen::spec::Spec;

// Paragraphs are one line here and are wrapped to the terminal; examples stay below 80 columns.

const HARNESS_HELP: &str = "\
Examples:
  harness run                                seven jobs on all strategies
  harness compare --baseline caching         the figures again, with ratios
  harness run --trace snapshot.pickle        your own job, recorded by PyTorch
  harness help run                           every option, with examples

Exit codes: 0 done, 1 internal error, 2 usage, 3 nothing selected, 4 a check failed, 5 no device, \
6 unreadable input, 7 unwritable output. That a strategy runs out of memory is a result, no failure.

Ctrl-C ends a verb with nothing half written, and `run` keeps the rows that are done; a second one ends it at once.";

/// Replays allocation traces on GPU memory allocator strategies and compares them.
///
/// No GPU is needed: strategies run on a simulated device, with the sizes, streams and order of real recordings.
#[derive(Parser, Debug)]
#[command(version, after_help = HARNESS_HELP)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The verbs.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Show the strategies with all their parameters, the workloads and the devices
    #[command(after_help = LIST_HELP)]
    List(ListArgs),
    /// Replay workloads on strategies and compare memory and time
    #[command(after_help = RUN_HELP)]
    Run(Box<RunArgs>),
    /// Show a metric of recorded runs as a table, workloads by strategies
    #[command(after_help = COMPARE_HELP)]
    Compare(CompareArgs),
    /// Order strategies by a metric: the geometric mean of their ratios
    #[command(after_help = RANK_HELP)]
    Rank(CompareArgs),
    /// Draw figures of runs: timelines, overheads, address maps
    #[command(after_help = PLOT_HELP)]
    Plot(PlotArgs),
    /// Compare every decision that PyTorch recorded with what the caching strategy does
    #[command(after_help = FIDELITY_HELP)]
    Fidelity(FidelityArgs),
    /// Measure what the driver calls of a card cost, for the simulated device
    #[command(after_help = CALIBRATE_HELP)]
    Calibrate(CalibrateArgs),
    /// Import, print, summarise, compare and check traces
    #[command(subcommand, after_help = trace::HELP)]
    Trace(TraceCommand),
    /// Print a completion script for a shell
    #[command(hide = true, after_help = COMPLETIONS_HELP)]
    Completions(CompletionsArgs),
    /// Print the man page, or write those of all verbs
    #[command(hide = true, after_help = MAN_HELP)]
    Man(ManArgs),
}

const LIST_HELP: &str = "\
Examples:
  harness list
  harness list caching                       only what has such a name
  harness list --json | jq -r '.strategies[].name'

What is listed under a strategy is what `harness run -p` sets, with its default. What is listed under a generator is what \
stands behind its name and a colon: `harness run -w GENERATOR:KEY=VALUE,...`.";

/// `harness list`
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Only strategies, workloads and devices whose name matches
    #[arg(value_name = "REGEX")]
    pub names: Vec<Regex>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The filters of every verb that goes over workloads and strategies.
#[derive(Args, Debug)]
pub struct FilterArgs {
    /// Only strategies whose name matches; 'all' matches every name (repeatable)
    #[arg(short = 's', long = "strategy", value_name = "REGEX", value_parser = pattern)]
    pub strategies: Vec<Regex>,
    /// No strategy whose name matches (repeatable)
    #[arg(short = 'S', long = "not-strategy", value_name = "REGEX")]
    pub not_strategies: Vec<Regex>,
    /// Only workloads whose name matches ('all': any), or the generated workload GENERATOR:KEY=VALUE,...; `harness list` has the
    /// generators (repeatable)
    #[arg(short = 'w', long = "workload", value_name = "REGEX|SPEC", value_parser = workload)]
    pub workloads: Vec<Choice>,
    /// No workload whose name matches (repeatable)
    #[arg(short = 'W', long = "not-workload", value_name = "REGEX")]
    pub not_workloads: Vec<Regex>,
}

impl FilterArgs {
    /// Which strategies are meant.
    pub fn strategies(&self) -> Filter {
        let (include, exclude) = (self.strategies.clone(), self.not_strategies.clone());
        Filter { include, exclude, ..Filter::default() }
    }

    /// Which workloads are meant.
    pub fn workloads(&self) -> Filter {
        let mut filter = Filter { exclude: self.not_workloads.clone(), ..Filter::default() };
        for choice in &self.workloads {
            match choice {
                Choice::Pattern(pattern) => filter.include.push(pattern.clone()),
                Choice::Spec(spec) => filter.names.push(spec.to_string()),
            }
        }
        filter
    }

    /// The generated workloads among them.
    pub fn specs(&self) -> impl Iterator<Item = &Spec> {
        self.workloads.iter().filter_map(|choice| match choice {
            Choice::Pattern(_) => None,
            Choice::Spec(spec) => Some(spec),
        })
    }
}

/// What `-w` names.
#[derive(Clone, Debug)]
pub enum Choice {
    /// Those of a name that matches.
    Pattern(Regex),
    /// One that is generated.
    Spec(Spec),
}

fn workload(text: &str) -> Result<Choice, String> {
    match Spec::is_meant(text) {
        true => spec(text).map(Choice::Spec),
        false => pattern(text).map(Choice::Pattern),
    }
}

/// A pattern for names; `all` is what people write for any.
fn pattern(text: &str) -> Result<Regex, String> {
    Regex::new(if text == "all" { "" } else { text }).map_err(|why| why.to_string())
}

fn spec(text: &str) -> Result<Spec, String> {
    Spec::parse(text).map_err(|why| why.to_string())
}

const RUN_HELP: &str = "\
Examples:
  harness run                                seven recordings on all strategies
  harness run -s '^caching$' -w llama -p max_split_size_mb=128
  harness run -p conf=expandable_segments:True,max_split_size_mb:128
  harness run -s buddy -p unit=2MiB,512      a parameter with several values
  harness run --trace snapshot.pickle        your own job, seen by PyTorch
  harness run -w train:opt-1.3b,recompute=full -s all   a generated job
  harness run --capacity 24GiB --csv -       rows for other programs
  harness run --pass time --repeats 20 -o runs/quiet-machine
  harness run -d sim -d cuda                 the model beside a real card
  harness run -d cuda --pass integrity       is every block's memory its own?

A snapshot comes from torch.cuda.memory._record_memory_history() and _dump_snapshot('snapshot.pickle').

A generated workload is GENERATOR:KEY=VALUE,...; what is not given has its default. Where only such are named with -w, no \
recording runs.

Sizes are bytes, or numbers with a unit; all units are binary (24G = 24GiB).

Results go to a new folder; docs/RESULTS.md describes every column. `harness compare` and `harness rank` read them.";

/// `harness run`
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Which strategies and workloads.
    #[command(flatten, next_help_heading = "What to run")]
    pub filters: FilterArgs,
    /// Replay this trace or PyTorch snapshot (plain, gzip or zstd; '-' is standard input) instead of the embedded
    /// recordings (repeatable)
    #[arg(long = "trace", value_name = "FILE", help_heading = "What to run")]
    pub traces: Vec<PathBuf>,
    /// Where to run: sim, sim:PROFILE.toml (with the call costs of a profile), cuda, or cuda:N (repeatable) [default: sim]
    #[arg(short = 'd', long = "device", value_name = "DEVICE", value_parser = DeviceName::parse, help_heading = "How to run")]
    pub devices: Vec<DeviceName>,
    /// Set a parameter of the strategies that have it; several values, with commas between, run one after another; see
    /// `harness list` (repeatable)
    #[arg(short = 'p', long = "param", value_name = "KEY=VALUE", value_parser = setting, help_heading = "How to run")]
    pub params: Vec<Setting>,
    /// What to find out [default: all; audit if the rows only go to --csv]
    #[arg(long, value_enum, help_heading = "How to run")]
    pub pass: Option<Pass>,
    /// How often each time pass is repeated
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..), allow_hyphen_values = true, help_heading = "How to run")]
    pub repeats: u32,
    /// Bytes of the device; what a card has beyond them is held back [default: those of the recording's device, else 80GiB]
    #[arg(long, value_name = "SIZE", value_parser = capacity, allow_hyphen_values = true, help_heading = "How to run")]
    pub capacity: Option<u64>,
    /// Bytes that a strategy may hold, or 'none' [default: the limit that the recording ran under, if any]
    #[arg(long, value_name = "SIZE", value_parser = limit, allow_hyphen_values = true, help_heading = "How to run")]
    pub limit: Option<LimitChoice>,
    /// How many audits run at once; times are always taken one by one [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = jobs, allow_hyphen_values = true, help_heading = "How to run")]
    pub jobs: Option<NonZeroUsize>,
    /// The folder for the results; it must be new or empty [default: the next free runs/run-NNN]
    #[arg(short = 'o', long = "out", value_name = "DIR", help_heading = "Output")]
    pub out: Option<PathBuf>,
    /// Write the rows of run.csv to standard output instead of a table, and no folder unless -o is given; with
    /// --pass time those of times.csv
    #[arg(long, value_name = "-", value_parser = stdout_only, help_heading = "Output")]
    pub csv: Option<String>,
}

const COMPARE_HELP: &str = "\
Examples:
  harness compare                            reserved memory in the newest run
  harness compare --metric overhead -S direct
  harness compare runs/run-001 runs/run-002  both in one table
  harness compare --baseline caching --format latex > table.tex
  harness run --csv - | harness compare - --metric calls

Strategies are named with those of their parameters that are not the defaults, as -p takes them; the filters match these names. \
Whichever are more go down, workloads or strategies; CSV has a line for each workload. The best of each workload is bold or has \
a '*'. '-' is a run or figure that is missing, and a run that failed shows its outcome.

Exact rows of the same run have to agree. Of times measured in two folders one has to be chosen, by naming one folder. \
Ratios of overheads are those of reserved memory.";

const RANK_HELP: &str = "\
Examples:
  harness rank                               reserved memory in the newest run
  harness rank --metric ns-per-op -S direct
  harness rank runs/run-001 runs/run-002 --baseline caching --format markdown

A ratio is the figure over that of --baseline, or over the best of the workload. The mean is geometric, over the workloads \
that all strategies completed, so that failing at a hard one earns nothing. What failed or is missing stands beside it; \
leave out with -S what failed too often.";

/// `harness compare` and `harness rank`
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// Folders of runs, their run.csv or times.csv, or '-' for standard input [default: the newest runs/run-NNN]
    #[arg(value_name = "FOLDER|FILE")]
    pub inputs: Vec<PathBuf>,
    /// Which strategies and workloads.
    #[command(flatten, next_help_heading = "What to compare")]
    pub filters: FilterArgs,
    /// What to compare by: one of these, or any column of numbers in run.csv or times.csv, such as alloc_p99_ns
    #[arg(short = 'm', long, value_name = "METRIC", default_value = "reserved", value_parser = MetricParser, help_heading = "How to compare")]
    pub metric: Metric,
    /// Show how many times this strategy's figure each one is
    #[arg(short = 'b', long, value_name = "STRATEGY", help_heading = "How to compare")]
    pub baseline: Option<String>,
    /// What the table is for
    #[arg(short = 'f', long, value_enum, value_name = "FORM", default_value_t = Form::Text, help_heading = "Output")]
    pub format: Form,
}

/// Offers the metrics with names, and takes those of columns too.
#[derive(Clone)]
struct MetricParser;

impl TypedValueParser for MetricParser {
    type Value = Metric;

    fn parse_ref(&self, cmd: &clap::Command, arg: Option<&clap::Arg>, value: &OsStr) -> Result<Metric, clap::Error> {
        StringValueParser::new().parse_ref(cmd, arg, value).map(|name| Metric::named(&name))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(METRICS.iter().map(|metric| PossibleValue::new(metric.name.as_ref()).help(metric.about))))
    }
}

const PLOT_HELP: &str = "\
Examples:
  harness plot                               all figures of the newest run
  harness plot --only map -w gnn             what lay where at the peak
  harness plot runs/run-003 -S direct -f pdf --width column -o paper
  harness plot before after -o both          two runs in one picture

Figures are drawn from the files of a run and from nothing else; the same files give the same bytes. \
docs/FIGURES.md says how to read them.

Strategies are named as in `harness compare`; the filters match these names.";

/// `harness plot`
#[derive(Args, Debug)]
pub struct PlotArgs {
    /// Folders of runs, drawn together [default: the newest runs/run-NNN]
    #[arg(value_name = "FOLDER")]
    pub folders: Vec<PathBuf>,
    /// Only this figure (repeatable) [default: all that the files allow]
    #[arg(long, value_enum, value_name = "FIGURE", help_heading = "What to draw")]
    pub only: Vec<Figure>,
    /// Which strategies and workloads.
    #[command(flatten, next_help_heading = "What to draw")]
    pub filters: FilterArgs,
    /// Only this kind of file (repeatable) [default: all]
    #[arg(short = 'f', long, value_enum, value_name = "FORMAT", help_heading = "Output")]
    pub format: Vec<Format>,
    /// Only this printed width (repeatable) [default: both]
    #[arg(long, value_enum, value_name = "WIDTH", help_heading = "Output")]
    pub width: Vec<Width>,
    /// The folder for the figures; those of the same name are replaced [default: figures in FOLDER]
    #[arg(short = 'o', long = "out", value_name = "DIR", help_heading = "Output")]
    pub out: Option<PathBuf>,
}

const FIDELITY_HELP: &str = "\
Examples:
  harness fidelity snapshot.pickle
  harness fidelity recordings/*.pickle.zst --csv -

A snapshot replays under the settings that it was recorded under. From the recording come the driver's addresses and the \
moments at which late frees completed; whatever had to be inferred is counted. If NAME.json lies beside NAME.pickle, the \
memory limit and the final statistics in it are used.

Exit code 0 if every file is exact, 4 otherwise, 6 if any cannot be read.";

/// `harness fidelity`
#[derive(Args, Debug)]
pub struct FidelityArgs {
    /// The snapshots (plain, gzip or zstd); '-' is standard input
    #[arg(required = true, value_name = "SNAPSHOT")]
    pub files: Vec<PathBuf>,
    /// The device whose history to take [default: the only one that has any]
    #[arg(long, value_name = "N")]
    pub device: Option<u32>,
    /// Write rows to standard output
    #[arg(long, value_name = "-", value_parser = stdout_only)]
    pub csv: Option<String>,
}

const CALIBRATE_HELP: &str = "\
Examples:
  harness calibrate -o h200.toml             a minute on an idle card
  harness calibrate -d cuda:1 --samples 400 -o second.toml

FILE.toml is a profile: what each call costs, and how well that fits the means. FILE.csv has the means, and \
FILE.packing.csv where the card put the requests of random programs. docs/SIMULATOR.md says what is measured and why.

Other programs on the card disturb the times and the packing.";

/// `harness calibrate`
#[derive(Args, Debug)]
pub struct CalibrateArgs {
    /// The card: cuda, or cuda:N for the one of that number
    #[arg(short = 'd', long, value_name = "DEVICE", default_value = "cuda", value_parser = card)]
    pub device: u32,
    /// How many times each call is made in each size
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub samples: u64,
    /// The profile to write; its name without .toml names the profile
    #[arg(short = 'o', long = "out", value_name = "FILE.toml", value_parser = toml_file)]
    pub out: PathBuf,
    /// Open the card, say so, and keep it until standard input ends
    #[arg(long, hide = true)]
    pub hold_context: bool,
}

const COMPLETIONS_HELP: &str = "\
Examples:
  harness completions bash > ~/.local/share/bash-completion/completions/harness
  harness completions zsh > ~/.zfunc/_harness
  harness completions fish > ~/.config/fish/completions/harness.fish";

/// `harness completions`
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

const MAN_HELP: &str = "\
Examples:
  harness man | man -l -
  harness man -o ~/.local/share/man/man1     harness.1, harness-run.1, …";

/// `harness man`
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Write the page of every verb to this folder
    #[arg(short = 'o', long = "out", value_name = "DIR")]
    pub out: Option<PathBuf>,
}

fn setting(text: &str) -> Result<Setting, String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok(Setting { key: key.to_string(), value: value.to_string() }),
        _ => Err("write key=value, such as max_split_size_mb=128".to_string()),
    }
}

fn stdout_only(text: &str) -> Result<String, String> {
    if text == "-" {
        Ok(text.to_string())
    } else {
        Err("only '-' (standard output); files go to the folder of -o".to_string())
    }
}

fn capacity(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        0 => Err("a device without memory serves nothing; leave --capacity out for the recording's own".to_string()),
        bytes => Ok(bytes),
    }
}

fn limit(text: &str) -> Result<LimitChoice, String> {
    match text {
        "none" => Ok(LimitChoice::Lifted),
        _ => size::parse(text).map(LimitChoice::Bytes).map_err(|why| format!("{why}, or 'none'")),
    }
}

fn card(text: &str) -> Result<u32, String> {
    match DeviceName::parse(text) {
        Ok(DeviceName::Cuda(number)) => Ok(number),
        _ => Err("write cuda, or cuda:N for the card of that number".to_string()),
    }
}

fn toml_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.extension().is_some_and(|ending| ending == "toml") {
        Ok(path)
    } else {
        Err("name a file that ends in .toml".to_string())
    }
}

fn jobs(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "write a number from 1 on, or leave --jobs out for one job on each CPU".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    /// Every verb with its full name.
    fn verbs(command: &clap::Command, name: &str, all: &mut Vec<(String, clap::Command)>) {
        all.push((name.to_string(), command.clone()));
        for verb in command.get_subcommands() {
            verbs(verb, &format!("{name} {}", verb.get_name()), all);
        }
    }

    #[test]
    fn every_verb_has_examples_that_parse_and_fit() {
        let mut all = Vec::new();
        verbs(&Cli::command(), "harness", &mut all);
        assert!(all.len() > 10, "{}", all.len());
        for (name, mut command) in all {
            let help = command.render_long_help().to_string();
            let (_, examples) = help.split_once("Examples:\n").unwrap_or_else(|| panic!("{name} has no examples"));
            let lines: Vec<&str> = examples.lines().take_while(|line| line.starts_with("  ")).collect();
            assert!(lines.iter().any(|line| line.contains(&name)), "{name}: {lines:?}");
            for line in lines {
                assert!(line.chars().count() < 80, "{line}");
                // What stands far right explains.
                let example = line.trim_start().split("   ").next().unwrap();
                for call in example.split(['|', '>', '&']).filter(|call| call.trim_start().starts_with("harness ")) {
                    let words = call.split_whitespace().map(|word| word.trim_matches('\''));
                    let parsed = Cli::try_parse_from(words).map(drop);
                    let is_help = call.trim_start().starts_with("harness help");
                    assert!(parsed.is_ok() || is_help, "{call}: {}", parsed.unwrap_err());
                }
            }
        }
    }

    #[test]
    fn cards_have_numbers() {
        assert_eq!([card("cuda"), card("cuda:12")], [Ok(0), Ok(12)]);
        assert!(["sim", "sim:h200", "cuda:x"].iter().all(|text| card(text).is_err()));
        assert!(toml_file("a.toml").is_ok() && toml_file("a.csv").is_err() && toml_file(".toml").is_err());
    }

    #[test]
    fn a_value_may_hold_commas_and_equals_signs() {
        let one = setting("conf=a:1,b:2=3").unwrap();
        assert_eq!((one.key.as_str(), one.value.as_str()), ("conf", "a:1,b:2=3"));
        assert_eq!(setting("text=").unwrap().value, "");
        assert!(setting("novalue").is_err());
        assert!(setting("=1").is_err());
    }
}
