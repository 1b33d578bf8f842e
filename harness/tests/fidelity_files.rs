//! `harness fidelity` on files that cannot be checked: each has a row and an error, and keeps no other from its check.

mod common;
#[path = "../../workload-gen/tests/common/mod.rs"]
mod pickles;

use common::{fails, harness};
use pickles::{Py, Style, dict, entry, pickle};
use std::fs;
use std::path::Path;

const BASE: i64 = 0x7f00_0000_0000;

/// A snapshot with these histories, one a device.
fn snapshot(histories: Vec<Vec<Py>>, conf: &str) -> Vec<u8> {
    let traces: Vec<Py> = histories.into_iter().map(Py::from).collect();
    let settings = dict([("PYTORCH_CUDA_ALLOC_CONF", conf.into())]);
    let keys = [("segments", Py::List(vec![])), ("device_traces", traces.into()), ("allocator_settings", settings)];
    pickle(&dict(keys), Style::Python(4))
}

/// A segment that comes and goes.
fn history() -> Vec<Py> {
    let mut entries = vec![entry("segment_alloc", BASE, 2 << 20, 0)];
    entries.extend(pickles::alloc_and_free(BASE, 1000));
    entries.push(entry("segment_free", BASE, 2 << 20, 0));
    entries
}

#[test]
fn a_file_that_cannot_be_checked_keeps_no_other_from_its_check() {
    let folder = tempfile::tempdir().unwrap();
    let one = |entry: Py| snapshot(vec![vec![entry]], "");
    let whole = snapshot(vec![history()], "");
    let bad: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty", vec![], "dump the snapshot again"),
        ("cut", whole[..whole.len() / 2].to_vec(), "copy it again"),
        ("doubled", [whole.as_slice(), &whole].concat(), "give one snapshot a file"),
        ("page", b"<html>".to_vec(), "give the .pickle file"),
        ("trace", b"gpu-alloc-trace 1\n".to_vec(), "give the snapshot"),
        ("code", b"\x80\x02cos\nsystem\n.".to_vec(), "unless you trust its origin"),
        ("negative", one(entry("alloc", BASE, -5, 0)), "a trace entry with the size -5"),
        ("sizeless", one(dict([("action", "alloc".into()), ("stream", 0.into())])), "without an integer under `size`"),
        ("float", one(dict([("action", "alloc".into()), ("size", Py::Float(f64::NAN))])), "under `size`"),
        (
            "two",
            snapshot(vec![history(), history()], ""),
            "several devices have a history: 0, 1; name one with --device",
        ),
        ("settings", snapshot(vec![history()], "nonsense:1"), "correct them as `conf` in settings.json"),
        ("beside", whole.clone(), "beside.json: a memory limit of -1 GiB; correct it or take it away"),
    ];
    fs::write(folder.path().join("beside.json"), r#"{"fraction_gib": -1}"#).unwrap();
    fs::write(folder.path().join("good.pickle"), whole).unwrap();
    let name = |stem: &str| format!("{stem}.pickle");
    let mut files = vec![name("missing")];
    for (stem, bytes, _) in &bad {
        fs::write(folder.path().join(name(stem)), bytes).unwrap();
        files.push(name(stem));
    }
    files.push(name("good"));
    let args =
        [&["fidelity"], files.iter().map(String::as_str).collect::<Vec<_>>().as_slice(), &["--csv", "-"]].concat();
    let done = harness(&folder, &args);
    assert_eq!(done.code, 6, "{}", done.err);
    for (stem, _, way_out) in &bad {
        let line = done.err.lines().find(|line| line.starts_with(&format!("error: {stem}.")));
        assert!(line.is_some_and(|line| line.contains(way_out)), "{stem}: {}", done.err);
    }
    let rows: Vec<(String, String)> = done.out.lines().skip(1).map(ends).collect();
    let verdict = |file: &String| if file == "good.pickle" { "exact" } else { "error" }.to_owned();
    assert_eq!(rows, files.iter().map(|file| (file.clone(), verdict(file))).collect::<Vec<_>>());

    let done = harness(&folder, &args[..args.len() - 2]);
    assert_eq!((done.code, done.out.lines().count()), (6, 1), "{}", done.out);
    assert!(done.out.starts_with("exact       good.pickle: 5 decisions"), "{}", done.out);
}

/// The first and the last cell of a row.
fn ends(row: &str) -> (String, String) {
    let cells: Vec<&str> = row.split(',').collect();
    assert_eq!(cells.len(), 8, "{row}");
    (cells[0].to_owned(), cells[7].to_owned())
}

#[test]
fn the_device_is_named_among_several() {
    let folder = tempfile::tempdir().unwrap();
    let mut short = history();
    short.pop();
    fs::write(folder.path().join("two.pickle"), snapshot(vec![history(), vec![], short], "")).unwrap();
    let check = |device: &str| harness(&folder, &["fidelity", "two.pickle", "--device", device]);
    assert_eq!(check("0").code, 0, "{}", check("0").err);
    let third = check("2");
    assert_eq!(third.code, 4);
    assert!(third.out.contains("replayed 2097152 free bytes"), "{}", third.out);
    fails(&folder, &["fidelity", "two.pickle", "--device", "1"], 2, &["device 1 has no history; these have: 0, 2"]);
}

#[test]
fn unknown_actions_and_other_keys_are_no_hindrance() {
    let folder = tempfile::tempdir().unwrap();
    let mut entries = history();
    entries.insert(2, entry("annotate\n\u{1b}[31m", BASE, 5, 0));
    entries.insert(0, dict([("action", "mystery".into())]));
    fs::write(folder.path().join("new.pickle"), snapshot(vec![entries], "")).unwrap();
    let done = harness(Path::new(folder.path()), &["fidelity", "new.pickle"]);
    assert!(done.out.starts_with("exact       new.pickle: 5 decisions"), "{} {}", done.out, done.err);
}
