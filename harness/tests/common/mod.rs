//! Calls of the program, each from a folder and in a terminal without a width.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::Path;
use std::process::Command;

/// What a call did.
pub struct Done {
    pub code: i32,
    pub out: String,
    pub err: String,
}

fn done(command: &mut Command, folder: &Path) -> Done {
    let output = command.current_dir(folder).env_remove("COLUMNS").output().unwrap();
    Done {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The program: that of the build, or `HARNESS` where the tests were carried to another machine.
pub fn program() -> Command {
    Command::new(std::env::var_os("HARNESS").unwrap_or_else(|| env!("CARGO_BIN_EXE_harness").into()))
}

/// Calls the program in `folder`.
pub fn harness(folder: impl AsRef<Path>, args: &[&str]) -> Done {
    done(program().args(args), folder.as_ref())
}

/// Calls the program by a shell line, in which it is `$H`.
#[cfg(unix)]
pub fn shell(folder: impl AsRef<Path>, line: &str) -> Done {
    done(Command::new("sh").args(["-c", line]).env("H", env!("CARGO_BIN_EXE_harness")), folder.as_ref())
}

/// Calls it and wants success.
#[track_caller]
pub fn succeeds(folder: impl AsRef<Path>, args: &[&str]) -> String {
    let done = harness(folder, args);
    assert_eq!(done.code, 0, "{args:?}: {}", done.err);
    done.out
}

/// Calls it and wants this exit code, nothing on standard output, and these words on standard error.
#[track_caller]
pub fn fails(folder: impl AsRef<Path>, args: &[&str], code: i32, words: &[&str]) {
    let done = harness(folder, args);
    assert_eq!((done.code, done.out.as_str()), (code, ""), "{args:?}: {}", done.err);
    for word in words {
        assert!(done.err.contains(word), "{args:?}: '{word}' is not in: {}", done.err);
    }
}
