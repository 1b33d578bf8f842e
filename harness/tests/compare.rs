//! `compare` and `rank` from outside: every form of every table against a file, and how they end.
//!
//! After a change that is meant, `BLESS=1 cargo test -p harness --test compare` writes the files anew; look at the
//! difference.

mod common;

#[cfg(unix)]
use common::shell;
use common::{Done, fails, harness, succeeds};
use harness::metric::METRICS;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// A folder of rows made by hand.
fn data() -> PathBuf {
    tests().join("data")
}

/// Calls the program there and wants the text of `tests/golden/<golden>`.
#[track_caller]
fn prints(golden: &str, args: &[&str]) {
    is_golden(golden, &harness(data(), args));
}

#[track_caller]
fn is_golden(golden: &str, Done { code, out, err }: &Done) {
    assert_eq!((*code, err.as_str()), (0, ""), "{golden}");
    let path = tests().join("golden").join(golden);
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, out).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    assert!(*out == expected, "{golden} is no longer printed, but:\n{out}");
}

#[test]
fn compare_in_every_form() {
    for (form, ending) in [("text", "txt"), ("markdown", "md"), ("latex", "tex"), ("csv", "csv")] {
        let args = ["compare", "compare", "--format", form];
        prints(&format!("compare.{ending}"), &args);
        prints(&format!("compare-baseline.{ending}"), &[&args[..], &["-b", "direct", "-m", "overhead"]].concat());
    }
}

#[test]
fn rank_in_every_form() {
    for (form, ending) in [("text", "txt"), ("markdown", "md"), ("latex", "tex"), ("csv", "csv")] {
        let args = ["rank", "compare", "--format", form];
        prints(&format!("rank.{ending}"), &args);
        prints(&format!("rank-baseline.{ending}"), &[&args[..], &["-b", "direct", "-m", "utilisation"]].concat());
    }
}

#[test]
fn the_first_table_of_the_readme_is_what_its_command_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let (_, command) = readme.split_once("This is `harness ").unwrap();
    let args: Vec<&str> = command.split('`').next().unwrap().split_whitespace().collect();
    let table = succeeds(&root, &args);
    assert!(table.contains("| caching |"), "{args:?}: {table}");
    let shown = readme.split("\n\n").find(|part| part.starts_with("| strategy |")).unwrap();
    assert_eq!(format!("{shown}\n"), table);
}

#[test]
#[cfg(unix)]
fn a_narrow_terminal_gets_the_columns_one_after_another() {
    let narrow = shell(data(), "COLUMNS=60 $H compare compare -m ns-per-op -b expandable");
    is_golden("compare-narrow.txt", &narrow);
    assert!(narrow.out.lines().all(|line| line.chars().count() <= 60), "{}", narrow.out);
    assert_eq!(narrow.out.lines().filter(|line| line.starts_with("gnn_small")).count(), 3, "{}", narrow.out);
}

#[test]
#[cfg(unix)]
fn colours_are_for_terminals() {
    let plain = succeeds(data(), &["compare", "compare"]);
    assert!(!plain.contains('\x1b'));
    let coloured = shell(data(), "CLICOLOR_FORCE=1 $H compare compare").out;
    assert!(coloured.contains("\x1b[1m4.00 GiB\x1b[0m*") && coloured.contains("\x1b[31minvalid\x1b[0m"), "{coloured}");
}

#[test]
fn a_reader_who_leaves_is_no_failure() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_harness"));
    command.args(["compare", "compare", "-f", "csv"]).current_dir(data());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}

#[test]
fn what_cannot_be_compared_says_so() {
    let empty = TempDir::new().unwrap();
    fails(&empty, &["compare"], 6, &["there is no runs/run-NNN", "`harness run`"]);
    fails(&empty, &["compare", "no-folder"], 6, &["cannot read no-folder"]);
    fails(&empty, &["rank", "."], 6, &["cannot read ./run.csv"]);
    fs::create_dir(empty.path().join("run-001")).unwrap();
    fails(&empty, &["rank", "."], 6, &["cannot read .: ", "several runs", "such as ./run-001"]);
    fails(
        data(),
        &["compare", "compare/run.csv", "-m", "ns-per-op"],
        3,
        &["no run has a figure for 'ns-per-op'", "--pass time"],
    );
    fails(data(), &["compare", "compare", "-m", "reservd"], 2, &["'reservd'", "reserved, overhead"]);
    fails(data(), &["compare", "compare", "-m", "params"], 6, &["compare/run.csv: line 2: params is"]);
    fails(data(), &["rank", "compare", "-s", "no_such"], 3, &["direct, expandable"]);
    fails(data(), &["compare", "compare", "-W", "."], 3, &["gnn_small, "]);
    fails(data(), &["compare", "compare", "-b", "caching max_split"], 2, &["'caching max_split'", "'direct'"]);
    fails(data(), &["compare", "compare", "-f", "html"], 2, &["markdown"]);
}

