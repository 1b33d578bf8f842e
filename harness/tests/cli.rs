//! The program from outside: what it prints, which files it leaves, and how it ends.

mod common;

#[cfg(unix)]
use common::shell;
use common::{fails, harness, succeeds};
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const TINY: &str = "\
gpu-alloc-trace 1
# source = by hand
# device_bytes = 16777216
a 0 1000 0
a 1 3145728 0
f 0
a 0 513 0
f 1
f 0
";

/// A folder with the tiny trace in it.
fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("tiny.trace"), TINY).unwrap();
    folder
}

fn read(folder: &TempDir, path: &str) -> String {
    fs::read_to_string(folder.path().join(path)).unwrap()
}

/// The values of one column.
fn column(csv: &str, name: &str) -> Vec<String> {
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let at = reader.headers().unwrap().iter().position(|column| column == name).unwrap_or_else(|| panic!("no {name}"));
    reader.records().map(|row| row.unwrap()[at].to_string()).collect()
}

/// A snapshot of the recordings beside the checkout, if they are there.
fn snapshot(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/traces").join(name);
    if !path.exists() {
        eprintln!("skipped: {} is not there", path.display());
        return None;
    }
    Some(path)
}

const ONE: [&str; 5] = ["run", "-s", "^direct$", "--trace", "tiny.trace"];

#[test]
fn the_table_is_what_people_read() {
    let folder = folder();
    let out = succeeds(&folder, &[&ONE[..], &["--pass", "audit"]].concat());
    let expected = [
        "   strategy  reserved  overhead  utilised  calls  driver time    outcome",
        "tiny  6 events, load bound 3.00 MiB",
        "   direct    3.00 MiB    +0.0 %   100.0 %      6    233.73 µs    ok",
        "",
        "1 workload on 1 strategy; the rows are in runs/run-001",
        "",
    ]
    .join("\n");
    let figures = if cfg!(feature = "figures") { "the figures are in runs/run-001/figures\n" } else { "" };
    assert_eq!(out, expected + figures);
    assert!(out.lines().all(|line| line.chars().count() <= 80));
}

#[test]
fn the_row_is_exact() {
    let out = succeeds(folder(), &[&ONE[..], &["--csv", "-"]].concat());
    let expected = "\
run,workload,trace_hash,events,strategy,params,device,profile,capacity_bytes,limit_bytes,outcome,outcome_event,\
outcome_detail,failed_allocs,skipped_events,pool_fallbacks,unsupported_controls,requested_peak_bytes,load_peak_bytes,\
pending_peak_bytes,reserved_peak_bytes,device_used_peak_bytes,reserved_peak_event,load_at_reserved_peak_bytes,\
requested_at_reserved_peak_bytes,reserved_end_bytes,requested_end_bytes,modelled_driver_ns,modelled_end_ns,\
calls_malloc,calls_free,calls_reserve,calls_unreserve,calls_create,calls_release,calls_map,calls_unmap,calls_fence,\
calls_poll,calls_order_after,calls_sync,calls_memory_info,calls_malloc_async,calls_free_async,calls_trim_async,\
last_driver_event
1b6478d35a7adc8e,tiny,ea29f2b0db067948,6,direct,{},sim,h200,16777216,,ok,,,0,0,0,0,3146728,3146752,0,3146728,6291456,1,3146752,3146728,0,0,\
233727,233727,3,3,0,0,0,0,0,0,0,0,0,0,0,0,0,0,5
";
    assert_eq!(out, expected);
}

