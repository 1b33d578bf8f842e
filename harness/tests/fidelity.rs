//! The recordings are reproduced exactly, and the check notices when they are not.

use allocator_core::{ConfigError, DeviceInfo};
use harness::fidelity::{Report, Verdict, check};
use std::path::{Path, PathBuf};
use strategy_caching::{Caching, Rules, Settings, Torch211};
use workload_gen::import::Sidecar;
use workload_gen::snapshot::{Action, BlockState, Entry, History, Segment, Snapshot};

fn fresh<R: Rules>(conf: &str, info: &DeviceInfo) -> Result<Caching<R>, ConfigError> {
    let mut settings = Settings::default();
    settings.parse(conf)?;
    Caching::with_settings(settings, info)
}

fn open(path: &Path) -> (Snapshot, Option<Sidecar>, usize) {
    let snapshot = Snapshot::open(path).unwrap_or_else(|error| panic!("{error}"));
    let sidecar = Sidecar::beside(path).unwrap_or_else(|error| panic!("{error}"));
    let device = snapshot.devices.iter().position(|history| !history.is_empty()).unwrap_or(0);
    (snapshot, sidecar, device)
}

fn report<R: Rules>(path: &Path) -> Report {
    let (snapshot, sidecar, device) = open(path);
    check(&snapshot, device, sidecar.as_ref(), fresh::<R>).unwrap()
}

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/{name}.pickle.zst"))
}

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
        let report = report::<Torch211>(&shipped(name));
        assert_eq!(report.verdict, Verdict::Exact, "{name}: {}", report.why);
        assert_eq!(report.matched, report.events, "{name}");
        assert_eq!(report.reserved_peak_bytes, report.recorded_reserved_peak_bytes, "{name}");
        assert_eq!(report.statistics, 121, "{name}");
        assert_eq!(report.inferred, inferred, "{name}");
    }
}

/// The recording with its entries changed.
fn tampered(name: &str, change: impl FnOnce(&mut Vec<Entry>)) -> Report {
    let path = shipped(name);
    let (mut snapshot, sidecar, device) = open(&path);
    let mut entries: Vec<Entry> = snapshot.devices[device].iter().copied().collect();
    change(&mut entries);
    snapshot.devices[device] = History::new();
    for entry in entries {
        snapshot.devices[device].push(entry);
    }
    check(&snapshot, device, sidecar.as_ref(), fresh::<Torch211>).unwrap()
}

/// About `count` decisions of a recording, evenly spread.
fn sample(name: &str, count: usize) -> Vec<(usize, Entry)> {
    let (snapshot, _, device) = open(&shipped(name));
    let history = &snapshot.devices[device];
    let decisions = history.iter().copied().enumerate().filter(|(_, entry)| entry.action != Action::Snapshot);
    decisions.step_by(history.len() / count + 1).collect()
}

/// Recordings of one stream, in which a free and its completion are neighbours.
const SINGLE_STREAM: [&str; 3] = ["cudagraph.default", "diffusion.oom1g", "gpt2_varlen.frames"];

#[test]
fn a_size_changed_by_512_diverges_at_that_entry() {
    for name in SINGLE_STREAM.into_iter().chain(["multistream.default"]) {
        for (at, entry) in sample(name, 60) {
            let report = tampered(name, |entries| entries[at].size += 512);
            assert_eq!(report.first_divergence, Some(at), "{name}: {entry:?}: {}", report.why);
            assert_eq!(report.verdict, Verdict::Diverged);
        }
    }
}

#[test]
fn a_dropped_entry_diverges() {
    for name in SINGLE_STREAM {
        for (at, entry) in sample(name, 60) {
            let report = tampered(name, |entries| {
                entries.remove(at);
            });
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
        let (snapshot, _, device) = open(&shipped(name));
        let history = &snapshot.devices[device];
        for (at, entry) in sample(name, 60).into_iter().filter(|(_, entry)| entry.action == Action::Alloc) {
            let other = (at + 1..history.len()).find(|&other| {
                history.get(other).is_some_and(|other| other.action == entry.action && other.addr != entry.addr)
            });
            let Some(other) = other else { continue };
            let report = tampered(name, |entries| {
                (entries[at].addr, entries[other].addr) = (entries[other].addr, entries[at].addr);
            });
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
    let path = shipped("diffusion.oom1g");
    let first = |report: Report| (report.first_divergence, report.why);
    let at = |entry: usize, why: &str| (Some(entry), why.to_owned());
    assert_eq!(
        first(report::<SplitsLater>(&path)),
        at(
            193,
            "recorded: alloc of 1310720 bytes at 0x7fbd75600000; replayed: alloc of 1310720 bytes at 0x7fbd83f00000"
        )
    );
    assert_eq!(
        first(report::<TakesTheHighest>(&path)),
        at(
            136,
            "recorded: alloc of 10485760 bytes at 0x7fbd74c00000; replayed: alloc of 10485760 bytes at 0x7fbd78000000"
        )
    );
    assert_eq!(
        first(report::<SmallerSmallPool>(&path)),
        at(7, "recorded: alloc of 589824 bytes at 0x7fbd8de4ac00; replayed: segment_alloc of 20971520 bytes")
    );
    assert_eq!(
        first(report::<MergesDownwardsOnly>(&path)),
        at(106, "recorded: alloc of 16384 bytes at 0x7fbd735f2e00; replayed: alloc of 16384 bytes at 0x7fbd735f4a00")
    );
    assert_eq!(
        first(report::<FlushesFirst>(&path)),
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
        let (mut snapshot, sidecar, device) = open(&shipped(name));
        change(&mut snapshot.segments[3]);
        let report = check(&snapshot, device, sidecar.as_ref(), fresh::<Torch211>).unwrap();
        assert_eq!(report.verdict, Verdict::Diverged);
        assert_eq!(report.first_divergence, Some(snapshot.devices[device].len()), "{}", report.why);
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
        let report = report::<Torch211>(&path);
        println!("{}: {report:?}", path.display());
        assert_eq!(report.verdict, Verdict::Exact, "{}: {}", path.display(), report.why);
        checked += 1;
    }
    assert_eq!(checked, 21);
}
