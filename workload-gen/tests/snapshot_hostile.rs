//! Damaged and hostile snapshots: an error that says where and what to do, never a panic, never much memory.

mod common;

use common::*;
use proptest::prelude::*;
use workload_gen::check;
use workload_gen::import::{ImportOptions, import};
use workload_gen::snapshot::{Snapshot, SnapshotError};

const BASE: i64 = 0x7f00_0000_0000;

fn small() -> Vec<u8> {
    let mut entries = vec![entry("segment_alloc", BASE, 2 << 20, 0)];
    for n in 0..40 {
        entries.extend(alloc_and_free(BASE, 100 + 300 * n));
    }
    let segments = vec![segment(0, BASE, 0, vec![block(BASE, 2 << 20, "inactive")], 2 << 20)];
    pickle(&snapshot(segments, vec![entries.into()]), Style::Python(4))
}

fn error(bytes: &[u8]) -> SnapshotError {
    Snapshot::read(bytes, "dir/x.pickle").expect_err("this is no snapshot")
}

fn malformed(bytes: &[u8]) -> workload_gen::snapshot::Malformed {
    match error(bytes) {
        SnapshotError::Malformed(malformed) => *malformed,
        other => panic!("{other}"),
    }
}

#[test]
fn every_cut_is_an_error() {
    let whole = small();
    for len in 0..whole.len() {
        let text = error(&whole[..len]).to_string();
        assert!(text.starts_with("dir/x.pickle: byte "), "{text}");
    }
}

#[test]
fn a_global_is_refused_by_name_and_place() {
    for (bytes, opcode, offset) in [
        (&b"\x80\x02cposix\nsystem\nX\x02\0\0\0ls\x85R."[..], "GLOBAL", 2),
        (b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93.", "STACK_GLOBAL", 19),
        (b"\x80\x04}\x94N\x85R.", "REDUCE", 6),
        (b"\x80\x04}}b.", "BUILD", 4),
        (b"\x80\x02(iposix\nsystem\n.", "INST", 3),
        (b"\x80\x02(o.", "OBJ", 3),
        (b"\x80\x02))\x81.", "NEWOBJ", 4),
        (b"\x80\x04)))\x92.", "NEWOBJ_EX", 5),
        (b"\x80\x02\x82\x01.", "EXT1", 2),
        (b"\x80\x02\x83\x01\0.", "EXT2", 2),
        (b"\x80\x02\x84\x01\0\0\0.", "EXT4", 2),
        (b"\x80\x02Pid\n.", "PERSID", 2),
        (b"\x80\x02NQ.", "BINPERSID", 3),
        (b"\x80\x05\x97.", "NEXT_BUFFER", 2),
    ] {
        let found = malformed(bytes);
        assert_eq!((found.opcode, found.offset), (Some(opcode), offset));
        assert!(found.problem.contains("nothing was executed"), "{found}");
        assert_eq!(found.bytes, bytes[offset as usize..bytes.len().min(offset as usize + 16)]);
    }
    // At the end of a real file too.
    let mut bytes = small();
    let at = bytes.len() as u64 - 1;
    bytes.splice(at as usize.., *b"cos\nsystem\n0.");
    assert_eq!((malformed(&bytes).opcode, malformed(&bytes).offset), (Some("GLOBAL"), at));
}

#[test]
fn what_is_no_pickle_is_told_what_it_is() {
    for (bytes, says) in [
        (&b""[..], "empty"),
        (b"\x80", "cut short"),
        (b"\x80\x01}.", "protocol 1"),
        (b"\x80\x06}.", "protocol 6"),
        (b"(dp0\n.", "no pickle"),
        (b"<!DOCTYPE html>", "HTML"),
        (b"PK\x03\x04....", "zip archive"),
        (b"\xfd7zXZ\0....", "xz -d"),
        (b"BZh9....", "bunzip2"),
        (b"{\"segments\": []}", "no pickle"),
    ] {
        let text = error(bytes).to_string();
        assert!(text.starts_with("dir/x.pickle: ") && text.contains(says), "{text}");
    }
}

#[test]
fn other_pickles_are_no_snapshots() {
    for value in [Py::None, 5.into(), dict([("a", 1.into())]), vec![1.into(), 2.into()].into(), Py::Dict(vec![])] {
        assert!(error(&pickle(&value, Style::Python(4))).to_string().contains("_dump_snapshot"));
    }
    let strange = [
        dict([("device_traces", 5.into())]),
        dict([("device_traces", vec![entry("alloc", 1, 2, 3)].into())]),
        dict([("segments", dict([]))]),
        dict([("segments", vec![entry("alloc", 1, 2, 3)].into())]),
        dict([("device_traces", vec![vec![entry("alloc", 1, 2, 3), Py::None].into()].into())]),
        dict([("device_traces", vec![vec![dict([("action", "alloc".into())])].into()].into())]),
        dict([("device_traces", vec![vec![entry("alloc", 1, -2, 3)].into()].into())]),
        dict([("segments", vec![segment(0, -1, 0, vec![], 5)].into())]),
        dict([("segments", vec![segment(0, 1, 0, vec![block(1, 512, "lost")], 5)].into())]),
        dict([("segments", vec![dict([("total_size", 5.into())])].into())]),
        dict([("x", entry("alloc", 1, 2, 3)), ("device_traces", Py::List(vec![]))]),
    ];
    for value in strange {
        for style in STYLES {
            let bytes = pickle(&value, style);
            assert!(matches!(error(&bytes), SnapshotError::Malformed(_)), "{value:?}");
        }
    }
}

#[test]
fn bytes_after_the_end_are_refused() {
    let one = small();
    let two = [one.as_slice(), one.as_slice()].concat();
    let found = malformed(&two);
    assert_eq!((found.offset, found.opcode), (one.len() as u64, None));
    let found = malformed(&[one.as_slice(), b"\n"].concat());
    assert!(found.problem.contains("after the end"), "{found}");
    let found = malformed(&zstd::encode_all(two.as_slice(), 1).unwrap());
    assert!(found.compressed && found.to_string().contains("of the decompressed stream"), "{found}");
}

#[test]
fn broken_compression_is_a_read_error() {
    let plain = small();
    let zstd = zstd::encode_all(plain.as_slice(), 1).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, &plain).unwrap();
    let gzip = gzip.finish().unwrap();
    for whole in [zstd, gzip] {
        for broken in [
            whole[..whole.len() - 9].to_vec(),
            whole[..whole.len() / 2].to_vec(),
            whole[..6].to_vec(),
            [&whole[..8], &[0xff; 30], &whole[38..]].concat(),
            [whole.as_slice(), b"garbage"].concat(),
        ] {
            let text = error(&broken).to_string();
            assert!(text.starts_with("dir/x.pickle: ") && text.contains("damaged or cut short"), "{text}");
        }
    }
}

