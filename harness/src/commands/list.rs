//! `harness list`: what there is to choose from.

use crate::args::ListArgs;
use harness::exit::Error;
use harness::load;
use harness::output::{Output, width};
use harness::registry::{STRATEGIES, written};
use harness::run::DEFAULT_CAPACITY;
use harness::size::bytes;
use harness::wrap::wrapped;
use serde_json::{Value, json};

const SIM: &str = "sim";
const SIM_ABOUT: &str = "simulated: counts and places every byte, models the time of every driver call";
const CUDA: &str = "cuda";
const CUDA_ABOUT: &str = "a real card (cuda:N for another than the first): real memory, measured times";

/// Runs the command.
pub fn list(args: &ListArgs, out: &mut Output) -> Result<(), Error> {
    let workloads = load::embedded();
    if args.json {
        let strategies: Vec<Value> = STRATEGIES
            .iter()
            .map(|entry| json!({ "name": entry.name, "about": entry.about, "params": entry.defaults() }))
            .collect();
        let workloads: Vec<Value> =
            workloads.iter().map(|workload| json!({ "name": workload.name, "about": workload.about })).collect();
        let devices = json!([
            { "name": SIM, "about": SIM_ABOUT, "capacity_bytes": DEFAULT_CAPACITY },
            { "name": CUDA, "about": CUDA_ABOUT, "capacity_bytes": DEFAULT_CAPACITY },
        ]);
        let all = json!({ "strategies": strategies, "workloads": workloads, "devices": devices });
        return out.line(format_args!("{all:#}"));
    }
    out.line(format_args!("strategies"))?;
    for entry in STRATEGIES {
        line(out, entry.name, entry.about)?;
        for (key, value) in entry.defaults() {
            let value = written(&key, &value);
            let value = if value.is_empty() { "''" } else { &value };
            out.line(format_args!("      -p {key}={value}"))?;
        }
    }
    out.line(format_args!("workloads"))?;
    for workload in &workloads {
        line(out, &workload.name, workload.about)?;
    }
    out.line(format_args!("devices"))?;
    line(out, SIM, SIM_ABOUT)?;
    line(out, CUDA, CUDA_ABOUT)?;
    let capacity = bytes(DEFAULT_CAPACITY);
    line(out, "", &format!("both of {capacity}, unless the trace or --capacity says otherwise"))
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