#[test]
fn every_recording_runs_on_every_strategy_and_gives_the_same_bytes() {
    let folder = folder();
    let audit = |jobs| succeeds(&folder, &["run", "--pass", "audit", "--jobs", jobs, "--csv", "-"]);
    let (first, second) = (audit("1"), audit("2"));
    assert_eq!(first, second);
    let (workloads, strategies) = (column(&first, "workload"), column(&first, "strategy"));
    let rows = strategies.len();
    assert_eq!(workloads.iter().collect::<BTreeSet<_>>().len(), 7);
    assert_eq!(rows % 7, 0);
    assert!(workloads.is_sorted() && strategies[..rows / 7].is_sorted(), "rows are out of order");
    assert_eq!(column(&first, "run").iter().collect::<BTreeSet<_>>().len(), rows, "ids are not unique");

    // A strategy that is not published yet has rows of its own, which may end as they like.
    let published = include_str!("../../results/sim-h200-3/run.csv");
    let known: BTreeSet<String> = column(published, "strategy").into_iter().collect();
    let mut lines = first.lines();
    let header = lines.next();
    let kept = lines.zip(&strategies).filter(|(_, strategy)| known.contains(*strategy)).map(|(line, _)| line);
    let mut wanted = published.lines();
    assert_eq!(header, wanted.next());
    for (line, wanted) in kept.clone().zip(wanted.clone()) {
        assert_eq!(line, wanted, "a published row");
    }
    assert_eq!(kept.count(), wanted.count(), "published rows");
    let outcomes = column(published, "outcome");
    assert!(outcomes.iter().all(|outcome| outcome == "ok"), "{outcomes:?}");

    let files = |out: &str| {
        succeeds(&folder, &["run", "--pass", "audit", "-w", "gnn|multi", "-o", out]);
        ["run.csv", "timeline.csv", "peak.csv"].map(|file| read(&folder, &format!("{out}/{file}")))
    };
    assert_eq!(files("a"), files("b"));
}

#[test]
fn results_are_never_overwritten() {
    let folder = folder();
    for number in ["001", "002"] {
        succeeds(&folder, &[&ONE[..], &["--repeats", "1"]].concat());
        let names: BTreeSet<String> = fs::read_dir(folder.path().join(format!("runs/run-{number}")))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let files = ["machine.toml", "peak.csv", "run.csv", "timeline.csv", "times.csv"].map(String::from);
        let figures = cfg!(feature = "figures").then(|| "figures".to_string());
        assert_eq!(names, files.into_iter().chain(figures).collect());
    }
    fs::create_dir(folder.path().join("mine")).unwrap();
    fs::write(folder.path().join("mine/run.csv"), "precious").unwrap();
    fails(&folder, &[&ONE[..], &["-o", "mine"]].concat(), 7, &["cannot write mine", "name a new folder"]);
    assert_eq!(read(&folder, "mine/run.csv"), "precious");
}

#[test]
fn a_folder_that_cannot_be_made_stops_before_the_first_run() {
    let folder = folder();
    let started = std::time::Instant::now();
    fails(
        &folder,
        &["run", "--repeats", "1000000", "-o", "tiny.trace/results"],
        7,
        &["cannot write tiny.trace/results"],
    );
    assert!(started.elapsed().as_secs() < 60, "something ran");
    fs::write(folder.path().join("runs"), "a file").unwrap();
    fails(&folder, &ONE, 7, &["cannot write runs", "-o DIR", "--csv -"]);
    fails(
        &folder,
        &[&ONE[..], &["-o", "tiny.trace"]].concat(),
        7,
        &["cannot write tiny.trace: it is a file; name a folder"],
    );
}

#[test]
fn usage_errors_say_the_way_out() {
    let folder = folder();
    fails(&folder, &["run", "--capacity", "0"], 2, &["a device without memory"]);
    fails(&folder, &["run", "--capacity", "-1"], 2, &["'-1' is not a size"]);
    fails(&folder, &["run", "--limit", "None"], 2, &["'None' is not a size", "or 'none'"]);
    fails(&folder, &["run", "--jobs", "0"], 2, &["a number from 1 on"]);
    fails(&folder, &["run", "--jobs", "-1"], 2, &["a number from 1 on"]);
    fails(&folder, &["run", "--repeats", "-1"], 2, &["'-1'", "1..="]);
    fails(&folder, &["trace", "import", "tiny.trace", "-o", "x.trace.gz"], 2, &["x.trace.gz", "NAME.trace.zst"]);
    fails(&folder, &["run", "--capacity", "1TiB"], 2, &["1.00 TiB", "--capacity", "-S caching"]);
    fails(&folder, &["run", "-p", "max_split_size_mb=128MiB"], 2, &["write a number without a unit"]);
    fails(&folder, &["run", "-p", "max_split_size_mb=1"], 2, &["-p max_split_size_mb=1: caching: ", "`harness list`"]);
    fails(&folder, &["run", "--no-such-flag"], 2, &["--no-such-flag"]);
    fails(&folder, &["run", "-s", "("], 2, &["'('"]);
    fails(&folder, &["run", "-p", "novalue"], 2, &["write key=value"]);
    fails(&folder, &["run", "-p", "max_split=1"], 2, &["'max_split'", "caching: conf, ", "direct: none"]);
    fails(&folder, &["run", "-p", "max_split_size_mb=many"], 2, &["-p max_split_size_mb=many: caching"]);
    fails(&folder, &["run", "-s", "caching", "-p", "conf=no_such_option:1"], 2, &["no_such_option"]);
    fails(&folder, &["run", "--capacity", "12 apples"], 2, &["12 apples", "24GiB"]);
    fails(&folder, &["run", "--csv", "rows.csv"], 2, &["only '-'", "-o"]);
    fails(&folder, &["run", "--csv", "-", "--pass", "all"], 2, &["add -o DIR"]);
    fails(&folder, &["run", "--repeats", "0"], 2, &["--repeats"]);
    fails(&folder, &["run", "--trace", "tiny.trace", "--trace", "./tiny.trace"], 2, &["'tiny'"]);
    assert!(!folder.path().join("runs").exists(), "a usage error left a folder behind");
}