#[test]
fn lengths_are_not_believed() {
    let huge = u64::MAX.to_le_bytes();
    let cases: Vec<Vec<u8>> = vec![
        [b"\x80\x04\x8d", &huge[..], b"x"].concat(),
        [b"\x80\x04\x8e", &huge[..], b"x"].concat(),
        [b"\x80\x05\x96", &huge[..], b"x"].concat(),
        [b"\x80\x02X", &huge[..4], b"x"].concat(),
        [b"\x80\x04\x95", &huge[..], b"}"].concat(),
        [b"\x80\x02}r", &huge[..4], b"."].concat(),
        [b"\x80\x02}r", &[0, 0, 0, 1][..], b"."].concat(),
        [b"\x80\x02j", &huge[..4], b"."].concat(),
        b"\x80\x02\x8a\xff".to_vec(),
        [&b"\x80\x02\x8a\x09"[..], &[0; 9], b"."].concat(),
        b"\x80\x02\x8b\xff\xff\xff\x7f".to_vec(),
    ];
    for bytes in cases {
        assert!(matches!(error(&bytes), SnapshotError::Malformed(_)));
    }
}

#[test]
fn depth_and_width_have_limits() {
    let text = error(&[b"\x80\x02".as_slice(), &[b'('; 5_000_000]].concat()).to_string();
    assert!(text.contains("more than 4194304 values"), "{text}");
    // Nesting is only values on the stack: deep is no recursion.
    let deep = [b"\x80\x02".as_slice(), &[b']'; 1_000_000], &[b'a'; 999_999], b"."].concat();
    assert!(error(&deep).to_string().contains("neither a dictionary"), "{}", error(&deep));
    let mut streams = Vec::new();
    for n in 0..5000 {
        streams.push(entry("alloc", 512 * n, 512, n));
    }
    let text = error(&pickle(&snapshot(vec![], vec![streams.into()]), Style::Python(4))).to_string();
    assert!(text.contains("4000 streams"), "{text}");
}

