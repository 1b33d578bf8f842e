//! Odd and hostile snapshots: a verdict that says where, never a panic, never much time or memory.

mod recording;

use harness::fidelity::{Report, Verdict};
use recording::Recording;
use workload_gen::import::Sidecar;
use workload_gen::snapshot::{Action, BlockState, Entry, History, Segment, Snapshot, SnapshotBlock};

const MIB: u64 = 1 << 20;
const BASE: u64 = 0x7f00_0000_0000;
/// The last 2 MiB of the address space.
const TOP: u64 = 0u64.wrapping_sub(2 * MIB);

/// Action, address and size of an entry on the default stream.
type Line = (Action, u64, u64);

fn entry(action: Action, addr: u64, size: u64) -> Entry {
    Entry { addr, size, time_us: 0, stream: 0, action }
}

fn history(entries: &[Line]) -> History {
    entries.iter().map(|&(action, addr, size)| entry(action, addr, size)).collect()
}

fn snapshot(entries: &[Line], segments: Vec<Segment>) -> Snapshot {
    Snapshot { streams: vec![0, 7], devices: vec![history(entries)], segments, ..Snapshot::default() }
}

fn report(snapshot: Snapshot) -> Report {
    Recording { snapshot, sidecar: None, device: 0 }.check()
}

/// A segment of one block.
fn segment(address: u64, total_size: u64, requested_size: u64, state: BlockState) -> Segment {
    let block = SnapshotBlock { address, size: total_size, requested_size, state };
    let (device, stream, large, pool, expandable) = (0, 0, false, (0, 0), false);
    Segment { device, address, total_size, stream, large, pool, expandable, blocks: vec![block] }
}

use Action::{Alloc, FreeCompleted, FreeRequested, Oom, SegmentAlloc, SegmentFree, SegmentMap, SegmentUnmap};

#[test]
fn hostile_entries_diverge_where_they_are() {
    let huge = i64::MAX as u64;
    let cases: [(&[Line], usize, &str); 22] = [
        // At the end of the address space, and beyond.
        (&[(SegmentAlloc, TOP, 2 * MIB), (Alloc, TOP, 1000)], 0, "no device has this memory"),
        (&[(SegmentMap, TOP, 2 * MIB), (Alloc, TOP, 1000)], 0, "segment_map of 2097152 bytes at 0xffffffffffe00000"),
        (&[(SegmentAlloc, u64::MAX - 511, huge), (Alloc, u64::MAX - 511, huge)], 0, "larger than any device"),
        (&[(SegmentFree, u64::MAX, u64::MAX)], 0, "no flush gives this back"),
        (&[(Alloc, u64::MAX, 5)], 0, "alloc of 5 bytes at 0xffffffffffffffff"),
        // Addresses that no device returns.
        (&[(SegmentAlloc, 0, 2 * MIB), (Alloc, 0, 1000)], 0, "no device has this memory"),
        (&[(SegmentAlloc, BASE + 1, 2 * MIB), (Alloc, BASE + 1, 1000)], 0, "no device has this memory"),
        (&[(SegmentAlloc, 1 << 57, 2 * MIB), (Alloc, 1 << 57, 1000)], 0, "no device has this memory"),
        // Sizes.
        (&[(Alloc, BASE, huge), (Alloc, BASE + 512, huge)], 0, "larger than any device"),
        (&[(Oom, 0, u64::MAX)], 0, "larger than any device"),
        (&[(SegmentAlloc, BASE, 0), (Alloc, BASE, 1000)], 0, "segment_alloc of 2097152 bytes"),
        (&[(SegmentAlloc, BASE, 2 * MIB), (Alloc, BASE, 0)], 0, "replayed: alloc of 0 bytes"),
        (&[(Alloc, 1 << 62, 0)], 0, "alloc of 0 bytes"),
        // Twice, or never begun.
        (
            &[(SegmentAlloc, BASE, 2 * MIB), (Alloc, BASE, 1000), (Alloc, BASE, 1000)],
            2,
            "replayed: alloc of 1000 bytes at 0x7f0000000400",
        ),
        (
            &[
                (SegmentAlloc, BASE, 2 * MIB),
                (Alloc, BASE, 1000),
                (SegmentAlloc, BASE, 20 * MIB),
                (Alloc, BASE, 2 * MIB),
            ],
            2,
            "no device has this memory",
        ),
        (&[(FreeRequested, BASE, 1000), (FreeCompleted, BASE, 1000)], 0, "no block is live there"),
        (&[(FreeCompleted, BASE, 1000)], 0, "no free waits there"),
        (&[(SegmentUnmap, BASE, 2 * MIB)], 0, "no flush gives this back"),
        // A segment for nobody.
        (&[(SegmentAlloc, BASE, 2 * MIB)], 1, "an alloc or oom should follow"),
        (&[(SegmentMap, BASE, 2 * MIB), (SegmentMap, BASE, 2 * MIB)], 2, "an alloc or oom should follow"),
        (
            &[(SegmentAlloc, BASE, 2 * MIB), (SegmentAlloc, BASE + 2 * MIB, 2 * MIB), (Alloc, BASE, 1000)],
            1,
            "an alloc or oom should follow",
        ),
        // A free that the end does not know.
        (&[(SegmentAlloc, BASE, 2 * MIB), (Alloc, BASE, 1000), (FreeRequested, BASE, 1000)], 3, "is never completed"),
    ];
    for (entries, at, why) in cases {
        let report = report(snapshot(entries, Vec::new()));
        assert_eq!(report.verdict, Verdict::Diverged, "{entries:x?}: {}", report.why);
        assert_eq!(report.first_divergence, Some(at), "{entries:x?}: {}", report.why);
        assert!(report.why.contains(why), "{entries:x?}: {}", report.why);
    }
}