#[test]
fn two_folders_agree_or_are_named() {
    let folder = TempDir::new().unwrap();
    let original = data().join("compare");
    for name in ["a", "b"] {
        fs::create_dir(folder.path().join(name)).unwrap();
        for file in ["run.csv", "times.csv"] {
            fs::copy(original.join(file), folder.path().join(name).join(file)).unwrap();
        }
    }
    let compare = |args: &[&str]| harness(&folder, &[&["compare"], args].concat());
    assert_eq!(compare(&["a", "b"]).out, compare(&["a"]).out);
    let change = |file: &str, from: &str, to: &str| {
        let path = folder.path().join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from));
        fs::write(path, text.replacen(from, to, 1)).unwrap();
    };
    change("b/times.csv", ",21000,", ",21007,");
    let times = ["compare", "a", "b", "-m", "ns-per-op"];
    fails(&folder, &times, 2, &["gnn_small on caching was measured in a/times.csv and in b/times.csv"]);
    assert_eq!(compare(&["a", "b"]).code, 0, "exact figures do not need the times");
    fs::write(folder.path().join("b/times.csv"), "").unwrap();
    assert_eq!(compare(&["a", "b", "-m", "ns-per-op"]).err, "");
    change("b/run.csv", "6442450944", "6442450945");
    fails(&folder, &["compare", "a", "b"], 4, &["a/run.csv line 2 and b/run.csv line 2", "reserved_peak_bytes"]);
}

#[test]
fn times_of_two_files_are_told() {
    let folder = TempDir::new().unwrap();
    let text = fs::read_to_string(data().join("compare/times.csv")).unwrap();
    let (head, rows) = text.split_once('\n').unwrap();
    let (first, rest) = rows.split_once('\n').unwrap();
    fs::write(folder.path().join("one.csv"), format!("{head}\n{first}\n")).unwrap();
    fs::write(folder.path().join("two.csv"), format!("{head}\n{rest}")).unwrap();
    let run = data().join("compare/run.csv");
    let done = harness(&folder, &["compare", run.to_str().unwrap(), "one.csv", "two.csv", "-m", "ns-per-op"]);
    assert_eq!(
        done.err,
        "warning: the times come from one.csv and two.csv; they compare only if machine and load were the same\n"
    );
    assert_eq!(done.code, 0);
}

#[test]
fn rows_come_from_a_pipe_and_from_the_newest_run() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("tiny.trace"), "gpu-alloc-trace 1\na 0 1000 0\nf 0\n").unwrap();
    let run = ["run", "--trace", "tiny.trace", "-s", "^(caching|direct)$", "--repeats", "1"];
    let compare = ["compare", "-m", "calls", "-f", "markdown", "--baseline", "direct"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_harness"));
    command.args(run).args(["--csv", "-"]).current_dir(&folder);
    let mut rows = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_harness"));
    let piped = command.args(compare).arg("-").stdin(rows.stdout.take().unwrap()).output().unwrap();
    rows.wait().unwrap();
    let expected = "\
| strategy | tiny |
| --- | ---: |
| direct | 2 (1.00×) |
| caching | **1** (0.50×) |
";
    assert_eq!(String::from_utf8(piped.stdout).unwrap(), expected);
    succeeds(&folder, &run);
    succeeds(&folder, &[&run[..], &["-p", "max_split_size_mb=64"]].concat());
    let newest = succeeds(&folder, &compare);
    assert!(newest.contains("| caching max_split_size_mb=64 | **1** (0.50×) |\n"), "{newest}");
    let both = succeeds(&folder, &["rank", "runs/run-001", "runs/run-002", "-f", "csv"]);
    assert_eq!(both.lines().count(), 4, "direct is in both and once in the table: {both}");
    for metric in METRICS.iter().map(|metric| metric.name.as_ref()) {
        let table = succeeds(&folder, &["compare", "runs/run-001", "-f", "csv", "-m", metric]);
        let row = table.lines().nth(1).unwrap();
        assert!(row.split(',').skip(2).all(|cell| cell.parse::<f64>().is_ok()), "{metric}: {row}");
    }
}