#[test]
fn nothing_selected_lists_what_there_is() {
    let folder = folder();
    fails(&folder, &["run", "-s", "no_such_strategy"], 3, &["caching, cupy, direct"]);
    fails(&folder, &["run", "-S", "."], 3, &["caching, cupy, direct"]);
    fails(&folder, &["run", "-s", "cuda-async"], 3, &["stream-ordered pool for cuda-async", "-d cuda"]);
    fails(&folder, &["run", "-w", "no_such_workload"], 3, &["gnn.default"]);
    fails(&folder, &["run", "--trace", "tiny.trace", "-W", "tiny"], 3, &["there are: tiny"]);
}

#[test]
fn an_unreadable_input_names_the_file_and_the_place() {
    let folder = folder();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    write("bad.trace", b"gpu-alloc-trace 1\na 0 512 0\nf 1\n");
    write("empty.pickle", b"");
    write("cut.trace.zst", &[0x28, 0xb5, 0x2f, 0xfd, 0x04]);
    fails(&folder, &["run", "--trace", "missing.trace"], 6, &["missing.trace"]);
    fails(&folder, &["run", "--trace", "missing.pickle"], 6, &["missing.pickle"]);
    fails(&folder, &["run", "--trace", "bad.trace"], 6, &["bad.trace", "line 3", "slot 1 is empty"]);
    fails(&folder, &["run", "--trace", "empty.pickle"], 6, &["empty.pickle"]);
    fails(&folder, &["run", "--trace", "cut.trace.zst"], 6, &["cut.trace.zst"]);
    fails(&folder, &["trace", "show", "no_such_recording"], 6, &["no_such_recording", "gnn.default"]);
    fails(&folder, &["run", "--trace", "gnn.default"], 6, &["gnn.default: cannot open", "-w"]);
    fails(&folder, &["fidelity", "tiny.trace"], 6, &["this is a trace", "give the snapshot"]);
    fails(&folder, &["run", "--trace", "two\nlines.trace"], 6, &["two\\nlines.trace"]);
    fs::create_dir(folder.path().join("folder.trace")).unwrap();
    fails(&folder, &["trace", "check", "folder.trace"], 6, &["folder.trace", "it is a folder; name a file in it"]);
    fails(&folder, &["trace", "import", "empty.pickle", "-o", "out.trace"], 6, &["empty.pickle"]);
    assert!(!folder.path().join("out.trace").exists() && !folder.path().join("runs").exists());
}

#[test]
fn a_trace_is_checked() {
    let folder = folder();
    assert!(succeeds(&folder, &["trace", "check", "tiny.trace"]).starts_with("tiny.trace: valid, 6 events, 2 slots"));
    fs::write(folder.path().join("bad.trace"), TINY.replace("f 1\n", "f 1\nf 1\n")).unwrap();
    fails(&folder, &["trace", "check", "bad.trace"], 4, &["bad.trace", "line 9"]);
    fails(&folder, &["trace", "check", "missing.trace"], 6, &["missing.trace"]);
}

