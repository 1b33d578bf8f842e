//! Completion scripts and man pages: that shells and `man` can read them, and that they know the command line.

mod common;

#[cfg(unix)]
use common::shell;
use common::{fails, harness, succeeds};
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use tempfile::TempDir;

fn text(args: &[&str]) -> String {
    succeeds(".", args)
}

#[test]
fn every_shell_gets_verbs_options_and_values() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = text(&["completions", shell]);
        for word in ["fidelity", "not-workload"] {
            assert!(script.contains(word), "{shell}: no {word}");
        }
        // Not every shell is told values.
        let values = ["utilisation", "markdown"].map(|word| script.contains(word));
        assert!(values == [true; 2] || ["elvish", "powershell"].contains(&shell), "{shell}");
    }
    assert_eq!(harness(".", &["completions", "tcsh"]).code, 2);
}

#[test]
fn bash_completes_a_verb_and_a_metric() {
    let script = text(&["completions", "bash"]);
    let complete = |words: &str, at: usize| {
        let ask = format!(
            "COMP_WORDS=({words}); COMP_CWORD={at}; _harness harness \"${{COMP_WORDS[$COMP_CWORD]}}\" \"${{COMP_WORDS[$COMP_CWORD-1]}}\"; echo \"${{COMPREPLY[@]}}\""
        );
        let mut bash = match Command::new("bash").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() {
            Ok(bash) => bash,
            Err(why) => {
                eprintln!("skipped: bash: {why}");
                return None;
            }
        };
        bash.stdin.take().unwrap().write_all(format!("{script}\n{ask}\n").as_bytes()).unwrap();
        Some(String::from_utf8(bash.wait_with_output().unwrap().stdout).unwrap())
    };
    let Some(verb) = complete("harness com", 1) else { return };
    assert_eq!(verb.split_whitespace().collect::<Vec<_>>(), ["compare", "completions"]);
    assert_eq!(complete("harness compare --metric dev", 3).unwrap().trim(), "device-used");
}

#[test]
fn every_verb_has_a_page_with_its_examples() {
    let folder = TempDir::new().unwrap();
    succeeds(&folder, &["man", "-o", "share/man1"]);
    let read = |name: &str| fs::read_to_string(folder.path().join("share/man1").join(name)).unwrap();
    for verb in ["", "-list", "-run", "-compare", "-rank", "-fidelity", "-trace", "-trace-import", "-trace-stat"] {
        let page = read(&format!("harness{verb}.1"));
        assert!(page.contains(".SH NAME\n") && page.contains("Examples:"), "harness{verb}.1: {page}");
    }
    assert_eq!(text(&["man"]), read("harness.1"));
}

#[test]
fn pages_that_cannot_be_written_are_told() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("taken"), "a file").unwrap();
    fails(&folder, &["man", "-o", "taken/man1"], 7, &["cannot write taken/man1"]);
}

/// A limit on the size of files stands for a full disk.
#[test]
#[cfg(unix)]
fn no_page_is_there_by_half() {
    let folder = TempDir::new().unwrap();
    assert_eq!(shell(&folder, "trap '' XFSZ; ulimit -f 1; exec $H man -o man1").code, 7);
    assert_eq!(fs::read_dir(folder.path().join("man1")).unwrap().count(), 0);
}

#[test]
fn what_packagers_call_once_is_not_in_the_list_of_verbs() {
    let help = text(&["--help"]);
    assert!(help.contains("\n  compare ") && !help.contains("completions") && !help.contains("man "), "{help}");
}
