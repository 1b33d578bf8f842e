//! Every layout that a snapshot can have gives the same snapshot.

mod common;

use common::*;
use std::io::Write;
use std::rc::Rc;
use workload_gen::snapshot::{Action, BlockState, Entry, Snapshot};

fn read(bytes: &[u8]) -> Snapshot {
    Snapshot::read(bytes, "test").unwrap_or_else(|error| panic!("{error}"))
}

const BASE: i64 = 0x7f00_0000_0000;

/// A history that uses every action, with enough entries for several batches.
fn history() -> Vec<Py> {
    let mut entries = vec![entry("segment_alloc", BASE, 2 << 20, 0)];
    for n in 0..1500 {
        entries.extend(alloc_and_free(BASE + 512 * (n % 7), 100 + n));
    }
    entries.extend([
        entry("segment_map", BASE + (4 << 20), 20 << 20, 0x2de5_0010),
        entry("alloc", BASE + (4 << 20), 3_000_000_000, 0x2de5_0010),
        entry("segment_unmap", BASE + (4 << 20), 20 << 20, 0x2de5_0010),
        entry("segment_free", BASE, 2 << 20, 0),
        entry("oom", 123_456, 512, -1),
        entry("snapshot", 0, 512, 0),
    ]);
    entries
}

fn whole() -> Py {
    let blocks = vec![block(BASE, 512, "active_allocated"), block(BASE + 512, 1024, "active_pending_free")];
    let segments =
        vec![segment(0, BASE, 0, blocks, 1536), segment(1, BASE, 3, vec![block(BASE, 512, "inactive")], 512)];
    snapshot(segments, vec![Py::List(vec![]), history().into(), Py::List(vec![])])
}

#[test]
fn all_protocols_say_the_same() {
    let first = read(&pickle(&whole(), Style::Python(4)));
    for style in STYLES {
        assert_eq!(read(&pickle(&whole(), style)), first, "{style:?}");
    }
}

#[test]
fn everything_arrives() {
    let snapshot = read(&pickle(&whole(), Style::Python(4)));
    assert_eq!(snapshot.devices.iter().map(|device| device.len()).collect::<Vec<_>>(), [0, 4507, 0]);
    assert_eq!(snapshot.streams, [0, 0x2de5_0010, u64::MAX]);
    let history = &snapshot.devices[1];
    let at = |number: usize| *history.get(number).unwrap();
    let time_us = 1_795_967_024_067_048;
    assert_eq!(at(0), Entry { addr: BASE as u64, size: 2 << 20, time_us, stream: 0, action: Action::SegmentAlloc });
    assert_eq!(at(4500).action, Action::FreeCompleted);
    assert_eq!(at(4500).size, 1599);
    assert_eq!((at(4502).action, at(4502).size, at(4502).stream), (Action::Alloc, 3_000_000_000, 1));
    assert_eq!((at(4505).action, at(4505).addr, at(4505).size), (Action::Oom, 123_456, 512));
    assert_eq!(at(4506).action, Action::Snapshot);
    assert_eq!(snapshot.stream(&at(4505)), u64::MAX);

    let [first, second] = snapshot.segments.as_slice() else { panic!("{:?}", snapshot.segments) };
    assert_eq!((first.device, first.address, first.total_size, first.pool), (0, BASE as u64, 1536, (0, 0)));
    assert_eq!((second.device, second.large, second.expandable, second.pool), (1, true, false, (3, 0)));
    assert_eq!(first.blocks[1].state, BlockState::PendingFree);
    assert_eq!((first.blocks[1].address, first.blocks[1].requested_size), (BASE as u64 + 512, 1012));

    assert_eq!(snapshot.settings.conf, "max_split_size_mb:128");
    assert_eq!(snapshot.settings.max_split_size, Some(-1));
    assert_eq!(snapshot.settings.garbage_collection_threshold, Some(0.5));
    assert_eq!(snapshot.settings.expandable_segments, Some(false));
}

#[test]
fn compressed_files_are_read_whole() {
    let plain = pickle(&whole(), Style::Python(4));
    let expected = read(&plain);
    let (head, tail) = plain.split_at(plain.len() / 3);
    let gzip = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let zstd = |bytes: &[u8]| zstd::encode_all(bytes, 1).unwrap();
    assert_eq!(read(&gzip(&plain)), expected);
    assert_eq!(read(&[gzip(head), gzip(tail)].concat()), expected);
    assert_eq!(read(&zstd(&plain)), expected);
    assert_eq!(read(&[zstd(head), zstd(tail)].concat()), expected);
    let skippable = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
    assert_eq!(read(&[&skippable, zstd(&plain).as_slice()].concat()), expected);
}

#[test]
fn a_reader_may_give_one_byte_at_a_time() {
    struct Drip<'a>(&'a [u8]);
    impl std::io::Read for Drip<'_> {
        fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
            let len = self.0.len().min(buf.len()).min(1);
            buf[..len].copy_from_slice(&self.0[..len]);
            self.0 = &self.0[len..];
            Ok(len)
        }
    }
    let plain = pickle(&whole(), Style::Python(4));
    assert_eq!(Snapshot::read(Drip(&plain), "test").unwrap(), read(&plain));
}