#[test]
fn a_trace_is_shown_as_it_was_and_summarised() {
    let folder = folder();
    let shown = succeeds(&folder, &["trace", "show", "multistream.default"]);
    fs::write(folder.path().join("again.trace"), &shown).unwrap();
    assert_eq!(succeeds(&folder, &["trace", "show", "again.trace"]), shown);
    let hash = |args: &[&str]| {
        column(&succeeds(&folder, &[&["run", "-s", "direct", "--csv", "-"], args].concat()), "trace_hash")
    };
    assert_eq!(hash(&["--trace", "again.trace"]), hash(&["-w", "multistream"]));
    let stat = succeeds(&folder, &["trace", "stat", "tiny.trace"]);
    assert!(stat.contains("\npeak          3.00 MiB in 2 blocks at most\n"), "{stat}");
    let json: serde_json::Value =
        serde_json::from_str(&succeeds(&folder, &["trace", "stat", "tiny.trace", "--json"])).unwrap();
    assert_eq!((&json["allocs"], &json["requested_peak_bytes"]), (&3.into(), &3_146_728.into()));
}

#[test]
fn a_reader_who_leaves_is_no_failure() {
    let folder = folder();
    let run = ["run", "-w", "cuda", "--pass", "audit", "-o", "r"];
    for args in [&["trace", "show", "gnn.default"][..], &["run", "-w", "cuda", "--csv", "-"], &["list"], &run] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_harness"))
            .args(args)
            .current_dir(&folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let mut err = String::new();
        child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert_eq!((child.wait().unwrap().code(), err.as_str()), (Some(0), ""), "{args:?}");
    }
    assert!(folder.path().join("r/figures/overhead-text.svg").exists() || !cfg!(feature = "figures"));
}

#[test]
fn what_a_file_holds_is_seen_in_it() {
    let folder = folder();
    let shown = succeeds(&folder, &["trace", "show", "tiny.trace"]);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(TINY.as_bytes()).unwrap();
    fs::write(folder.path().join("tiny.gz"), gzip.finish().unwrap()).unwrap();
    let data = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::copy(data.join("tests/data/multistream.default.pickle.zst"), folder.path().join("snapshot.trace")).unwrap();
    fs::copy(data.join("../workload-gen/traces/gnn.default.trace.zst"), folder.path().join("trace.pickle")).unwrap();
    assert_eq!(succeeds(&folder, &["trace", "show", "tiny.gz"]), shown);
    assert!(succeeds(&folder, &["trace", "stat", "snapshot.trace"]).contains("PyTorch snapshot"));
    let embedded = succeeds(&folder, &["trace", "show", "gnn.default"]);
    assert_eq!(succeeds(&folder, &["trace", "show", "trace.pickle"]), embedded);
}

#[test]
#[cfg(target_os = "linux")]
fn a_pipe_is_read_once() {
    let folder = folder();
    for name in ["-", "/dev/stdin"] {
        let done = shell(&folder, &format!("$H trace show gnn.default | $H trace check {name}"));
        assert_eq!(done.code, 0, "{}", done.err);
        assert!(done.out.contains(": valid, "), "{}", done.out);
    }
    let done = shell(&folder, "$H run -s direct --csv - --trace - < tiny.trace");
    assert_eq!((done.code, column(&done.out, "workload")), (0, vec!["stdin".to_string()]), "{}", done.err);
}

#[test]
#[cfg(target_os = "linux")]
fn an_exit_code_survives_a_standard_error_that_is_full() {
    let folder = folder();
    assert_eq!(shell(&folder, "$H fidelity a.pickle b.pickle 2>/dev/full").code, 6);
    assert_eq!(shell(&folder, "$H run --trace tiny.trace --repeats 1 2>/dev/full").code, 0);
    assert_eq!(shell(&folder, "$H run --no-such-flag 2>/dev/full").code, 2);
    assert_eq!(shell(&folder, "$H --help >/dev/full").code, 7, "help that nobody got");
}

#[test]
#[cfg(unix)]
fn a_command_line_need_not_be_unicode() {
    use std::os::unix::ffi::OsStrExt;
    let folder = folder();
    let name = std::ffi::OsStr::from_bytes(b"t\xffny.trace");
    fs::write(folder.path().join(name), TINY).unwrap();
    let args = ["run", "-s", "direct", "--pass", "audit", "-o", "r", "--trace"];
    let status =
        Command::new(env!("CARGO_BIN_EXE_harness")).args(args).arg(name).current_dir(&folder).output().unwrap();
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
    let machine: toml::Table = read(&folder, "r/machine.toml").parse().unwrap();
    assert_eq!(machine["command"].as_array().unwrap().last().unwrap().as_str(), Some("t\u{fffd}ny.trace"));
}

