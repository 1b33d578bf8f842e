//! Tells the binary which revision it was built from, and whether that was changed, so that every result can name it.

use std::path::Path;
use std::process::Command;

fn main() {
    let revision = Command::new("git")
        .args(["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .unwrap_or_default();
    println!("cargo::rustc-env=HARNESS_REVISION={}", revision.trim());
    println!("cargo::rustc-env=HARNESS_PROFILE={}", std::env::var("PROFILE").unwrap_or_default());
    for code in ["build.rs", "src", "../workload-gen/src", "../strategies", "../allocator-core/src"] {
        println!("cargo::rerun-if-changed={code}");
    }
    // The log grows with every commit and checkout; without a repository there is nothing to follow.
    let log = Path::new("../.git/logs/HEAD");
    if log.exists() {
        println!("cargo::rerun-if-changed={}", log.display());
    }
}
