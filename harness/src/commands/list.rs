//! `harness list`: what there is to choose from.

use crate::args::ListArgs;
use harness::exit::Error;
use harness::filter::Filter;
use harness::load::{self, Source};
use harness::output::{Output, width};
use harness::registry::{Entry, STRATEGIES, written};
use harness::run::DEFAULT_CAPACITY;
use harness::size::bytes;
use harness::wrap::wrapped;
use serde_json::{Value, json};
use workload_gen::jobs::{Generator, generators};
use workload_gen::spec::{Kind, Param};

const SIM: &str = "sim";
const SIM_ABOUT: &str = "simulated: counts and places every byte, models the time of every driver call";
const CUDA: &str = "cuda";
const CUDA_ABOUT: &str = "a real card (cuda:N for another than the first): real memory, measured times";

/// Runs the command.
pub fn list(args: &ListArgs, out: &mut Output) -> Result<(), Error> {
    let all = Listed::new(&Filter { include: args.names.clone(), ..Filter::default() });
    if all.is_empty() {
        return Err(Error::NothingSelected(
            "nothing has such a name; `harness list` without one shows all strategies, workloads and devices"
                .to_string(),
        ));
    }
    if args.json {
        return out.line(format_args!("{:#}", all.record()));
    }
    all.print(out)
}

/// What is listed.
struct Listed {
    strategies: Vec<&'static Entry>,
    recordings: Vec<Source>,
    generators: Vec<&'static Generator>,
    devices: Vec<(&'static str, &'static str)>,
}

impl Listed {
    fn new(filter: &Filter) -> Listed {
        Listed {
            strategies: STRATEGIES.iter().filter(|entry| filter.keeps(entry.name)).collect(),
            recordings: load::embedded().into_iter().filter(|recording| filter.keeps(&recording.name)).collect(),
            generators: generators().iter().filter(|generator| filter.keeps(generator.name)).collect(),
            devices: [(SIM, SIM_ABOUT), (CUDA, CUDA_ABOUT)]
                .into_iter()
                .filter(|(name, _)| filter.keeps(name))
                .collect(),
        }
    }

    fn is_empty(&self) -> bool {
        self.strategies.is_empty()
            && self.recordings.is_empty()
            && self.generators.is_empty()
            && self.devices.is_empty()
    }

    fn record(&self) -> Value {
        let strategy = |entry: &&Entry| json!({ "name": entry.name, "about": entry.about, "params": entry.defaults() });
        let recording = |source: &Source| json!({ "name": source.name, "about": source.about });
        let generator = |generator: &&Generator| {
            let params: Vec<Value> = generator.params.iter().copied().flatten().map(param_record).collect();
            json!({ "name": generator.name, "about": generator.about, "version": generator.version, "params": params })
        };
        let device =
            |&(name, about): &(&str, &str)| json!({ "name": name, "about": about, "capacity_bytes": DEFAULT_CAPACITY });
        json!({
            "strategies": self.strategies.iter().map(strategy).collect::<Vec<_>>(),
            "workloads": self.recordings.iter().map(recording).collect::<Vec<_>>(),
            "generators": self.generators.iter().map(generator).collect::<Vec<_>>(),
            "devices": self.devices.iter().map(device).collect::<Vec<_>>(),
        })
    }

    fn print(&self, out: &mut Output) -> Result<(), Error> {
        let head = |out: &mut Output, is_there: bool, text: &str| match is_there {
            true => out.line(format_args!("{text}")),
            false => Ok(()),
        };
        head(out, !self.strategies.is_empty(), "strategies")?;
        for entry in &self.strategies {
            line(out, entry.name, entry.about)?;
            for (key, value) in entry.defaults() {
                let value = written(&key, &value);
                let value = if value.is_empty() { "''" } else { &value };
                out.line(format_args!("      -p {key}={value}"))?;
            }
        }
        head(out, !self.recordings.is_empty(), "workloads")?;
        for recording in &self.recordings {
            line(out, &recording.name, recording.about)?;
        }
        head(out, !self.generators.is_empty(), "generators of workloads")?;
        for generator in &self.generators {
            line(out, &format!("{}:", generator.name), generator.about)?;
            generator.params.iter().copied().flatten().try_for_each(|param| self::param(out, param))?;
        }
        head(out, !self.devices.is_empty(), "devices")?;
        for (name, about) in &self.devices {
            line(out, name, about)?;
        }
        match self.devices[..] {
            [] => Ok(()),
            _ => {
                let capacity = bytes(DEFAULT_CAPACITY);
                line(out, "", &format!("of {capacity}, unless the trace or --capacity says otherwise"))
            }
        }
    }
}

/// A parameter as a line sets it, and below what it does and may be.
fn param(out: &mut Output, param: &Param) -> Result<(), Error> {
    let Param { key, about, default, .. } = param;
    // What depends on other parameters has no default of its own.
    match *default {
        "" => out.line(format_args!("      {key}"))?,
        default => {
            let fits = width().is_none_or(|width| 6 + key.len() + 1 + default.len() <= width);
            let gap = if fits { "" } else { "\n          " };
            out.line(format_args!("      {key}={gap}{default}"))?;
        }
    }
    let text = format!("{about} ({})", param.range());
    out.line(format_args!("          {}", wrapped(&text, 10, width())))
}

fn param_record(param: &Param) -> Value {
    let kind = match param.kind {
        Kind::Int { .. } => "int",
        Kind::Real { .. } => "real",
        Kind::Bytes { .. } => "bytes",
        Kind::Choice(_) => "choice",
        Kind::Name(_) => "name",
        Kind::Flag => "flag",
        Kind::Ints { .. } => "ints",
        Kind::Text(..) => "text",
    };
    json!({
        "key": param.key, "about": param.about, "kind": kind, "range": param.kind.to_string(), "unit": param.unit,
        "default": param.default,
    })
}

/// A name and what it stands for, beside it or, where that leaves too little room, below.
fn line(out: &mut Output, name: &str, about: &str) -> Result<(), Error> {
    let width = width();
    if width.is_none_or(|width| width >= 60) {
        return out.line(format_args!("  {name:<24}{}", wrapped(about, 26, width)));
    }
    if !name.is_empty() {
        out.line(format_args!("  {name}"))?;
    }
    out.line(format_args!("      {}", wrapped(about, 6, width)))
}
