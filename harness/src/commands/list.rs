//! `harness list`: what there is to choose from.

use crate::args::ListArgs;
use harness::exit::Error;
use harness::load;
use harness::output::Output;
use harness::registry::STRATEGIES;
use harness::run::DEFAULT_CAPACITY;
use harness::size::bytes;
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
        out.line(format_args!("  {:<24}{}", entry.name, entry.about))?;
        for (key, value) in entry.defaults() {
            let value = match value {
                Value::Null => "none".to_string(),
                Value::String(text) => format!("'{text}'"),
                other => other.to_string(),
            };
            out.line(format_args!("      -p {key}={value}"))?;
        }
    }
    out.line(format_args!("workloads"))?;
    for workload in &workloads {
        out.line(format_args!("  {:<24}{}", workload.name, workload.about))?;
    }
    out.line(format_args!("devices"))?;
    out.line(format_args!("  {SIM:<24}{SIM_ABOUT}"))?;
    out.line(format_args!("  {CUDA:<24}{CUDA_ABOUT}"))?;
    let capacity = bytes(DEFAULT_CAPACITY);
    out.line(format_args!("  {:<24}both of {capacity}, unless the trace or --capacity says otherwise", ""))
}
