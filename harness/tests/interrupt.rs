//! Ctrl-C: what was measured stays, nothing is half done, and the program ends by the signal.
#![cfg(unix)]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const INT: i32 = 2;
const TERM: i32 = 15;

/// A time pass that would never end.
const ENDLESS: &str = "run -s direct|caching --trace tiny.trace --repeats 4000000000 -o r";

fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("tiny.trace"), "gpu-alloc-trace 1\na 0 1000 0\nf 0\n").unwrap();
    folder
}

/// A program that is ended if the test ends before it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

fn start(mut command: Command, folder: &TempDir) -> Running {
    Running(command.current_dir(folder).stderr(Stdio::piped()).spawn().unwrap())
}

fn harness(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_harness"));
    command.args(args.split(' ')).stdout(Stdio::piped());
    command
}

/// Waits until the file has so many lines.
fn wait_for(path: &Path, lines: usize) {
    let start = Instant::now();
    while fs::read_to_string(path).map_or(0, |text| text.lines().count()) < lines {
        assert!(start.elapsed() < Duration::from_secs(60), "{} has no {lines} lines", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Running {
    fn send(&self, signal: i32) {
        let kill = format!("kill -{signal} {}", self.0.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Whether it still runs after a while in which it could have ended.
    fn goes_on(&mut self) -> bool {
        std::thread::sleep(Duration::from_millis(300));
        self.0.try_wait().unwrap().is_none()
    }

    /// The signal that ended it, and what it printed.
    fn end(mut self) -> (Option<i32>, String, String) {
        let start = Instant::now();
        let status = loop {
            assert!(start.elapsed() < Duration::from_secs(60), "it goes on");
            match self.0.try_wait().unwrap() {
                Some(status) => break status,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let (mut out, mut err) = (String::new(), String::new());
        self.0.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        if let Some(mut stdout) = self.0.stdout.take() {
            stdout.read_to_string(&mut out).unwrap();
        }
        (status.signal(), out, err)
    }
}

#[test]
fn an_interrupted_run_keeps_its_rows() {
    for signal in [INT, TERM] {
        let folder = folder();
        let child = start(harness(ENDLESS), &folder);
        wait_for(&folder.path().join("r/run.csv"), 3);
        wait_for(&folder.path().join("r/peak.csv"), 3);
        child.send(signal);
        let (ended_by, out, err) = child.end();
        assert_eq!((ended_by, out.as_str()), (Some(signal), ""), "{err}");
        let kept = "interrupted; of 2 runs, 2 audited and 0 timed; the rows are in r\n";
        assert!(err.ends_with(kept), "{err}");
        let read = |name: &str| fs::read_to_string(folder.path().join("r").join(name)).unwrap();
        assert_eq!((read("run.csv").lines().count(), read("times.csv").lines().count()), (3, 1));
        let table = harness("compare r").current_dir(&folder).output().unwrap();
        assert!(table.status.success() && String::from_utf8(table.stdout).unwrap().contains("tiny"));
    }
}

#[test]
fn an_interrupted_generation_leaves_nothing() {
    let folder = folder();
    let child = start(harness("trace gen churn:seed=1 churn:allocations=10000000000 -o new"), &folder);
    let (first, second) = ("new/churn-seed=1.trace.zst", "new/churn-allocations=10000000000.trace.zst");
    let begun = folder.path().join(format!("{second}.tmp-{}", child.0.id()));
    let start = Instant::now();
    while !begun.exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "the second is not begun");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.send(INT);
    let (ended_by, _, err) = child.end();
    assert_eq!(ended_by, Some(INT), "{err}");
    assert!(err.ends_with("interrupted; 1 of 2 traces were written\n"), "{err}");
    assert!(folder.path().join(first).exists());
    assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 1, "what was begun is gone");
}

#[test]
fn a_signal_that_was_ignored_stays_ignored() {
    let folder = folder();
    let mut shell = Command::new("sh");
    let args = ENDLESS.replace("direct|caching", "direct");
    shell.args(["-c", &format!("trap '' INT; exec \"$H\" {args}")]).env("H", env!("CARGO_BIN_EXE_harness"));
    let mut child = start(shell, &folder);
    wait_for(&folder.path().join("r/run.csv"), 2);
    child.send(INT);
    assert!(child.goes_on(), "as a job in the background of a script, it is none of its business");
    child.send(TERM);
    assert_eq!(child.end().0, Some(TERM));
}

#[test]
fn the_second_interrupt_ends_at_once() {
    let folder = folder();
    // Nobody reads, so the first row that is printed waits, and the first interrupt with it.
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&vec![b'x'; 1 << 16]).unwrap();
    let mut command = harness("run --trace tiny.trace --csv - -o r");
    command.stdout(writer);
    let mut child = start(command, &folder);
    wait_for(&folder.path().join("r/run.csv"), 1);
    child.send(INT);
    assert!(child.goes_on(), "something waits for the end of a row");
    child.send(INT);
    let (ended_by, _, err) = child.end();
    assert_eq!((ended_by, err.contains("interrupted")), (Some(INT), false), "{err}");
    drop(reader);
}
