//! `harness trace` from outside: summaries, comparisons, and what they print.

mod common;

use common::{fails, harness, succeeds};
use serde_json::Value;
use std::fs;
use tempfile::TempDir;

/// Two iterations of a small job with labels.
const STEPS: &str = "\
gpu-alloc-trace 1
# source = by hand
# device_bytes = 1073741824
# label = parameter w
# label = activation x
# label = gradient w
a 0 4194304 0 @0
m iteration 1
a 1 1048576 0 @1
a 2 4194304 0 @2
f 1
f 2
m iteration 2
a 1 3145728 0 @1
a 2 4194304 0 @2
f 1
f 2
";

fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("steps.trace"), STEPS).unwrap();
    folder
}

fn json(folder: &TempDir, args: &[&str]) -> Value {
    serde_json::from_str(&harness(folder, args).out).unwrap()
}

#[test]
fn labels_survive_the_program() {
    let folder = folder();
    let shown = succeeds(&folder, &["trace", "show", "steps.trace"]);
    assert!(shown.contains("# label = gradient w\n") && shown.contains("\na 2 4194304 0 @2\n"), "{shown}");
    fs::write(folder.path().join("bad.trace"), STEPS.replace("4194304 0 @2\nf 1", "4194304 0 @3\nf 1")).unwrap();
    fails(&folder, &["trace", "check", "bad.trace"], 4, &["bad.trace: line 10 (`a 2 4194304 0 @3`): label 3"]);
}

#[test]
fn a_summary_tells_roles_and_regularity() {
    let folder = folder();
    let text = succeeds(&folder, &["trace", "stat", "steps.trace"]);
    let line = "regularity    57.1 % of what 1 iteration after the first allocate is in sizes of the one before, 57.1 % in the same order\n";
    assert!(text.contains(line), "{text}");
    let row = |role: &str| {
        let line = text.lines().find(|line| line.starts_with(role)).unwrap_or_else(|| panic!("no {role}: {text}"));
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_string).collect::<Vec<_>>()
    };
    assert_eq!(row("role"), ["role", "allocations", "bytes", "of all", "over time", "at the peak"]);
    assert_eq!(row("activation"), ["activation", "2", "4.00 MiB", "25.0 %", "11.8 %", "27.3 %"]);
    assert_eq!(row("held blocks"), ["held blocks", "1", "2", "3", "3", "3"]);
    let json = json(&folder, &["trace", "stat", "steps.trace", "--json"]);
    assert_eq!(json["regularity"]["same_size_bytes"], 4_194_304);
    assert_eq!((&json["roles"][0]["role"], &json["roles"][0]["peak_bytes"]), (&"parameter".into(), &4_194_304.into()));
    assert_eq!(json["held_bytes"]["max"], 11_534_336);
}

#[test]
fn a_recording_is_like_itself() {
    let folder = folder();
    let text = succeeds(&folder, &["trace", "compare", "gnn.default", "gnn.default", "--diff", "5"]);
    assert_eq!(text.matches("  met\n").count(), 6, "{text}");
    assert!(text.contains("the two part 0 times\n"), "{text}");
    // What strategies make of it is what a run says.
    let run = succeeds(&folder, &["run", "-w", "gnn", "-s", "^caching$", "--pass", "audit", "-o", "r"]);
    let utilised = text.lines().find(|line| line.starts_with("utilisation, caching")).unwrap();
    assert!(utilised.contains("44.00 %") && run.contains("44.0 %"), "{utilised}: {run}");
}

#[test]
fn what_is_unlike_is_measured_and_shown() {
    let folder = folder();
    let changed = STEPS.replace("a 2 4194304 0 @2\nf 1", "a 2 4194304 0 @2\na 3 2097152 0 @2\nf 3\nf 1");
    fs::write(folder.path().join("more.trace"), changed).unwrap();
    let args = ["trace", "compare", "steps.trace", "more.trace", "--diff", "1"];
    let done = harness(&folder, &args);
    assert_eq!(done.code, 4, "{}", done.err);
    assert!(done.err.contains("more is not like steps: ") && done.err.contains("allocations"), "{}", done.err);
    let missed = |what: &str| done.out.lines().any(|line| line.starts_with(what) && line.ends_with("  missed"));
    assert!(missed("allocations") && missed("peak requested"), "{}", done.out);
    let divergence =
        "the two part 2 times; 1 more follow\n@ allocation 3 / 3, after gradient w\n+       2,097,152  gradient w\n";
    assert!(done.out.ends_with(divergence), "{}", done.out);
    assert!(done.out.contains("\n2,097,152          0          2\n"), "{}", done.out);

    let json = json(&folder, &[&args[..], &["--json"]].concat());
    let allocations = &json["measures"]["allocations"];
    assert_eq!((&allocations["recording"], &allocations["generated"]), (&5.into(), &7.into()));
    assert_eq!((&allocations["difference_percent"], &allocations["met"]), (&40.0.into(), &false.into()));
    assert_eq!(json["divergences"][0]["generated"]["first_labels"][0], "gradient w");
    assert_eq!(json["measures"].as_object().unwrap().len(), 6);

    // Every bar is a flag.
    let bars = ["--peak", "100", "--allocs", "100", "--sizes", "1", "--lifetimes", "1", "--utilisation", "100"];
    succeeds(&folder, &[&args[..], &bars].concat());
    fails(&folder, &["trace", "compare", "steps.trace", "more.trace", "--peak", "-1"], 2, &["'-1'", "0.05"]);
    fails(&folder, &["trace", "compare", "steps.trace", "none.trace"], 6, &["none.trace"]);
}

/// A strategy that runs out of memory on one of them is no utilisation, and no success.
#[test]
fn what_does_not_fit_the_recordings_device_is_missed() {
    let folder = folder();
    let small = STEPS.replace("1073741824", "8388608").replace("4194304", "1024");
    fs::write(folder.path().join("small.trace"), small).unwrap();
    let done = harness(&folder, &["trace", "compare", "small.trace", "steps.trace"]);
    assert_eq!(done.code, 4, "{}", done.err);
    let row = done.out.lines().find(|line| line.starts_with("utilisation, caching")).unwrap();
    assert!(row.contains("oom") && row.ends_with("missed"), "{row}");
}
