//! `harness list`: what there is to choose from.

use crate::args::ListArgs;
use harness::exit::Error;
use harness::load;
use harness::output::Output;
use harness::registry::STRATEGIES;
use harness::run::{DEFAULT_CAPACITY, DEVICE};
use harness::size::bytes;
use serde_json::{Value, json};

const DEVICE_ABOUT: &str = "simulated: counts and places every byte, models the time of every driver call";

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
        let devices = json!([{ "name": DEVICE, "about": DEVICE_ABOUT, "capacity_bytes": DEFAULT_CAPACITY }]);
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
    out.line(format_args!("  {DEVICE:<24}{DEVICE_ABOUT}"))?;
    let capacity = bytes(DEFAULT_CAPACITY);
    out.line(format_args!("  {:<24}{capacity}, unless the trace or --capacity says otherwise", ""))
}
