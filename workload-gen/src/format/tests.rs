//! Round trips, and what is refused.

use super::*;
use crate::check::{Checker, Limits};
use crate::trace::{Event, Header, PoolOp, Trace};
use allocator_core::{PoolId, StreamId};
use proptest::prelude::*;
use std::fs;

fn parse(text: &str) -> Result<Trace, TraceError> {
    read(text.as_bytes(), "dir/x.trace")
}

/// The error of a trace whose header is the first line, and the number of the line it names.
fn problem(lines: &str) -> (u64, String) {
    match parse(&format!("{FIRST_LINE}\n{lines}")) {
        Err(TraceError::Line { line, problem, .. }) => (line, problem),
        other => panic!("{lines:?}: {other:?}"),
    }
}

fn to_text(trace: &Trace) -> String {
    let mut bytes = Vec::new();
    write(trace, &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn every_event_has_its_line() {
    let text = "gpu-alloc-trace 1\n\
        # source = by hand\n# slots = 2\n# tickets = 1\n# streams = 0:0x0 1:0x2de5\n# pools = 1:0,4\n\
        # device_bytes = 1000\n# limit_bytes = 900\n# settings = expandable_segments:True\n\
        # note = two\\nlines\n# note = a \\\\ b\n# colour = blue\n\
        p create 1\np begin 1\np end 1\np no-split 1\np use-on-oom 1\na 0 1048576 0\na 1 5 1 p1\nu 0 1\nf 0 !0\nc 0\nf 1\n\
        k 0 12500\nw 1 0\ny 0\ny *\ne\ne p1\np release 1\nl 16106127360\nl -\ns max_split_size_mb:128\nt 3000\n\
        m iteration 41\nm iteration 41\nm \n";
    let trace = parse(text).unwrap();
    assert_eq!(trace.header.notes, ["two\nlines", "a \\ b"]);
    assert_eq!(trace.header.extra, [("colour".to_string(), "blue".to_string())]);
    assert_eq!(trace.header.streams, [0, 0x2de5]);
    assert_eq!((trace.header.slots, trace.header.tickets), (2, 1));
    assert_eq!(trace.texts, ["max_split_size_mb:128", "iteration 41", ""]);
    assert_eq!(trace.events[6], Event::Alloc { slot: 1, size: 5, stream: StreamId(1), pool: PoolId(1) });
    assert_eq!(trace.events[8], Event::Free { slot: 0, ticket: Some(0) });
    assert_eq!(to_text(&trace), text);
}

#[test]
fn allocations_have_labels() {
    let text = "gpu-alloc-trace 1\n# source = x\n# slots = 2\n# tickets = 0\n# streams = 0:0x0\n# pools = 1:0,1\n\
        # label = parameter h.0.attn\\nq\n# label = input ids\np create 1\na 0 1 0 @1\nf 0\na 0 2 0 p1 @0\na 1 3 0 @1\n";
    let trace = parse(text).unwrap();
    assert_eq!(trace.label_texts, ["parameter h.0.attn\nq", "input ids"]);
    assert_eq!(trace.labels, [1, 0, 1]);
    assert_eq!(to_text(&trace), text);
    for broken in [Trace { labels: vec![1, 0], ..trace.clone() }, Trace { labels: vec![1, 0, 2], ..trace.clone() }] {
        let why = write(&broken, &mut Vec::new()).unwrap_err();
        assert_eq!(why.kind(), std::io::ErrorKind::InvalidInput, "{why}");
        assert!(crate::check(&broken).is_err());
    }
}

#[test]
fn a_trace_in_pieces_is_the_same_text() {
    let text = "gpu-alloc-trace 1\n# source = x\n# slots = 1\n# tickets = 0\n# streams = 0:0x0\n# label = a b\n\
        m one\na 0 5 0 @0\nf 0\nm two\na 0 7 0 @0\n";
    let trace = parse(text).unwrap();
    let mut writer = Writer::new(&trace.header, &trace.label_texts, Vec::new()).unwrap();
    writer.events(&trace.events[..3], &trace.labels[..1], |_| Some("one")).unwrap();
    writer.events(&trace.events[3..4], &[], |_| Some("two")).unwrap();
    writer.events(&trace.events[4..], &trace.labels[1..], |_| None).unwrap();
    assert_eq!(String::from_utf8(writer.finish().unwrap()).unwrap(), text);
}

/// The example of the format's description is a trace, and it shows every event.
#[test]
fn the_documented_example_is_a_trace() {
    let page = include_str!("../../../docs/TRACE-FORMAT.md");
    let text = page.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let trace = parse(text).unwrap();
    assert_eq!(to_text(&trace), text);
    assert_eq!(trace.header.extra, []);
    let letters: std::collections::BTreeSet<u8> =
        text.lines().skip(1).map(|line| line.as_bytes()[0]).filter(|&first| first != b'#').collect();
    assert_eq!(letters, "acefklmpstuwy".bytes().collect());
}

#[test]
fn a_header_may_be_left_out() {
    let trace = parse("gpu-alloc-trace 1\r\na 0 5 2\r\n\np create 1\n# a comment\nf 0").unwrap();
    assert_eq!(trace.header.streams, [0, 1, 2]);
    assert_eq!(trace.header.pools, [(0, 1)]);
    assert_eq!((trace.header.slots, trace.events.len()), (1, 3));
    assert_eq!(parse(FIRST_LINE).unwrap().header.streams, [0]);
    assert_eq!(parse("gpu-alloc-trace 1\n# device_bytes = 0").unwrap().header.device_bytes, None);
}

#[test]
fn bad_lines_are_named() {
    for (lines, line, says) in [
        ("x 1", 2, "`x` is no event"),
        ("a 0 5 0\naa 1", 3, "`aa` is no event"),
        ("a 0", 2, "the size is missing"),
        ("a 0 5 0 1", 2, "`1`, where `p` and the pool or `@` and the label can stand"),
        ("a 0 5 0 @0 p0", 2, "`p0` is one field too many"),
        ("a 0 5 0 @", 2, "the label is missing"),
        ("a 0 5 0 @-1", 2, "the label `-1` is no number"),
        ("a 0 5 0 @4294967296", 2, "beyond 4,294,967,295"),
        ("a 0 5 0 @0", 2, "label 0, where the header has 0"),
        ("# label = input x\na 0 5 0 @1", 3, "label 1, where the header has 1"),
        ("a 0 5 0\n# label = input x\na 1 5 0 @0", 4, "a label, where allocations before have none"),
        ("# label = input x\na 0 5 0\na 1 5 0 @0", 4, "label all of them or none"),
        ("# label = input x\na 0 5 0 p0 @0\na 1 5 0", 4, "no label, where allocations before have one"),
        ("# label = a\\b", 2, "a `\\`"),
        ("a 0 5 0 p0 7", 2, "`7` is one field too many"),
        ("a 0 -5 0", 2, "the size `-5` is no number"),
        ("a 0 99999999999999999999 0", 2, "beyond 2^64 - 1"),
        ("a 4294967296 5 0", 2, "beyond 4,294,967,295"),
        ("a 4294967295 5 0", 2, "slots are numbered densely"),
        ("a 0 5 0\na 0 5 0", 3, "slot 0 is full"),
        ("f 0", 2, "slot 0 is empty"),
        ("a 0 5 0\nf 0 !x", 3, "the ticket `x` is no number"),
        ("a 0 5 0\nf 0 3", 3, "where `!` and the ticket can stand"),
        ("c 0", 2, "no free waits for ticket 0"),
        ("y 8192", 2, "streams are numbered densely"),
        ("y", 2, "the stream or `*` is missing"),
        ("p open 1", 2, "create, begin, end"),
        ("a 0 5 0 p1", 2, "`p create 1`"),
        ("l", 2, "the limit in bytes or `-` is missing"),
        ("m a\\b", 2, "a `\\`"),
        ("# slots = 1\na 0 5 0\na 1 5 0", 4, "the header says 1"),
        ("# slots = 4294967296", 2, "more than a trace can have"),
        ("# slots = 1\n# slots = 1", 3, "`slots` a second time"),
        ("# streams = 0:0x0 2:0x1", 2, "where `1:` and its value are expected"),
        ("# streams = 0:0x5 1:0x1", 2, "do not ascend"),
        ("# streams = 0:5", 2, "does not start with 0x"),
        ("# streams = 0:0x0\ny 1", 3, "stream 1, where the header says 1"),
        ("# pools = 1:4", 2, "no pair"),
        ("# pools = 1:0,4\np create 1\np create 2", 4, "pool 2, where the header says 1"),
        ("# device_bytes = many", 2, "`many` is no number"),
    ] {
        let (at, text) = problem(lines);
        assert_eq!(at, line, "{lines:?}: {text}");
        assert!(text.contains(says), "{lines:?}: {text}");
    }
}

#[test]
fn other_files_are_told_what_they_are() {
    for (bytes, says) in [
        (&b""[..], "an empty file"),
        (b"gpu-alloc-trace 2\n", "use a newer one"),
        (b"\x80\x04\x95", "a pickle"),
        (b"id,lower,upper,size\n", "not a trace"),
    ] {
        let text = read(bytes, "dir/x.trace").unwrap_err().to_string();
        assert!(text.starts_with("dir/x.trace: line 1 ") && text.contains(says), "{text}");
    }
    let long = [b"gpu-alloc-trace 1\nm ".as_slice(), &[b'x'; 300_000]].concat();
    assert!(read(long.as_slice(), "x").unwrap_err().to_string().contains("line 2 (`m xxx"));
}

#[test]
fn files_are_whole_or_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let trace = parse("gpu-alloc-trace 1\na 0 5 0\nm text\nf 0\n").unwrap();
    for name in ["x.trace", "x.trace.zst"] {
        let path = folder.path().join(name);
        save(&trace, &path).unwrap();
        assert_eq!(open(&path).unwrap(), trace);
    }
    let plain = fs::read(folder.path().join("x.trace")).unwrap();
    let packed = fs::read(folder.path().join("x.trace.zst")).unwrap();
    assert_eq!(plain, to_text(&trace).as_bytes());
    assert_eq!(packed[..4], [0x28, 0xb5, 0x2f, 0xfd]);

    // A trace that cannot be written leaves nothing, and what was there before stays.
    let broken = Trace { texts: Vec::new(), ..trace };
    let text = save(&broken, folder.path().join("x.trace")).unwrap_err().to_string();
    assert!(text.contains("x.trace: cannot write: text 0 does not exist"), "{text}");
    assert_eq!(fs::read(folder.path().join("x.trace")).unwrap(), plain);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    assert!(matches!(save(&broken, folder.path().join("none/x")), Err(TraceError::Write { .. })));
    assert!(matches!(open(folder.path().join("none")), Err(TraceError::Open { .. })));
}

#[test]
fn compressed_files_that_are_cut_are_errors() {
    let text = format!("{FIRST_LINE}\n{}", "a 0 5 0\nf 0\n".repeat(1000));
    let packed = zstd::encode_all(text.as_bytes(), 3).unwrap();
    assert_eq!(read(packed.as_slice(), "x").unwrap().events.len(), 2000);
    assert_eq!(
        read([packed.as_slice(), &zstd::encode_all(&b"a 0 5 0\n"[..], 3).unwrap()].concat().as_slice(), "x")
            .unwrap()
            .events
            .len(),
        2001
    );
    for len in 4..packed.len() {
        assert!(read(&packed[..len], "x").is_err(), "{len}");
    }
}

fn text() -> impl Strategy<Value = String> {
    "[a-z\\\\\n\r=:#!é]{0,12}"
}

/// Events that may or may not make sense; the test keeps those that do.
fn any_event() -> impl Strategy<Value = Event> {
    let stream = || (0..3u32).prop_map(StreamId);
    let pool = || (0..3u32).prop_map(PoolId);
    let op = prop::sample::select(vec![
        PoolOp::Create,
        PoolOp::Begin,
        PoolOp::End,
        PoolOp::Release,
        PoolOp::NoSplit,
        PoolOp::UseOnOom,
    ]);
    prop_oneof![
        4 => (0..6u32, any::<u64>(), stream(), pool())
            .prop_map(|(slot, size, stream, pool)| Event::Alloc { slot, size, stream, pool }),
        3 => (0..6u32, prop::option::of(0..4u32)).prop_map(|(slot, ticket)| Event::Free { slot, ticket }),
        1 => (0..4u32).prop_map(|ticket| Event::Done { ticket }),
        1 => (0..6u32, stream()).prop_map(|(slot, stream)| Event::Use { slot, stream }),
        1 => (stream(), any::<u64>()).prop_map(|(stream, ns)| Event::Work { stream, ns }),
        1 => (stream(), stream()).prop_map(|(stream, on)| Event::Wait { stream, on }),
        1 => prop::option::of(stream()).prop_map(|stream| Event::Sync { stream }),
        // `e p0` is another way to write `e`.
        1 => prop::option::of((1..3u32).prop_map(PoolId)).prop_map(|pool| Event::Empty { pool }),
        2 => (op, pool()).prop_map(|(op, pool)| Event::Pool { op, pool }),
        1 => prop::option::of(any::<u64>()).prop_map(|bytes| Event::Limit { bytes }),
        1 => any::<u64>().prop_map(|ns| Event::Host { ns }),
        1 => (0..3u32).prop_map(|text| Event::Settings { text }),
        1 => (0..3u32).prop_map(|text| Event::Mark { text }),
    ]
}

prop_compose! {
    /// A trace that makes sense, with its header as the reader makes it.
    fn any_trace()(
        events in prop::collection::vec(any_event(), 0..80),
        words in prop::collection::vec(text(), 3),
        source in text(),
        notes in prop::collection::vec(text(), 0..3),
        bytes in prop::option::of(1..=u64::MAX),
        raw in prop::collection::btree_set(any::<u64>(), 3),
        labels in prop::option::of(prop::collection::vec(0..3u32, 80)),
    ) -> Trace {
        let mut checker = Checker::new(Limits { pools: Some(2), ..Limits::default() });
        let mut trace = Trace::default();
        let mut numbers = std::collections::HashMap::new();
        for mut event in events {
            if checker.event(&event).is_err() {
                continue;
            }
            if let Event::Settings { text } | Event::Mark { text } = &mut event {
                let word = &words[*text as usize];
                *text = *numbers.entry(word.clone()).or_insert_with(|| {
                    trace.texts.push(word.clone());
                    trace.texts.len() as u32 - 1
                });
            }
            trace.events.push(event);
        }
        if let Some(labels) = labels {
            trace.labels = labels[..checker.allocations() as usize].to_vec();
            trace.label_texts = words.iter().map(|word| word.trim().to_string()).collect();
        }
        trace.header = Header {
            source: source.trim().to_string(),
            slots: checker.slots(),
            tickets: checker.tickets(),
            streams: raw.into_iter().collect(),
            pools: vec![(0, 3), (9, 0)],
            device_bytes: bytes,
            limit_bytes: bytes.map(|bytes| bytes / 2),
            settings: words[0].trim().to_string(),
            notes: notes.iter().map(|note| note.trim().to_string()).collect(),
            extra: vec![("key".into(), words[1].trim().to_string())],
        };
        trace
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(trace in any_trace()) {
        crate::check(&trace).unwrap();
        let text = to_text(&trace);
        let again = parse(&text).unwrap();
        prop_assert_eq!(&again, &trace);
        prop_assert_eq!(to_text(&again), text);
    }

    #[test]
    fn any_text_is_read_or_refused(lines in "(a|f|c|u|p create|e|m|#|# slots =|# streams =|# label =|x)?( [0-9a-z!@:=,-]{0,6}){0,4}(\n.{0,12})?") {
        let _ = parse(&format!("{FIRST_LINE}\n{lines}"));
        let _ = parse(&lines);
    }
}
