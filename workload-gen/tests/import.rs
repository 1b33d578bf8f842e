//! From histories to traces: slots, tickets, flushes, pools, and beginnings that were lost.

mod common;

use common::*;
use workload_gen::import::{ImportError, ImportOptions, Sidecar, import};
use workload_gen::snapshot::Snapshot;
use workload_gen::{Trace, check, format};

const A: i64 = 0x7f00_0000_0000;
const B: i64 = A + 512;
const C: i64 = A + 1024;
const SEGMENT: i64 = 2 << 20;

fn import_with(segments: Vec<Py>, traces: Vec<Py>, options: &ImportOptions) -> Result<Trace, ImportError> {
    let bytes = pickle(&snapshot(segments, traces), Style::Python(4));
    let result = import(Snapshot::read(bytes.as_slice(), "dir/job.pickle.zst").unwrap(), options);
    if let Ok(trace) = &result {
        check(trace).unwrap();
    }
    result
}

/// The lines of the trace without its header, joined by commas, and the notes.
fn lines(trace: &Trace) -> String {
    let mut text = Vec::new();
    format::write(trace, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    text.lines().filter(|line| !line.starts_with(['#', 'g'])).collect::<Vec<_>>().join(", ")
}

fn imported(entries: Vec<Py>, segments: Vec<Py>) -> (String, Vec<String>) {
    let trace = import_with(segments, vec![entries.into()], &ImportOptions::default()).unwrap();
    (lines(&trace), trace.header.notes)
}

fn e(action: &str, address: i64, size: i64) -> Py {
    entry(action, address, size, 0)
}

/// A segment whose blocks at these addresses are allocated.
fn holding(addresses: &[i64]) -> Vec<Py> {
    let blocks = addresses.iter().map(|&address| block(address, 512, "active_allocated")).collect();
    vec![segment(0, A, 0, blocks, SEGMENT)]
}

#[test]
fn slots_are_reused_lowest_first() {
    let (text, notes) = imported(
        vec![
            e("segment_alloc", A, SEGMENT),
            e("alloc", A, 100),
            e("alloc", B, 200),
            e("alloc", C, 300),
            e("free_requested", B, 200),
            e("free_completed", B, 200),
            e("free_requested", A, 100),
            e("free_completed", A, 100),
            e("alloc", B, 201),
            e("alloc", A, 101),
        ],
        holding(&[A, B, C]),
    );
    assert_eq!(text, "a 0 100 0, a 1 200 0, a 2 300 0, f 1, f 0, a 0 201 0, a 1 101 0");
    assert_eq!(notes, [""; 0]);
}

#[test]
fn late_frees_get_tickets() {
    let (text, notes) = imported(
        vec![
            e("alloc", A, 1),
            e("alloc", B, 2),
            e("alloc", C, 3),
            e("free_requested", A, 1),
            e("free_requested", B, 2),
            e("free_completed", B, 2),
            e("free_requested", C, 3),
            e("free_completed", A, 1),
            e("alloc", B, 4),
            e("free_requested", B, 4),
        ],
        vec![segment(
            0,
            A,
            0,
            vec![block(B, 512, "active_pending_free"), block(C, 512, "active_pending_free")],
            SEGMENT,
        )],
    );
    // B's first free is completed at once; ticket 0 is free again before B's second one.
    assert_eq!(text, "a 0 1 0, a 1 2 0, a 2 3 0, f 0 !0, f 1, f 2 !1, c 0, a 0 4 0, f 0 !0");
    assert_eq!(notes, ["3 frees completed late and wait for tickets; 2 never completed"]);
}

#[test]
fn releases_are_flushes() {
    let entries = vec![
        e("alloc", A, 1),
        e("free_requested", A, 1),
        e("segment_free", C, SEGMENT),
        e("free_completed", A, 1),
        e("segment_unmap", B, SEGMENT),
        e("segment_alloc", C, SEGMENT),
        e("alloc", C, 5),
        e("segment_free", A, SEGMENT),
        e("free_requested", C, 5),
        e("free_completed", C, 5),
        e("segment_free", C, SEGMENT),
    ];
    let (text, notes) = imported(entries.clone(), vec![]);
    // Two releases with only a late completion between them are one flush, after that completion.
    assert_eq!(text, "a 0 1 0, f 0 !0, c 0, e, a 0 5 0, e, f 0, e");
    assert_eq!(notes[1], "3 calls of empty_cache inferred from the segments that were released");

    // Under a limit, what directly precedes an allocation belongs to it.
    for sidecar in [
        Sidecar { fraction_gib: 1.0, total: Some(4 << 30), ..Sidecar::default() },
        Sidecar { stats: [("num_alloc_retries".to_string(), 1)].into(), ..Sidecar::default() },
    ] {
        let options = ImportOptions { sidecar: Some(sidecar), ..ImportOptions::default() };
        let trace = import_with(vec![], vec![entries.clone().into()], &options).unwrap();
        assert_eq!(lines(&trace), "a 0 1 0, f 0 !0, c 0, a 0 5 0, e, f 0, e");
    }
}

#[test]
fn a_failed_allocation_is_kept() {
    let (text, notes) = imported(
        vec![
            e("alloc", A, 1),
            e("segment_free", C, SEGMENT),
            e("oom", 77, 1 << 30),
            e("free_requested", A, 1),
            e("free_completed", A, 1),
            e("alloc", A, 2),
            e("oom", 77, 1 << 31),
        ],
        holding(&[A]),
    );
    let mark = "m oom in the recording";
    assert_eq!(text, format!("a 0 1 0, {mark}, a 1 1073741824 0, f 0, a 0 2 0, {mark}, a 2 2147483648 0"));
    assert!(notes[0].starts_with("2 allocations that failed"), "{notes:?}");
}

#[test]
fn pools_come_from_segments_that_are_left() {
    let range = |address: i64, pool: i64, active: &[i64]| {
        let blocks = active.iter().map(|&address| block(address, 512, "active_allocated")).collect();
        segment(0, address, pool, blocks, SEGMENT)
    };
    let (x, y, z) = (A, A + SEGMENT, A + 2 * SEGMENT);
    let (text, notes) = imported(
        vec![
            // The address belonged to another pool before the segment that is left was made.
            e("segment_alloc", y, SEGMENT),
            e("alloc", y, 1),
            e("free_requested", y, 1),
            e("free_completed", y, 1),
            e("segment_free", y, SEGMENT),
            e("segment_alloc", x, SEGMENT),
            e("alloc", x, 2),
            e("segment_alloc", y, SEGMENT),
            e("alloc", y, 3),
            e("segment_alloc", z, SEGMENT),
            e("alloc", z, 4),
            e("alloc", y + 512, 5),
        ],
        vec![range(x, 0, &[x]), range(y, 9, &[y, y + 512]), range(z, 4, &[z])],
    );
    assert_eq!(text, "a 0 1 0, f 0, e, a 0 2 0, p create 2, a 1 3 0 p2, p create 1, a 2 4 0 p1, a 3 5 0 p2");
    assert!(notes[1].starts_with("3 allocations put into private pools"), "{notes:?}");
}

#[test]
fn pools_of_expandable_segments_hold_from_the_first_mapping_on() {
    let left = |address: i64, size: i64| segment(0, address, 5, vec![block(address, 512, "active_allocated")], size);
    let (text, _) = imported(
        vec![
            // The same addresses, before the range was reserved anew for the pool.
            e("alloc", A + 512, 1),
            e("free_requested", A + 512, 1),
            e("free_completed", A + 512, 1),
            // The second mapping extends the first, and the middle of both was unmapped later.
            e("segment_map", A, 2 * SEGMENT),
            e("alloc", A + 512, 2),
            e("segment_map", A + 2 * SEGMENT, 2 * SEGMENT),
            e("alloc", A + 3 * SEGMENT, 3),
            e("alloc", A, 4),
            e("free_requested", A + 512, 2),
            e("free_completed", A + 512, 2),
            e("segment_unmap", A + SEGMENT, 2 * SEGMENT),
        ],
        vec![left(A, SEGMENT), left(A + 3 * SEGMENT, SEGMENT)],
    );
    assert_eq!(text, "a 0 1 0, f 0, p create 1, a 0 2 0 p1, a 1 3 0 p1, a 2 4 0 p1, f 0, e");
}

#[test]
fn streams_keep_the_order_of_their_handles() {
    let entries = vec![entry("alloc", A, 1, 900), entry("alloc", B, 2, 0), entry("alloc", C, 3, 70)];
    let trace = import_with(holding(&[A, B, C]), vec![entries.into()], &ImportOptions::default()).unwrap();
    assert_eq!(trace.header.streams, [0, 70, 900]);
    assert_eq!(lines(&trace), "a 0 1 2, a 1 2 0, a 2 3 1");
}

#[test]
fn a_lost_beginning_is_rebuilt() {
    let at_end = vec![segment(
        0,
        A,
        7,
        vec![
            block(A, 512, "active_allocated"),
            block(B, 512, "inactive"),
            block(C, 512, "active_pending_free"),
            block(C + 512, 512, "active_allocated"),
        ],
        SEGMENT,
    )];
    let (text, notes) = imported(
        vec![
            e("free_completed", B + SEGMENT, 40),
            e("free_requested", B, 30),
            e("free_completed", B, 30),
            e("alloc", B, 31),
            e("free_requested", B, 31),
            e("free_completed", B, 31),
            e("alloc", C + 512, 60),
        ],
        at_end,
    );
    // By address: A (500 requested), B, C (500, waiting), and B + SEGMENT (waiting).
    assert_eq!(
        text,
        "p create 1, a 0 500 0 p1, a 1 30 0 p1, a 2 500 0 p1, f 2 !0, a 2 40 0, f 2 !1, c 1, f 1, a 1 31 0 p1, f 1, \
         a 1 60 0 p1"
    );
    assert_eq!(
        notes[0],
        "the history lost its beginning: 4 blocks that were live before its first entry (1070 bytes) are allocated first"
    );
}

#[test]
fn blocks_newer_than_the_history_do_no_harm() {
    // Another thread went on between the two halves of the snapshot: A is freed in the history, but there again.
    let (text, notes) =
        imported(alloc_and_free(A, 5).into_iter().chain([e("alloc", B, 6)]).collect(), holding(&[A, B]));
    assert_eq!((text.as_str(), notes.len()), ("a 0 5 0, f 0, a 0 6 0", 0));
}

#[test]
fn half_of_the_frees_is_enough() {
    let [alloc, requested, completed] = alloc_and_free(A, 5);
    let twice = |free: &Py| vec![alloc.clone(), free.clone(), alloc.clone(), free.clone()];
    let (text, notes) = imported(twice(&requested), vec![]);
    assert_eq!(text, "a 0 5 0, f 0, a 0 5 0, f 0");
    assert!(notes[0].contains("no free_completed"), "{notes:?}");
    let (text, notes) = imported(twice(&completed), vec![]);
    assert_eq!(text, "a 0 5 0, f 0, a 0 5 0, f 0");
    assert!(notes[0].contains("no free_requested"), "{notes:?}");
}

#[test]
fn an_address_handed_out_again_shows_a_free() {
    // As in a history that is written twice in a row: what was live at the end of the first is allocated again.
    let once = [e("alloc", A, 1), e("alloc", B, 2), e("free_requested", B, 2), e("free_completed", B, 2)];
    let (text, notes) = imported([once.clone(), once].concat(), holding(&[A]));
    assert_eq!(text, "a 0 1 0, a 1 2 0, f 1, f 0, a 1 1 0, a 0 2 0, f 0");
    assert_eq!(notes, ["1 free not recorded, but certain because the address was handed out again"]);
}

#[test]
fn contradictions_name_their_entry() {
    for (entries, number, says) in [
        (
            vec![e("alloc", A, 1), e("free_requested", A, 1), e("free_completed", A, 1), e("free_completed", A, 1)],
            3,
            "no free",
        ),
        (vec![e("alloc", A, 1), e("free_requested", A, 1), e("free_completed", B, 1)], 2, ""),
        (
            vec![e("alloc", A, 1), e("free_requested", A, 1), e("free_completed", A, 1), e("free_requested", A, 1)],
            3,
            "no block is live",
        ),
    ] {
        let result = import_with(vec![], vec![entries.into()], &ImportOptions::default());
        match result {
            Err(error @ ImportError::Inconsistent { entry, .. }) => {
                assert_eq!(entry, number);
                let text = error.to_string();
                assert!(text.starts_with("dir/job.pickle.zst: device 0, entry ") && text.contains(says), "{text}");
            }
            Err(error) => panic!("{error}"),
            // A completion of an unknown address can only come from before the history.
            Ok(trace) => assert!(trace.header.notes[0].contains("lost its beginning"), "{:?}", trace.header.notes),
        }
    }
}

#[test]
fn the_device_is_the_one_with_a_history() {
    let history = |address: i64| Py::from(alloc_and_free(address, 5).to_vec());
    let empty = || Py::List(vec![]);
    let options = |device| ImportOptions { device, ..ImportOptions::default() };

    let only = vec![empty(), history(A), empty()];
    let trace = import_with(vec![], only.clone(), &options(None)).unwrap();
    assert_eq!(trace.header.source, "PyTorch snapshot job, device 1");
    let error = import_with(vec![], only, &options(Some(2))).unwrap_err().to_string();
    assert!(error.contains("device 2 has no history; these have: 1"), "{error}");

    let both = vec![history(A), history(B), history(A)];
    let error = import_with(vec![], both.clone(), &options(None)).unwrap_err().to_string();
    assert!(error.contains("0, 1, 2; name one"), "{error}");
    assert!(import_with(vec![], both, &options(Some(0))).is_ok());

    let error = import_with(holding(&[A]), vec![], &options(None)).unwrap_err().to_string();
    assert!(error.contains("_record_memory_history"), "{error}");
}

#[test]
fn the_sidecar_fills_the_header() {
    let sidecar = Sidecar {
        conf: "expandable_segments:True".into(),
        fraction_gib: 2.0,
        total: Some(16 << 30),
        ..Sidecar::default()
    };
    let traces = vec![alloc_and_free(A, 5).to_vec().into()];
    let options = ImportOptions { sidecar: Some(sidecar), ..ImportOptions::default() };
    let header = import_with(vec![], traces.clone(), &options).unwrap().header;
    assert_eq!((header.device_bytes, header.limit_bytes), (Some(16 << 30), Some(2 << 30)));
    assert_eq!(header.settings, "expandable_segments:True");
    assert_eq!(header.source, "PyTorch snapshot job");
    // Without one, the snapshot's own settings are all there is.
    let header = import_with(vec![], traces, &ImportOptions::default()).unwrap().header;
    assert_eq!((header.device_bytes, header.limit_bytes), (None, None));
    assert_eq!(header.settings, "max_split_size_mb:128");
}

#[test]
fn unknown_actions_are_ignored_and_said() {
    let (text, notes) = imported(vec![e("alloc", A, 1), e("user_defined", 5, 5)], holding(&[A]));
    assert_eq!(text, "a 0 1 0");
    assert_eq!(notes, ["1 entry with an unknown action ignored (user_defined)"]);
}