#[test]
fn keys_may_be_missing_unknown_or_in_another_order() {
    let entry = dict([
        ("new_key", Py::List(vec![dict([("a", Py::None)]), Py::Tuple(vec![1.into(), 2.into(), 3.into(), 4.into()])])),
        ("stream", 7.into()),
        ("size", 512.into()),
        ("action", "alloc".into()),
        ("another", Py::Float(1.5)),
        ("addr", BASE.into()),
    ]);
    let bare =
        dict([("later", "x".repeat(300_000).as_str().into()), ("device_traces", vec![vec![entry].into()].into())]);
    for style in STYLES {
        let snapshot = read(&pickle(&bare, style));
        let expected = Entry { addr: BASE as u64, size: 512, time_us: 0, stream: 0, action: Action::Alloc };
        assert_eq!(snapshot.devices[0].get(0), Some(&expected), "{style:?}");
        assert_eq!(snapshot.streams, [7]);
        assert!(snapshot.segments.is_empty());
        assert_eq!(snapshot.settings, Default::default());
    }
}

#[test]
fn entries_may_carry_stack_frames() {
    let frame = Rc::new(dict([("name", "forward".into()), ("filename", "model.py".into()), ("line", 12.into())]));
    let frames = Rc::new(Py::List(vec![Py::Shared(frame.clone()), Py::Shared(frame)]));
    let entries: Vec<Py> = (0..2500)
        .map(|n| {
            let Py::Dict(mut pairs) = entry("alloc", BASE + 512 * n, 512, 0) else { unreachable!() };
            if n % 3 != 0 {
                pairs.push(("frames".into(), Py::Shared(frames.clone())));
            }
            if n % 500 == 1 {
                pairs.push(("frames".into(), Py::List(vec![dict([("name", format!("f{n}").as_str().into())])])));
                pairs.push(("forward_frames".into(), Py::List(vec!["a".into(), "b".into()])));
            }
            Py::Dict(pairs)
        })
        .collect();
    for style in STYLES {
        let snapshot = read(&pickle(&snapshot(vec![], vec![entries.clone().into()]), style));
        assert_eq!(snapshot.devices[0].len(), 2500);
        assert!(
            snapshot.devices[0].iter().enumerate().all(|(n, e)| e.addr == (BASE as u64) + 512 * n as u64),
            "{style:?}"
        );
    }
}

#[test]
fn entries_may_be_shared_objects() {
    // What `history * 3` makes: the second and third time are references.
    let own: Vec<Py> = (0..700).map(|n| Py::Shared(Rc::new(entry("alloc", BASE + 512 * n, n, 0)))).collect();
    let mut repeated: Vec<Py> = own.iter().chain(&own).cloned().collect();
    repeated.push(Py::Shared(Rc::new(entry("oom", 1, 2, 0))));
    repeated.extend(own.iter().rev().cloned());
    repeated.push(repeated[1400].clone());
    let sizes: Vec<u64> = (0..700).chain(0..700).chain([2]).chain((0..700).rev()).chain([2]).collect();
    for style in [Style::Python(2), Style::Python(4)] {
        let devices = vec![own[..3].to_vec().into(), repeated.clone().into()];
        let snapshot = read(&pickle(&snapshot(vec![], devices), style));
        assert_eq!(snapshot.devices[0].len(), 3);
        assert!(snapshot.devices[1].iter().map(|e| e.size).eq(sizes.iter().copied()), "{style:?}");
    }
}

#[test]
fn unknown_actions_are_kept_and_named() {
    let entries = vec![entry("user_defined", 1, 2, 0), entry("alloc", BASE, 512, 0), entry("user_defined", 1, 2, 0)];
    let snapshot = read(&pickle(&snapshot(vec![], vec![entries.into()]), Style::Python(4)));
    let actions: Vec<Action> = snapshot.devices[0].iter().map(|e| e.action).collect();
    assert_eq!(actions, [Action::Unknown, Action::Alloc, Action::Unknown]);
    assert_eq!(snapshot.unknown_actions, ["user_defined"]);
}

#[test]
fn a_list_of_segments_is_an_old_snapshot() {
    // Versions before histories of their own: no addresses of blocks, a `history` in each.
    let block = |size: i64, state: &str| {
        let past = dict([("addr", 1.into()), ("real_size", (size - 1).into()), ("frames", Py::List(vec![]))]);
        dict([("size", size.into()), ("state", state.into()), ("history", vec![past].into())])
    };
    let segment = dict([
        ("device", 1.into()),
        ("address", BASE.into()),
        ("total_size", 2048.into()),
        ("stream", 5.into()),
        ("segment_type", "small".into()),
        ("blocks", vec![block(512, "active_allocated"), block(1536, "inactive")].into()),
    ]);
    for style in STYLES {
        let snapshot = read(&pickle(&vec![segment.clone()].into(), style));
        assert!(snapshot.devices.is_empty());
        let [segment] = snapshot.segments.as_slice() else { panic!("{:?}", snapshot.segments) };
        assert_eq!((segment.stream, segment.large, segment.pool), (5, false, (0, 0)));
        assert_eq!(segment.blocks[1].address, BASE as u64 + 512);
        assert_eq!(segment.blocks[1].requested_size, 1536);
    }
}