#[test]
#[cfg(unix)]
fn a_reader_who_leaves_does_not_end_a_run_that_is_kept() {
    let folder = folder();
    let args = "run -s 'direct|caching' -w 'gnn|multi' --pass audit --csv -";
    let done =
        shell(&folder, &format!("{{ $H {args} -o left; echo $? >code; }} | head -c 1; $H {args} -o stayed >/dev/null"));
    assert_eq!((done.code, read(&folder, "code").as_str()), (0, "0\n"), "{}", done.err);
    for file in ["run.csv", "timeline.csv"] {
        assert_eq!(read(&folder, &format!("left/{file}")), read(&folder, &format!("stayed/{file}")));
    }
}

/// A limit on the size of files stands for a full disk: the write that meets it is cut.
#[test]
#[cfg(unix)]
fn a_full_disk_leaves_no_half_of_a_row() {
    let folder = folder();
    let done = shell(&folder, "trap '' XFSZ; ulimit -f 64; exec $H run -s direct -w gnn --pass audit -o r");
    assert_eq!(done.code, 7, "{}", done.err);
    assert!(done.err.contains("cannot write r/timeline.csv"), "{}", done.err);
    let timeline = read(&folder, "r/timeline.csv");
    assert!(
        timeline.starts_with("run,event,") && timeline.lines().count() == 1 && timeline.ends_with('\n'),
        "{timeline}"
    );
}

#[test]
#[cfg(unix)]
fn a_run_that_cannot_begin_leaves_no_folder() {
    let folder = folder();
    let done = shell(&folder, "trap '' XFSZ; ulimit -f 0; exec $H run --trace tiny.trace -o r");
    assert_eq!(done.code, 7, "{}", done.err);
    assert!(done.err.contains("cannot write r/machine.toml"), "{}", done.err);
    assert!(!folder.path().join("r").exists(), "the next `compare` takes it for the newest run");
}

#[test]
#[cfg(unix)]
fn a_narrow_terminal_gets_lines_that_fit() {
    let folder = folder();
    let run = "run -s direct --trace tiny.trace --repeats 1 -o r";
    for verb in [run, "list", "compare r", "rank r", "trace stat gnn.default"] {
        let done = shell(&folder, &format!("COLUMNS=41 $H {verb}"));
        assert_eq!(done.code, 0, "{verb}: {}", done.err);
        assert!(done.out.lines().all(|line| line.chars().count() <= 41), "{verb}: {}", done.out);
    }
}

#[test]
fn a_trace_without_events_has_files_with_headers() {
    let folder = folder();
    fs::write(folder.path().join("none.trace"), "gpu-alloc-trace 1\n# device_bytes = 0\n").unwrap();
    let out = succeeds(&folder, &["run", "-s", "direct", "--trace", "none.trace", "--repeats", "1", "-o", "r"]);
    assert!(out.contains("none  0 events"), "{out}");
    assert!(read(&folder, "r/timeline.csv").starts_with("run,event,"));
    assert_eq!(column(&read(&folder, "r/run.csv"), "capacity_bytes"), ["85899345920"], "unknown is the usual size");
    assert!(out.lines().any(|line| line.split_whitespace().eq(["direct", "ok"])), "no times, no zeros: {out}");
}

#[test]
fn parameters_reach_the_strategies_that_have_them() {
    let folder = folder();
    let conf = "expandable_segments:True,max_split_size_mb:128";
    let run = |param: &str| {
        succeeds(&folder, &["run", "-s", "^(caching|direct)$", "--trace", "tiny.trace", "--csv", "-", "-p", param])
    };
    let params = column(&run(&format!("conf={conf}")), "params");
    assert!(params[0].contains(&format!("\"conf\":\"{conf}\"")), "{params:?}");
    assert_eq!(params[1], "{}");
    let params = column(&run("max_split_size_mb=128"), "params");
    assert!(params[0].contains("\"max_split_size_mb\":128"), "{params:?}");
}