#[test]
fn memory_is_on_the_stream_that_asked_for_it() {
    let mut cases = Vec::new();
    for (gives, takes, conf) in
        [(SegmentAlloc, SegmentFree, ""), (SegmentMap, SegmentUnmap, "expandable_segments:True")]
    {
        let whole = [
            entry(gives, BASE, 2 * MIB),
            entry(Alloc, BASE, 1000),
            entry(FreeRequested, BASE, 1000),
            entry(FreeCompleted, BASE, 1000),
            entry(takes, BASE, 2 * MIB),
        ];
        let mut snapshot = snapshot(&[], Vec::new());
        snapshot.settings.conf = conf.to_owned();
        snapshot.devices[0] = whole.into_iter().collect();
        cases.push((Recording { snapshot, sidecar: None, device: 0 }, whole.len()));
    }
    for (recording, len) in cases {
        let report = recording.check();
        assert_eq!(report.verdict, Verdict::Exact, "{}", report.why);
        for at in 0..len {
            let report = recording.with(|entries| entries[at].stream = 1).check();
            assert_eq!(report.first_divergence, Some(at), "{}", report.why);
            assert!(report.why.contains("stream"), "{}", report.why);
        }
    }
}

#[test]
fn segments_that_cannot_be_are_told() {
    let entries = [(SegmentAlloc, BASE, 2 * MIB), (Alloc, BASE, MIB)];
    let whole = |address, total_size| {
        let mut segment = segment(address, total_size, MIB, BlockState::Allocated);
        segment.blocks[0].size = MIB;
        let rest = SnapshotBlock { address: address.wrapping_add(MIB), requested_size: 0, ..segment.blocks[0] };
        segment.blocks.push(SnapshotBlock { state: BlockState::Inactive, ..rest });
        segment
    };
    let good = whole(BASE, 2 * MIB);
    let bare = Segment { blocks: Vec::new(), ..good.clone() };
    let cases = [
        (vec![good.clone()], Verdict::Exact, ""),
        (vec![bare], Verdict::Diverged, "do not tile it"),
        (vec![whole(BASE, 0)], Verdict::Diverged, "do not tile it"),
        (vec![whole(BASE, 1 << 62)], Verdict::Diverged, "do not tile it"),
        (vec![whole(TOP, 2 * MIB)], Verdict::Diverged, "at 0x7f0000000000"),
        (vec![good.clone(), whole(TOP, 2 * MIB)], Verdict::Diverged, "at 0xffffffffffe00000"),
        (vec![good.clone(), whole(u64::MAX, u64::MAX)], Verdict::Diverged, "at 0xfffff of stream 0"),
        (vec![good.clone(), good], Verdict::Diverged, "at 0x7f0000000000"),
    ];
    for (segments, verdict, why) in cases {
        let report = report(snapshot(&entries, segments.clone()));
        assert_eq!(report.verdict, verdict, "{segments:x?}: {}", report.why);
        assert!(report.why.contains(why), "{segments:x?}: {}", report.why);
    }
}

#[test]
fn what_is_missing_is_told() {
    let entries = [(SegmentAlloc, BASE, 2 * MIB), (Alloc, BASE, 1000)];
    let free = segment(BASE, 2 * MIB, 0, BlockState::Inactive);
    for (what, snapshot, verdict, why) in [
        ("nothing", Snapshot::default(), Verdict::Incomplete, "no history is recorded"),
        ("no history", snapshot(&[], vec![free.clone()]), Verdict::Incomplete, "no history is recorded"),
        ("only notes", snapshot(&[(Action::Unknown, 0, 0)], vec![free]), Verdict::Incomplete, "no history is recorded"),
        ("no segments", snapshot(&entries, Vec::new()), Verdict::Diverged, "recorded nothing more; replayed"),
    ] {
        let report = report(snapshot);
        assert_eq!(report.verdict, verdict, "{what}: {}", report.why);
        assert!(report.why.contains(why), "{what}: {}", report.why);
    }
}

