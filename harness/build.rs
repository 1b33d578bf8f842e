//! Tells the binary which revision it was built from, so that every result can name it.

use std::path::Path;
use std::process::Command;

fn main() {
    let revision = Command::new("git")
        .args(["rev-parse", "HEAD"])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .unwrap_or_default();
    println!("cargo::rustc-env=HARNESS_REVISION={}", revision.trim());
    println!("cargo::rustc-env=HARNESS_PROFILE={}", std::env::var("PROFILE").unwrap_or_default());
    println!("cargo::rerun-if-changed=build.rs");
    // The log grows with every commit and checkout; without a repository there is nothing to follow.
    let log = Path::new("../.git/logs/HEAD");
    if log.exists() {
        println!("cargo::rerun-if-changed={}", log.display());
    }
}
