//! Generated workloads from outside: as files, in runs, in the list, and what is said of lines that are none.

mod common;

#[cfg(unix)]
use common::shell;
use common::{fails, harness, succeeds};
use serde_json::Value;
use std::fs;
use tempfile::TempDir;

const SMALL: &str = "churn:allocations=2000,seed=7";

fn names(folder: &TempDir, sub: &str) -> Vec<String> {
    let entries = fs::read_dir(folder.path().join(sub)).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The values of one column of `run.csv`.
fn column(csv: &str, name: &str) -> Vec<String> {
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let at = reader.headers().unwrap().iter().position(|column| column == name).unwrap();
    reader.records().map(|row| row.unwrap()[at].to_string()).collect()
}

#[test]
fn a_workload_is_the_same_as_a_file_on_standard_output_and_in_memory() {
    let folder = TempDir::new().unwrap();
    let said = succeeds(&folder, &["trace", "gen", SMALL, "-o", "a.trace.zst"]);
    assert!(said.starts_with("a.trace.zst: ") && said.contains(" events, ") && said.ends_with("1 stream\n"), "{said}");
    succeeds(&folder, &["trace", "gen", SMALL, "-o", "a.trace"]);
    let text = succeeds(&folder, &["trace", "gen", SMALL, "-o", "-"]);
    assert_eq!(fs::read_to_string(folder.path().join("a.trace")).unwrap(), text);
    for held in ["a.trace.zst", SMALL] {
        assert_eq!(succeeds(&folder, &["trace", "show", held]), text, "{held}");
    }
    assert!(text.contains(&format!("\n# source = {SMALL} ")) && text.contains("\n# label = "), "{}", &text[..200]);
    assert!(succeeds(&folder, &["trace", "check", SMALL]).starts_with("churn:allocations=2000,seed=7: valid, "));
    assert!(succeeds(&folder, &["trace", "stat", SMALL]).contains("\nallocations   2,000 of "));
    // In pieces it is the same, with its markers.
    let long = "robson:iterations=20";
    let text = succeeds(&folder, &["trace", "gen", long, "-o", "-"]);
    assert!(text.contains("\nm iteration 20\n") && text.lines().count() > 3 * 16 * 1024, "{}", text.lines().count());
    assert_eq!(succeeds(&folder, &["trace", "show", long]), text);
}

#[test]
fn parameters_count_and_their_order_does_not() {
    let folder = TempDir::new().unwrap();
    let text = succeeds(&folder, &["trace", "gen", SMALL, "-o", "-"]);
    let other = succeeds(&folder, &["trace", "gen", &SMALL.replace('7', "8"), "-o", "-"]);
    assert_ne!(text, other, "the seed counts");
    assert_eq!(succeeds(&folder, &["trace", "gen", "churn:seed=7,allocations=2000", "-o", "-"]), text);
}

#[test]
fn several_workloads_go_to_a_folder() {
    let folder = TempDir::new().unwrap();
    let other = "churn:size=uniform(1,4096),allocations=10";
    succeeds(&folder, &["trace", "gen", SMALL, other, "-o", "traces"]);
    let files = ["churn-allocations=10,size=uniform-1,4096.trace.zst", "churn-allocations=2000,seed=7.trace.zst"];
    assert_eq!(names(&folder, "traces"), files);
    fails(&folder, &["trace", "gen", other, "-o", "traces"], 7, &["it exists, and nothing is overwritten"]);
    fails(&folder, &["trace", "gen", SMALL, SMALL, "-o", "more"], 2, &["two workloads would become", "apart"]);
    fails(&folder, &["trace", "gen", SMALL, other, "-o", "x.trace"], 2, &["x.trace is one file"]);
    fails(&folder, &["trace", "gen", SMALL, other, "-o", "-"], 2, &["-o - takes one workload"]);
    assert_eq!(names(&folder, ""), ["traces"]);
}

/// A limit on the size of files stands for a full disk.
#[test]
#[cfg(unix)]
fn a_full_disk_leaves_nothing() {
    let folder = TempDir::new().unwrap();
    for out in ["x.trace", "x.trace.zst", "new"] {
        let done = shell(&folder, &format!("trap '' XFSZ; ulimit -f 8; exec $H trace gen churn: -o {out}"));
        assert_eq!(done.code, 7, "{}", done.err);
        assert!(done.err.contains("cannot write "), "{}", done.err);
        assert_eq!(names(&folder, ""), [""; 0], "{out}");
    }
    let done = shell(&folder, "$H trace gen churn:allocations=1000000 -o - | head -1");
    assert_eq!((done.out.as_str(), done.err.as_str()), ("gpu-alloc-trace 1\n", ""), "a reader who leaves ends it");
}

#[test]
fn a_run_takes_workloads_and_names_its_rows_after_them() {
    let folder = TempDir::new().unwrap();
    let run = |args: &[&str]| {
        let rows = succeeds(&folder, &[&["run", "-s", "^direct$", "--csv", "-"], args].concat());
        column(&rows, "workload")
    };
    let other = "churn:allocations=10";
    assert_eq!(run(&["-w", SMALL, "-w", other, "-w", SMALL]), [SMALL, other]);
    assert_eq!(run(&["-w", SMALL, "-w", "^gnn"]), ["gnn.default", SMALL]);
    assert_eq!(run(&["-w", SMALL, "-w", other, "-W", "seed=7"]), [other]);
    assert_eq!(run(&["-w", "all", "-w", other]).len(), 8, "the recordings and one more");
    fs::write(folder.path().join("tiny.trace"), "gpu-alloc-trace 1\na 0 1000 0\n").unwrap();
    assert_eq!(run(&["-w", other, "--trace", "tiny.trace"]), ["tiny", other]);

    // As a file it is the same workload under another name.
    let hash = |args: &[&str]| {
        column(&succeeds(&folder, &[&["run", "-s", "^direct$", "--csv", "-"], args].concat()), "trace_hash")
    };
    succeeds(&folder, &["trace", "gen", SMALL, "-o", "small.trace.zst"]);
    assert_eq!(hash(&["-w", SMALL]), hash(&["--trace", "small.trace.zst"]));

    let strategies = |args: &[&str]| {
        let rows = succeeds(&folder, &[&["run", "-w", other, "--csv", "-"], args].concat());
        column(&rows, "strategy")
    };
    assert_eq!(strategies(&["-s", "all"]), strategies(&[]));
    assert_eq!(strategies(&["-s", "all", "-S", "a"]), strategies(&["-S", "a"]));

    succeeds(&folder, &["run", "-s", "direct|caching", "-w", SMALL, "-w", other, "--pass", "audit", "-o", "r"]);
    let table = succeeds(&folder, &["compare", "r", "-w", other]);
    assert!(table.contains(other) && !table.contains(SMALL), "{table}");
    assert!(succeeds(&folder, &["compare", "r", "-w", "allocations=2000"]).contains(SMALL));
}

#[test]
fn a_line_that_is_no_workload_says_what_is_wrong() {
    let folder = TempDir::new().unwrap();
    for verb in [&["run", "-w"][..], &["compare", "-w"], &["trace", "show"], &["trace", "gen", "-o", "-"]] {
        let with = |spec: &'static str| [verb, &[spec]].concat();
        fails(&folder, &with("churn:alocations=5"), 2, &["'alocations'", "did you mean 'allocations'"]);
        fails(&folder, &with("churn:kept=2"), 2, &["kept=2", "0 to 1"]);
        fails(&folder, &with("churn:allocations=0"), 2, &["allocations=0", "1 to ", " allocations"]);
        fails(&folder, &with("churn:live=many"), 2, &["live=many", "64MiB", "1B to "]);
    }
    fails(&folder, &["trace", "gen", "chrun:", "-o", "-"], 2, &["'chrun'", "did you mean 'churn'"]);
    fails(&folder, &["trace", "show", "chrun:seed=1"], 6, &["chrun:seed=1: cannot open", "did you mean 'churn'"]);
    fails(&folder, &["run", "-w", "chrun:seed=1"], 3, &["gnn.default", "did you mean 'churn'"]);
    fails(&folder, &["run", "-w", "churn"], 3, &["write 'churn:' with a colon"]);
    fails(&folder, &["run", "-w", SMALL, "-W", "churn"], 3, &["there are: churn:allocations=2000,seed=7"]);
    let done = harness(&folder, &["run", "-s", "direct", "-w", "churn", "-w", "cuda", "--csv", "-"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.err.contains("note: ") && done.err.contains("write 'churn:'"), "{}", done.err);
}

#[test]
fn the_list_shows_every_parameter_with_its_range_and_default() {
    let folder = TempDir::new().unwrap();
    let json: Value = serde_json::from_str(&succeeds(&folder, &["list", "--json"])).unwrap();
    let text = succeeds(&folder, &["list"]);
    let generators = json["generators"].as_array().unwrap();
    assert!(!generators.is_empty());
    for generator in generators {
        let name = generator["name"].as_str().unwrap();
        let own = succeeds(&folder, &["list", &format!("^{name}$")]);
        assert!(own.starts_with(&format!("generators of workloads\n  {name}: ")), "{own}");
        assert!(text.contains(own.strip_prefix("generators of workloads\n").unwrap()), "{own} is not in {text}");
        for param in generator["params"].as_array().unwrap() {
            let field = |key: &str| param[key].as_str().unwrap();
            let line = format!("\n      {}={}\n", field("key"), field("default")).replace("=\n", "\n");
            let (_, below) = own.split_once(&line).unwrap_or_else(|| panic!("{line} is not in {own}"));
            let about = below.lines().next().unwrap();
            assert!(about.contains(field("about")) && about.contains(field("range")), "{about}");
            assert!(field("kind") == "bytes" || about.ends_with(&format!("{})", field("unit"))), "{about}");
        }
        assert!(generator["version"].as_u64() > Some(0));
    }
    let one = succeeds(&folder, &["list", "^caching$", "sim"]);
    assert!(
        one.starts_with("strategies\n  caching ") && one.contains("\ndevices\n  sim ") && !one.contains("cuda"),
        "{one}"
    );
    let json: Value = serde_json::from_str(&succeeds(&folder, &["list", "gnn.default", "--json"])).unwrap();
    assert_eq!(json["workloads"].as_array().unwrap().len(), 1);
    assert_eq!(json["strategies"].as_array().unwrap().len(), 0);
    fails(&folder, &["list", "no_such_thing"], 3, &["nothing has such a name"]);
}