#[test]
fn each_device_has_its_own_history() {
    let one = Recording::shipped("multistream.default");
    let other = Recording::shipped("graphs.default");
    let mut both = one.clone();
    both.snapshot.devices = vec![one.snapshot.devices[one.device].clone(), History::new()];
    // The other's streams come after the first's, and its segments are on device 2.
    let streams = one.snapshot.streams.len() as u32;
    both.snapshot.streams.extend(&other.snapshot.streams);
    let moved = other.entries().into_iter().map(|entry| Entry { stream: entry.stream + streams, ..entry });
    both.snapshot.devices.push(moved.collect());
    both.snapshot.segments.extend(other.snapshot.segments.iter().map(|s| Segment { device: 2, ..s.clone() }));
    for (device, sidecar) in [(0, one.sidecar), (2, other.sidecar)] {
        let report = Recording { sidecar, device, ..both.clone() }.check();
        assert_eq!(report.verdict, Verdict::Exact, "device {device}: {}", report.why);
    }
    let none = Recording { sidecar: None, device: 1, ..both }.check();
    assert_eq!(none.verdict, Verdict::Incomplete);
}

#[test]
fn pools_without_end_are_refused() {
    let pools = 100_000;
    let place = |n: u64| BASE + n * 2 * MIB;
    let entries: Vec<_> =
        (0..pools).flat_map(|n| [(SegmentAlloc, place(n), 2 * MIB), (Alloc, place(n), 2 * MIB)]).collect();
    let segments = (0..pools).map(|n| {
        let whole = segment(place(n), 2 * MIB, 2 * MIB, BlockState::Allocated);
        Segment { pool: (0, n), ..whole }
    });
    let report = report(snapshot(&entries, segments.collect()));
    assert_eq!(report.verdict, Verdict::Incomplete);
    assert!(report.why.contains("100000 streams in pools, where at most 1000"), "{}", report.why);
}

/// Numbers at which something overflows, and some that are only odd.
const NUMBERS: [u64; 14] = [
    0,
    1,
    511,
    512,
    2 * MIB,
    20 * MIB,
    90 << 30,
    1 << 40,
    (1 << 57) - 2 * MIB,
    1 << 57,
    1 << 62,
    1 << 63,
    TOP,
    u64::MAX,
];

/// A linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn number(&mut self) -> u64 {
        NUMBERS[self.below(NUMBERS.len())]
    }
}

/// Changes one thing, anywhere.
fn damage(recording: &mut Recording, entries: &mut Vec<Entry>, random: &mut Random) {
    let (at, other) = (random.below(entries.len()), random.below(entries.len()));
    let segments = &mut recording.snapshot.segments;
    match random.below(9) {
        0 => entries[at].size = random.number(),
        1 => entries[at].addr = random.number(),
        2 => entries[at].action = Action::ALL[random.below(Action::ALL.len())],
        3 => entries[at].stream = random.below(9) as u32,
        4 => entries.insert(at, entries[other]),
        5 => entries.swap(at, other),
        6 => {
            // A whole segment is elsewhere.
            let (from, to) = (entries[at], random.number());
            for entry in entries.iter_mut().filter(|entry| entry.addr.wrapping_sub(from.addr) < from.size) {
                entry.addr = to.wrapping_add(entry.addr - from.addr);
            }
        }
        7 if !segments.is_empty() => {
            let segment = random.below(segments.len());
            segments[segment].total_size = random.number();
            segments[segment].pool = (0, random.below(3) as u64);
        }
        _ if !segments.is_empty() => {
            let segment = random.below(segments.len());
            segments[segment].address = random.number();
            segments[segment].blocks.truncate(1);
        }
        _ => {}
    }
}

#[test]
fn damage_gives_a_verdict() {
    let recordings = ["graphs.default", "mempool.default", "multistream.default", "diffusion.oom1g"];
    let confs = [
        "",
        "expandable_segments:True",
        "max_split_size_mb:20,garbage_collection_threshold:0.5",
        "roundup_power2_divisions:9223372036854775808",
        "expandable_segments:True,large_segment_size_mb:1024",
    ];
    let mut verdicts = [0; 3];
    for seed in 0..600 {
        let mut random = Random(seed);
        let mut recording = Recording::shipped(recordings[random.below(recordings.len())]);
        let mut entries = recording.entries();
        entries.truncate([5, 20, 100, 1000][random.below(4)]);
        if random.below(2) == 0 {
            recording.snapshot.segments.clear();
        }
        for _ in 0..random.below(6) {
            damage(&mut recording, &mut entries, &mut random);
        }
        if random.below(3) == 0 {
            recording.sidecar = Some(Sidecar {
                conf: confs[random.below(confs.len())].to_owned(),
                total: [None, Some(512), Some(1 << 30), Some(300 << 30)][random.below(4)],
                fraction_gib: [0.0, 1e-9, 0.1, 1e300][random.below(4)],
                stats: [("num_alloc_retries".to_owned(), [0, -1, i64::MAX][random.below(3)])].into(),
            });
        }
        recording.snapshot.devices[recording.device] = entries.into_iter().collect();
        let verdict = recording.check().verdict;
        verdicts[verdict as usize] += 1;
    }
    assert!(verdicts.iter().all(|&count| count > 0), "some of each: {verdicts:?}");
}
