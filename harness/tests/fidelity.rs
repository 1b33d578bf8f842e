//! The recordings are reproduced exactly, and the check notices when they are not.

mod recording;

use harness::fidelity::{Report, Verdict};
use recording::Recording;
use std::path::{Path, PathBuf};
use strategy_caching::Rules;
use workload_gen::snapshot::{Action, BlockState, Entry, Segment};

/// A recording of `../shared/traces`, if that folder lies beside the checkout.
fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../shared/traces/{name}.pickle.zst"));
    if path.exists() {
        return Some(path);
    }
    println!("skipped: {} is not there", path.display());
    None
}

#[test]
fn the_shipped_recordings_are_exact() {
    let recordings = [
        ("cudagraph.default", 16),
        ("diffusion.oom1g", 0),
        ("multistream.default", 0),
        ("gpt2_varlen.frames", 0),
        // A pool for each of many graphs, and user pools that come and go: most left no trace at the end.
        ("graphs.default", 39),
        ("mempool.default", 66),
    ];
    for (name, inferred) in recordings {
        let report = Recording::shipped(name).check();
        assert_eq!(report.verdict, Verdict::Exact, "{name}: {}", report.why);
        assert_eq!(report.matched, report.events, "{name}");
        assert_eq!(report.reserved_peak_bytes, report.recorded_reserved_peak_bytes, "{name}");
        assert_eq!(report.statistics, 121, "{name}");
        assert_eq!(report.inferred, inferred, "{name}");
    }
}

fn tampered(name: &str, change: impl FnOnce(&mut Vec<Entry>)) -> Report {
    Recording::shipped(name).with(change).check()
}

/// About `count` decisions of a recording, evenly spread.
fn sample(recording: &Recording, count: usize) -> Vec<(usize, Entry)> {
    let entries = recording.entries();
    recording.sample(None, count).into_iter().map(|at| (at, entries[at])).collect()
}

/// Recordings of one stream, in which a free and its completion are neighbours.
const SINGLE_STREAM: [&str; 3] = ["cudagraph.default", "diffusion.oom1g", "gpt2_varlen.frames"];

#[test]
fn a_size_changed_by_512_diverges_at_that_entry() {
    for name in SINGLE_STREAM.into_iter().chain(["multistream.default"]) {
        let recording = Recording::shipped(name);
        for (at, entry) in sample(&recording, 60) {
            let report = recording.with(|entries| entries[at].size += 512).check();
            assert_eq!(report.first_divergence, Some(at), "{name}: {entry:?}: {}", report.why);
            assert_eq!(report.verdict, Verdict::Diverged);
        }
    }
}

#[test]
fn a_dropped_entry_diverges() {
    for name in SINGLE_STREAM {
        let recording = Recording::shipped(name);
        for (at, entry) in sample(&recording, 60) {
            let without = |entries: &mut Vec<Entry>| {
                entries.remove(at);
            };
            let report = recording.with(without).check();
            assert_eq!(report.verdict, Verdict::Diverged, "{name}: {entry:?}");
            if entry.action != Action::Alloc {
                assert_eq!(report.first_divergence, Some(at), "{name}: {entry:?}: {}", report.why);
            } else {
                // What was never allocated is missed when it is freed, or when its place is taken.
                let found = report.first_divergence.unwrap();
                assert!(found + 1 >= at, "{name}: {entry:?}: found at {found}: {}", report.why);
            }
        }
    }
}

#[test]
fn swapped_addresses_diverge_at_the_first_of_them() {
    for name in SINGLE_STREAM {
        let recording = Recording::shipped(name);
        let entries = recording.entries();
        for (at, entry) in sample(&recording, 60).into_iter().filter(|(_, entry)| entry.action == Action::Alloc) {
            let is_other = |other: &Entry| other.action == entry.action && other.addr != entry.addr;
            let Some(other) = (at + 1..entries.len()).find(|&other| is_other(&entries[other])) else { continue };
            let swap = |entries: &mut Vec<Entry>| {
                (entries[at].addr, entries[other].addr) = (entries[other].addr, entries[at].addr);
            };
            let report = recording.with(swap).check();
            assert_eq!(report.verdict, Verdict::Diverged, "{name}: {entry:?}");
            assert_eq!(report.first_divergence, Some(at), "{name}: {entry:?}: {}", report.why);
        }
    }
}

