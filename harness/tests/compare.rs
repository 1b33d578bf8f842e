//! `compare` and `rank` from outside: every form of every table against a file, and how they end.
//!
//! After a change that is meant, `BLESS=1 cargo test -p harness --test compare` writes the files anew; look at the
//! difference.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// Calls the program on a folder of rows made by hand.
fn harness(args: &[&str], columns: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_harness"));
    command.args(args).current_dir(tests().join("data")).env_remove("COLUMNS").stdin(Stdio::null());
    if let Some(columns) = columns {
        command.env("COLUMNS", columns);
    }
    command.output().unwrap()
}

/// Calls it and wants the text of `tests/golden/<golden>`.
#[track_caller]
fn prints(golden: &str, args: &[&str], columns: Option<&str>) {
    let output = harness(args, columns);
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!((output.status.code(), err.as_str()), (Some(0), ""), "{args:?}");
    let path = tests().join("golden").join(golden);
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, &out).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    assert!(out == expected, "{args:?} no longer prints {golden}, but:\n{out}");
}

#[test]
fn compare_in_every_form() {
    for (form, ending) in [("text", "txt"), ("markdown", "md"), ("latex", "tex"), ("csv", "csv")] {
        let args = ["compare", "compare", "--format", form];
        prints(&format!("compare.{ending}"), &args, None);
        prints(&format!("compare-baseline.{ending}"), &[&args[..], &["-b", "direct", "-m", "overhead"]].concat(), None);
    }
}

#[test]
fn rank_in_every_form() {
    for (form, ending) in [("text", "txt"), ("markdown", "md"), ("latex", "tex"), ("csv", "csv")] {
        let args = ["rank", "compare", "--format", form];
        prints(&format!("rank.{ending}"), &args, None);
        prints(&format!("rank-baseline.{ending}"), &[&args[..], &["-b", "direct", "-m", "utilisation"]].concat(), None);
    }
}

#[test]
fn the_first_table_of_the_readme_is_what_its_command_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let (_, command) = readme.split_once("This is `harness ").unwrap();
    let args: Vec<&str> = command.split('`').next().unwrap().split_whitespace().collect();
    let output = Command::new(env!("CARGO_BIN_EXE_harness")).args(&args).current_dir(&root).output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.starts_with("| workload | caching |"), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let shown = readme.split("\n\n").find(|part| part.starts_with("| workload |")).unwrap();
    assert_eq!(format!("{shown}\n"), table);
}

#[test]
fn a_narrow_terminal_gets_the_columns_one_after_another() {
    let args = ["compare", "compare", "-m", "ns-per-op", "-b", "expandable"];
    prints("compare-narrow.txt", &args, Some("60"));
    let narrow = String::from_utf8(harness(&args, Some("60")).stdout).unwrap();
    let table = narrow.lines().skip(2);
    assert!(table.clone().all(|line| line.chars().count() <= 60), "{narrow}");
    assert_eq!(table.filter(|line| line.starts_with("gnn_small")).count(), 3, "{narrow}");
}

#[test]
fn colours_are_for_terminals() {
    let plain = harness(&["compare", "compare"], None).stdout;
    assert!(!plain.contains(&0x1b));
    let forced = |variable: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_harness"));
        command.args(["compare", "compare"]).current_dir(tests().join("data")).env_remove("COLUMNS");
        command.env("CLICOLOR_FORCE", "1").env(variable, "1").output().unwrap().stdout
    };
    let coloured = String::from_utf8(forced("CLICOLOR")).unwrap();
    assert!(coloured.contains("\x1b[1m4.00 GiB\x1b[0m*") && coloured.contains("\x1b[31minvalid\x1b[0m"), "{coloured}");
}

