//! `harness calibrate`: what it refuses, and what it leaves. Only a card can be measured, so the last test needs one.

mod common;

use allocator_core::cuda::Card;
use common::{fails, succeeds};
use std::fs;
use tempfile::TempDir;

#[test]
fn without_a_card_one_line_says_so_and_nothing_is_left() {
    let folder = TempDir::new().unwrap();
    let device = if Card::open(0).is_ok() { "cuda:4000" } else { "cuda" };
    fails(&folder, &["run", "-d", "sim", "-d", device], 5, &["error: there is no CUDA "]);
    fails(&folder, &["calibrate", "-d", device, "-o", "card.toml"], 5, &["error: there is no CUDA "]);
    assert_eq!(common::harness(&folder, &["calibrate", "-d", device, "-o", "card.toml"]).err.lines().count(), 1);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn results_are_not_overwritten() {
    for taken in ["card.toml", "card.csv", "card.packing.csv"] {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join(taken), "mine").unwrap();
        fails(&folder, &["calibrate", "-o", "card.toml"], 7, &[taken, "never overwritten"]);
        assert_eq!(fs::read_to_string(folder.path().join(taken)).unwrap(), "mine");
    }
}

#[test]
fn only_cards_are_measured_and_profiles_end_in_toml() {
    let folder = TempDir::new().unwrap();
    fails(&folder, &["calibrate", "-d", "sim", "-o", "card.toml"], 2, &["write cuda"]);
    fails(&folder, &["calibrate", "-o", "card.csv"], 2, &["ends in .toml"]);
    fails(&folder, &["calibrate", "--samples", "0", "-o", "card.toml"], 2, &["samples"]);
}

#[test]
fn a_measured_profile_serves_the_simulated_device() {
    if let Err(why) = Card::open(0) {
        println!("skipped: {why}");
        return;
    }
    let folder = TempDir::new().unwrap();
    let summary = succeeds(&folder, &["calibrate", "--samples", "3", "-o", "card.toml"]);
    assert!(summary.contains("\nmalloc ") && summary.contains("context takes"), "{summary}");
    for file in ["card.csv", "card.packing.csv"] {
        assert!(fs::read_to_string(folder.path().join(file)).unwrap().lines().count() > 50, "{file}");
    }
    let rows = succeeds(&folder, &["run", "-d", "sim:card.toml", "-w", "gnn", "-s", "direct", "--csv", "-"]);
    assert!(rows.contains(",card,"), "{rows}");
}