/// Defines rules that differ from PyTorch's in one point.
macro_rules! mutant {
    ($name:ident: $rule:ident = $value:expr, $ty:ty) => {
        #[derive(Clone)]
        struct $name;
        impl Rules for $name {
            const $rule: $ty = $value;
        }
    };
}

mutant!(SplitsLater: LARGE_REMAINDER = 2 << 20, u64);
mutant!(TakesTheHighest: LOWEST_ADDRESS = false, bool);
mutant!(SmallerSmallPool: SMALL_LIMIT = 512 << 10, u64);
mutant!(MergesDownwardsOnly: MERGE_UPWARDS = false, bool);
mutant!(FlushesFirst: DEVICE_BEFORE_FLUSH = false, bool);

#[test]
fn each_changed_rule_diverges_where_it_first_matters() {
    let recording = Recording::shipped("diffusion.oom1g");
    let first = |report: Report| (report.first_divergence, report.why);
    let at = |entry: usize, why: &str| (Some(entry), why.to_owned());
    assert_eq!(
        first(recording.check_with::<SplitsLater>()),
        at(
            193,
            "recorded: alloc of 1310720 bytes at 0x7fbd75600000; replayed: alloc of 1310720 bytes at 0x7fbd83f00000"
        )
    );
    assert_eq!(
        first(recording.check_with::<TakesTheHighest>()),
        at(
            136,
            "recorded: alloc of 10485760 bytes at 0x7fbd74c00000; replayed: alloc of 10485760 bytes at 0x7fbd78000000"
        )
    );
    assert_eq!(
        first(recording.check_with::<SmallerSmallPool>()),
        at(7, "recorded: alloc of 589824 bytes at 0x7fbd8de4ac00; replayed: segment_alloc of 20971520 bytes")
    );
    assert_eq!(
        first(recording.check_with::<MergesDownwardsOnly>()),
        at(106, "recorded: alloc of 16384 bytes at 0x7fbd735f2e00; replayed: alloc of 16384 bytes at 0x7fbd735f4a00")
    );
    assert_eq!(
        first(recording.check_with::<FlushesFirst>()),
        at(
            73,
            "recorded: segment_alloc of 20971520 bytes at 0x7fbd75800000; replayed: segment_free of 12582912 bytes at 0x7fbd74c00000"
        )
    );
}

#[test]
fn an_end_that_differs_diverges_there() {
    let name = "gpt2_varlen.frames";
    let ends: [fn(&mut Segment); 4] = [
        |segment| segment.total_size += 512,
        |segment| segment.stream = 77,
        |segment| segment.blocks[0].size += 512,
        |segment| segment.blocks[0].state = BlockState::PendingFree,
    ];
    for change in ends {
        let mut recording = Recording::shipped(name);
        change(&mut recording.snapshot.segments[3]);
        let report = recording.check();
        assert_eq!(report.verdict, Verdict::Diverged);
        assert_eq!(report.first_divergence, Some(recording.entries().len()), "{}", report.why);
    }
}

#[test]
fn a_history_without_decisions_is_incomplete() {
    let report = tampered("gpt2_varlen.frames", |entries| entries.retain(|entry| entry.action == Action::Snapshot));
    assert_eq!((report.verdict, report.events), (Verdict::Incomplete, 0));
}

#[test]
fn a_history_without_its_beginning_is_incomplete() {
    let report = tampered("gpt2_varlen.frames", |entries| drop(entries.drain(..5000)));
    assert_eq!((report.verdict, report.first_divergence), (Verdict::Incomplete, None));
    assert!(report.why.contains("lost its beginning"), "{}", report.why);
    let report = tampered("gpt2_varlen.frames", Vec::clear);
    assert_eq!(report.verdict, Verdict::Incomplete);
}

#[test]
fn all_recordings_beside_the_checkout_are_exact() {
    let Some(one) = shared("gnn.default") else { return };
    let mut checked = 0;
    let files = std::fs::read_dir(one.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.to_string_lossy().ends_with(".pickle.zst")).collect();
    files.sort();
    for path in files {
        let report = Recording::open(&path).check();
        println!("{}: {report:?}", path.display());
        assert_eq!(report.verdict, Verdict::Exact, "{}: {}", path.display(), report.why);
        checked += 1;
    }
    assert_eq!(checked, 21);
}