#[test]
fn a_reader_who_leaves_is_no_failure() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_harness"));
    command.args(["compare", "compare", "-f", "csv"]).current_dir(tests().join("data"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}

/// Calls it and wants this exit code, nothing on standard output, and these words on standard error.
#[track_caller]
fn fails(args: &[&str], folder: &Path, code: i32, words: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_harness")).args(args).current_dir(folder).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(code), 0), "{args:?}: {err}");
    words.iter().for_each(|word| assert!(err.contains(word), "{args:?}: '{word}' is not in: {err}"));
}

#[test]
fn what_cannot_be_compared_says_so() {
    let data = tests().join("data");
    let empty = TempDir::new().unwrap();
    fails(&["compare"], empty.path(), 6, &["there is no runs/run-NNN", "`harness run`"]);
    fails(&["compare", "no-folder"], empty.path(), 6, &["cannot read no-folder"]);
    fails(&["rank", "."], empty.path(), 6, &["cannot read ./run.csv"]);
    fails(
        &["compare", "compare/run.csv", "-m", "ns-per-op"],
        &data,
        3,
        &["no run has a figure for 'ns-per-op'", "--pass time"],
    );
    fails(&["compare", "compare", "-m", "reservd"], &data, 2, &["'reservd'", "reserved, overhead"]);
    fails(&["compare", "compare", "-m", "params"], &data, 6, &["compare/run.csv: line 2: params is"]);
    fails(&["rank", "compare", "-s", "no_such"], &data, 3, &["direct, expandable"]);
    fails(&["compare", "compare", "-W", "."], &data, 3, &["gnn_small, "]);
    fails(&["compare", "compare", "-b", "caching max_split"], &data, 2, &["'caching max_split'", "'direct'"]);
    fails(&["compare", "compare", "-f", "html"], &data, 2, &["markdown"]);
}

#[test]
fn two_folders_agree_or_are_named() {
    let folder = TempDir::new().unwrap();
    let original = tests().join("data/compare");
    for name in ["a", "b"] {
        fs::create_dir(folder.path().join(name)).unwrap();
        for file in ["run.csv", "times.csv"] {
            fs::copy(original.join(file), folder.path().join(name).join(file)).unwrap();
        }
    }
    let compare = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_harness"));
        command.arg("compare").args(args).current_dir(&folder).env_remove("COLUMNS").output().unwrap()
    };
    assert_eq!(compare(&["a", "b"]).stdout, compare(&["a"]).stdout);
    let change = |file: &str, from: &str, to: &str| {
        let path = folder.path().join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from));
        fs::write(path, text.replacen(from, to, 1)).unwrap();
    };
    change("b/times.csv", ",21000,", ",21007,");
    let times = ["compare", "a", "b", "-m", "ns-per-op"];
    fails(&times, folder.path(), 2, &["gnn_small on caching was measured in a/times.csv and in b/times.csv"]);
    assert_eq!(compare(&["a", "b"]).status.code(), Some(0), "exact figures do not need the times");
    fs::write(folder.path().join("b/times.csv"), "").unwrap();
    assert_eq!(compare(&["a", "b", "-m", "ns-per-op"]).stderr.len(), 0);
    change("b/run.csv", "6442450944", "6442450945");
    fails(&["compare", "a", "b"], folder.path(), 4, &["a/run.csv line 2 and b/run.csv line 2", "reserved_peak_bytes"]);
}

#[test]
fn times_of_two_files_are_told() {
    let folder = TempDir::new().unwrap();
    let text = fs::read_to_string(tests().join("data/compare/times.csv")).unwrap();
    let (head, rows) = text.split_once('\n').unwrap();
    let (first, rest) = rows.split_once('\n').unwrap();
    fs::write(folder.path().join("one.csv"), format!("{head}\n{first}\n")).unwrap();
    fs::write(folder.path().join("two.csv"), format!("{head}\n{rest}")).unwrap();
    let run = tests().join("data/compare/run.csv");
    let output = Command::new(env!("CARGO_BIN_EXE_harness"))
        .args(["compare", run.to_str().unwrap(), "one.csv", "two.csv", "-m", "ns-per-op"])
        .current_dir(&folder)
        .output()
        .unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        err,
        "warning: the times come from one.csv and two.csv; they compare only if machine and load were the same\n"
    );
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn rows_come_from_a_pipe_and_from_the_newest_run() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("tiny.trace"), "gpu-alloc-trace 1\na 0 1000 0\nf 0\n").unwrap();
    let harness = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_harness"));
        command.args(args).current_dir(&folder).env_remove("COLUMNS");
        command
    };
    let run = ["run", "--trace", "tiny.trace", "-s", "^(caching|direct)$", "--repeats", "1"];
    let mut rows = harness(&run).args(["--csv", "-"]).stdout(Stdio::piped()).spawn().unwrap();
    let compare = ["compare", "-m", "calls", "-f", "markdown", "--baseline", "direct"];
    let piped = harness(&compare).arg("-").stdin(rows.stdout.take().unwrap()).output().unwrap();
    rows.wait().unwrap();
    let expected = "\
| workload | direct | caching |
| --- | ---: | ---: |
| tiny | 2 (1.00×) | **1** (0.50×) |
";
    assert_eq!(String::from_utf8(piped.stdout).unwrap(), expected);
    assert!(harness(&run).output().unwrap().status.success());
    assert!(harness(&run).args(["-p", "max_split_size_mb=64"]).output().unwrap().status.success());
    let newest = String::from_utf8(harness(&compare).output().unwrap().stdout).unwrap();
    assert!(newest.starts_with("| workload | direct | caching max_split_size_mb=64 |\n"), "{newest}");
    let both = harness(&["rank", "runs/run-001", "runs/run-002", "-f", "csv"]).output().unwrap();
    let both = String::from_utf8(both.stdout).unwrap();
    assert_eq!(both.lines().count(), 4, "direct is in both and once in the table: {both}");
    for metric in harness::metric::METRICS.iter().map(|metric| metric.name.as_ref()) {
        let output = harness(&["compare", "runs/run-001", "-f", "csv", "-m", metric]).output().unwrap();
        assert!(output.status.success(), "{metric}: {}", String::from_utf8_lossy(&output.stderr));
        let row = String::from_utf8(output.stdout).unwrap().lines().nth(1).unwrap().to_string();
        assert!(row.split(',').skip(2).all(|cell| cell.parse::<f64>().is_ok()), "{metric}: {row}");
    }
}