#[test]
fn running_out_of_memory_is_a_result() {
    let folder = folder();
    for flags in [["--capacity", "2MiB"], ["--limit", "2MiB"]] {
        let out = succeeds(&folder, &[&["run", "--trace", "tiny.trace", "--csv", "-"], &flags[..]].concat());
        let outcomes = column(&out, "outcome");
        assert!(outcomes.len() > 1 && outcomes.iter().all(|outcome| outcome == "oom"), "{flags:?}: {outcomes:?}");
        assert!(column(&out, "outcome_event").iter().all(|event| event == "1"));
        assert!(column(&out, "skipped_events").iter().all(|events| events == "1"));
    }
    let out = succeeds(&folder, &[&ONE[..], &["--pass", "audit", "--limit", "2MiB"]].concat());
    assert!(out.contains("\ntiny on direct: oom at event 1: 3145728 bytes on stream 0: out of memory\n"), "{out}");
    fs::write(folder.path().join("limited.trace"), TINY.replace("a 0 1000 0", "# limit_bytes = 1000\na 0 1000 0"))
        .unwrap();
    let outcome = |flags: &[&str]| {
        let args = [&["run", "-s", "direct", "--trace", "limited.trace", "--csv", "-"], flags].concat();
        column(&succeeds(&folder, &args), "outcome").remove(0)
    };
    assert_eq!((outcome(&[]).as_str(), outcome(&["--limit", "none"]).as_str()), ("oom", "ok"));
    fs::write(folder.path().join("limited.trace"), TINY.replace("f 0\na 0", "l 3145728\nf 0\na 0")).unwrap();
    assert_eq!(outcome(&[]), "oom", "a limit that the workload sets holds for a strategy without one");
}

#[test]
fn the_time_pass_reports_the_floor_beside_each_row() {
    let folder = folder();
    let out = succeeds(&folder, &["run", "-w", "cuda", "--pass", "time", "--repeats", "3", "-o", "t"]);
    assert!(out.contains("ns/op") && !out.contains("reserved"), "{out}");
    let times = read(&folder, "t/times.csv");
    for name in ["total_median_ns", "null_total_median_ns", "alloc_p50_ns", "null_alloc_p50_ns", "free_samples", "ops"]
    {
        assert!(column(&times, name).iter().all(|value| value.parse::<u64>().unwrap() > 0), "{name}");
    }
    let less = |a: &str, b: &str| {
        let pairs = column(&times, a).into_iter().zip(column(&times, b));
        pairs.into_iter().all(|(a, b)| a.parse::<u64>().unwrap() <= b.parse().unwrap())
    };
    assert!(less("total_min_ns", "total_median_ns") && less("total_median_ns", "total_max_ns"));
    assert!(less("null_total_median_ns", "total_median_ns"), "nothing is faster than doing nothing");
    let run = read(&folder, "t/run.csv");
    assert_eq!(column(&run, "run"), column(&times, "run"));
    assert!(column(&run, "reserved_peak_bytes").iter().all(String::is_empty));
    assert!(!folder.path().join("t/timeline.csv").exists());
}

#[test]
fn every_column_is_documented_and_no_other() {
    let folder = folder();
    succeeds(&folder, &[&ONE[..], &["--repeats", "1", "-o", "r"]].concat());
    succeeds(&folder, &[&ONE[..], &["--pass", "decisions", "-o", "d"]].concat());
    // Only a card makes it, and one was published.
    fs::copy(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../results/h200/integrity/integrity.csv"),
        folder.path().join("r/integrity.csv"),
    )
    .unwrap();
    fs::rename(folder.path().join("d/decisions.csv"), folder.path().join("r/decisions.csv")).unwrap();
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/RESULTS.md")).unwrap();
    for file in ["run.csv", "timeline.csv", "peak.csv", "times.csv", "integrity.csv", "decisions.csv"] {
        let (_, section) = page.split_once(&format!("\n## {file}\n")).unwrap();
        let section = section.split("\n## ").next().unwrap();
        let first_cells = section.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
        let documented: Vec<String> =
            first_cells.flat_map(|cell| cell.split(", ")).map(|name| name.replace('`', "")).collect();
        let header = read(&folder, &format!("r/{file}")).lines().next().unwrap().to_string();
        assert_eq!(documented, header.split(',').collect::<Vec<_>>(), "{file}");
    }
    let machine: toml::Table = read(&folder, "r/machine.toml").parse().unwrap();
    assert!(machine.keys().all(|key| page.contains(&format!("`{key}`"))), "{machine:?}");
    assert_eq!(machine["command"].as_array().unwrap().last().unwrap().as_str(), Some("r"));
}