#[test]
fn what_is_kept_for_a_few_bytes_has_limits() {
    let many = 2_000_000;
    let cases = [
        ([&b"\x80\x04K\x07"[..], &[0x94; 2_000_000]].concat(), "more memo entries"),
        (
            [&b"\x80\x04]("[..], &b"\x8c\x05xxxxxG\0\0\0\0\0\0\0\0\x94".repeat(many / 2 + 100_000)].concat(),
            "numbers, pairs and texts in the memo",
        ),
        (
            [
                &b"\x80\x04](}\x94(\x8c\x06action\x8c\x05alloc\x8c\x04addrK\x01\x8c\x04sizeK\x01\x8c\x06streamK\x01u"[..],
                &b"h\0".repeat(many),
            ]
            .concat(),
            "references to trace entries",
        ),
    ];
    for (bytes, says) in cases {
        let text = error(&bytes).to_string();
        assert!(text.contains(says), "{text}");
    }
}

#[test]
fn a_trace_is_told_apart_from_a_snapshot() {
    let text = error(b"gpu-alloc-trace 1\n").to_string();
    assert!(text.contains("this is a trace") && text.contains("imported from"), "{text}");
}

#[test]
fn the_stack_is_never_read_below_its_end() {
    for op in 0..=255u8 {
        for before in [&b""[..], b"}", b"(", b"](", b"}(", b"NNN", b"(N", b"}N", b"]N"] {
            let bytes = [b"\x80\x04", before, &[op, 0, 0, 0, 0, 0, 0, 0, 0], b"."].concat();
            let _ = Snapshot::read(bytes.as_slice(), "x");
        }
    }
}

/// Opcodes, and pieces of entries, blocks and segments.
const PIECES: &[&[u8]] = &[
    b"(",
    b"}",
    b"]",
    b")",
    b"a",
    b"e",
    b"s",
    b"u",
    b"t",
    b"\x85",
    b"\x86",
    b"\x87",
    b"N",
    b"\x88",
    b"K\x07",
    b"J\xff\xff\xff\xff",
    b"\x8a\x01\x80",
    b"G\0\0\0\0\0\0\0\0",
    b"\x94",
    b"h\x00",
    b"h\x01",
    b"h\x05",
    b"q\x00",
    b"q\x01",
    b"\x8c\x06action",
    b"\x8c\x05alloc",
    b"\x8c\x04addr",
    b"\x8c\x04size",
    b"\x8c\x06stream",
    b"\x8c\x05state",
    b"\x8c\x08inactive",
    b"\x8c\x06blocks",
    b"\x8c\x07address",
    b"\x8c\x0atotal_size",
    b"\x8c\x08segments",
    b"\x8c\x0ddevice_traces",
    b"\x8c\x17PYTORCH_CUDA_ALLOC_CONF",
    b"\x8c\x03abc",
    b"}\x94(\x8c\x06action\x8c\x05alloc\x8c\x04addrK\x01\x8c\x04sizeK\x01\x8c\x06streamK\x01u",
    b"}(\x8c\x05state\x8c\x08inactive\x8c\x04sizeK\x01u",
    b"}(\x8c\x07addressK\x01\x8c\x0atotal_sizeK\x01u",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Any damage to a snapshot gives an error, or a snapshot that gives an error or a sound trace.
    #[test]
    fn damage_never_panics(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = small();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(snapshot) = Snapshot::read(bytes.as_slice(), "x")
            && let Ok(trace) = import(snapshot, &ImportOptions::default())
        {
            prop_assert_eq!(check(&trace), Ok(()));
        }
    }

    /// Any sequence of known opcodes gives a snapshot or an error.
    #[test]
    fn opcodes_in_any_order_never_panic(ops in prop::collection::vec(prop::sample::select(PIECES), 0..60)) {
        let bytes = [b"\x80\x04", ops.concat().as_slice(), b"."].concat();
        let _ = Snapshot::read(bytes.as_slice(), "x");
    }
}