#[test]
fn the_list_shows_every_strategy_with_its_parameters() {
    let folder = folder();
    let json: serde_json::Value = serde_json::from_str(&succeeds(&folder, &["list", "--json"])).unwrap();
    let text = succeeds(&folder, &["list"]);
    for strategy in json["strategies"].as_array().unwrap() {
        assert!(text.contains(&format!("\n  {} ", strategy["name"].as_str().unwrap())), "{text}");
        for key in strategy["params"].as_object().unwrap().keys() {
            assert!(text.contains(&format!("\n      -p {key}=")), "{key} is not in {text}");
        }
    }
    assert!(text.contains("\n      -p max_split_size_mb=none\n"), "as -p takes it, not as JSON has it: {text}");
    assert_eq!(json["workloads"].as_array().unwrap().len(), 7);
    assert_eq!(json["devices"][0]["name"], "sim");
}

#[test]
fn a_snapshot_gives_the_same_rows_as_its_import() {
    let Some(path) = snapshot("multistream.default.pickle.zst") else { return };
    let folder = folder();
    let path = path.to_str().unwrap();
    let direct = ["run", "-s", "direct", "--csv", "-"];
    let embedded = succeeds(&folder, &[&direct[..], &["-w", "multistream"]].concat());
    assert_eq!(succeeds(&folder, &[&direct[..], &["--trace", path]].concat()), embedded);
    succeeds(&folder, &["trace", "import", path, "-o", "in"]);
    let imported = "in/multistream.default.trace.zst";
    assert_eq!(succeeds(&folder, &[&direct[..], &["--trace", imported]].concat()), embedded);
    assert!(succeeds(&folder, &["trace", "import", path, "-o", "-"]).starts_with("gpu-alloc-trace 1\n"));
    fails(&folder, &["trace", "import", path, "-o", "in"], 7, &[imported, "give another name"]);
    fails(&folder, &["trace", "import", path, "-o", "x.trace", "--device", "5"], 2, &["device 5"]);
    assert!(!folder.path().join("x.trace").exists());
}

#[test]
fn fidelity_ends_with_what_it_found() {
    let folder = folder();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let recording = data.join("multistream.default.pickle.zst");
    let exact = recording.to_str().unwrap();
    assert!(succeeds(&folder, &["fidelity", exact]).starts_with("exact       "));
    let row = succeeds(&folder, &["fidelity", exact, "--csv", "-"]);
    let header =
        "file,events,matched,inferred,first_divergence,reserved_peak_bytes,recorded_reserved_peak_bytes,verdict";
    assert_eq!(row.lines().next(), Some(header));
    assert_eq!(
        (column(&row, "verdict"), column(&row, "first_divergence")),
        (vec!["exact".into()], vec![String::new()])
    );
    assert_eq!(column(&row, "events"), column(&row, "matched"));

    let limited = "diffusion.oom1g.pickle.zst";
    fs::copy(data.join(limited), folder.path().join(limited)).unwrap();
    let statistics = fs::read_to_string(data.join("diffusion.oom1g.json")).unwrap();
    let wrong = statistics.replace("\"num_ooms\": 1", "\"num_ooms\": 2");
    assert_ne!(wrong, statistics);
    fs::write(folder.path().join("diffusion.oom1g.json"), wrong).unwrap();
    let done = harness(&folder, &["fidelity", limited, "--csv", "-"]);
    assert_eq!(done.code, 4, "{}", done.err);
    assert_eq!(column(&done.out, "verdict"), ["diverged"]);
    assert!(column(&done.out, "first_divergence")[0].parse::<u64>().unwrap() > 0);
    assert!(done.err.contains("not exact: 1 of 1 file"), "{}", done.err);
    assert!(harness(&folder, &["fidelity", limited]).out.contains("num_ooms"));

    fs::write(folder.path().join("empty.pickle"), "").unwrap();
    let done = harness(&folder, &["fidelity", "missing.pickle", "empty.pickle", exact]);
    assert_eq!(done.code, 6, "{}", done.err);
    assert!(done.err.contains("missing.pickle") && done.err.contains("empty.pickle"), "{}", done.err);
    assert!(done.out.starts_with("exact"), "the readable file was checked: {}", done.out);
}
