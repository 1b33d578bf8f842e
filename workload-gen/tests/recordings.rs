//! The real recordings: those in the crate, and the snapshots they were made from where these are at hand.

mod common;

use common::recordings;
use workload_gen::import::{Sidecar, import_file};
use workload_gen::snapshot::{Action, Snapshot};
use workload_gen::{Trace, check, embedded, format, stats};

fn text(trace: &Trace) -> Vec<u8> {
    let mut text = Vec::new();
    format::write(trace, &mut text).unwrap();
    text
}

#[test]
fn embedded_traces_are_sound() {
    let names: Vec<&str> = embedded().iter().map(|recording| recording.name).collect();
    assert!(names.is_sorted() && names.len() == 7, "{names:?}");
    for recording in embedded() {
        let trace = recording.trace().unwrap();
        check(&trace).unwrap();
        assert!(trace.header.source.contains(recording.name));
        assert_eq!(zstd::decode_all(recording.bytes).unwrap(), text(&trace));
    }
}

#[test]
fn embedded_traces_show_what_they_are_there_for() {
    let of = |name: &str| stats(&embedded().iter().find(|r| r.name == name).unwrap().trace().unwrap());
    let llama = of("llama_lora_ckpt.default");
    assert_eq!((llama.allocs, llama.frees, llama.blocks_at_end), (158_543, 158_541, 2));
    let multistream = of("multistream.default");
    assert_eq!((multistream.late_frees, multistream.late_frees_open, multistream.streams.len()), (2080, 52, 3));
    let cudagraph = of("cudagraph.default");
    assert_eq!((cudagraph.pools.len(), cudagraph.pools[0].pair), (1, (1, 0)));
    assert_eq!(of("fsdp_gpt2.default.rank1").streams.len(), 3);
}

#[test]
fn embedded_traces_can_be_made_again() {
    let Some(folder) = recordings() else { return };
    for recording in embedded() {
        let trace = import_file(folder.join(format!("{}.pickle.zst", recording.name)), None).unwrap();
        let same = text(&trace) == zstd::decode_all(recording.bytes).unwrap();
        assert!(same, "{}: run the example `import_traces` and look at the difference", recording.name);
    }
}

/// Every snapshot is read whole, and its trace asks for what PyTorch counted.
#[test]
fn all_snapshots_agree_with_their_statistics() {
    let Some(folder) = recordings() else { return };
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|suffix| suffix == "zst"));
    files.sort();
    assert!(files.len() >= 21);
    for path in files {
        let known = Sidecar::beside(&path).unwrap().unwrap().stats;
        let snapshot = Snapshot::open(&path).unwrap();
        let count = |action: Action| {
            snapshot.devices.iter().flat_map(|device| device.iter()).filter(|entry| entry.action == action).count()
                as i64
        };
        assert_eq!(count(Action::Alloc), known["allocation.all.allocated"], "{}", path.display());
        assert_eq!(count(Action::FreeRequested), known["allocation.all.freed"]);
        assert_eq!(count(Action::FreeCompleted), known["active.all.freed"]);
        assert_eq!(count(Action::Oom), known["num_ooms"]);
        assert_eq!(count(Action::SegmentAlloc) + count(Action::SegmentMap), known["num_device_alloc"]);
        assert_eq!(count(Action::SegmentFree) + count(Action::SegmentUnmap), known["num_device_free"]);

        let trace = import_file(&path, None).unwrap();
        check(&trace).unwrap();
        let stats = stats(&trace);
        let ooms = known["num_ooms"] as u64;
        assert_eq!(stats.allocs - ooms, known["allocation.all.allocated"] as u64);
        assert_eq!(stats.frees, known["allocation.all.freed"] as u64);
        assert_eq!(stats.late_frees_open, (known["active.all.current"] - known["allocation.all.current"]) as u64);
        assert_eq!(stats.blocks_at_end - ooms, known["allocation.all.current"] as u64);
        if ooms == 0 {
            assert_eq!(stats.requested_bytes, known["requested_bytes.all.allocated"] as u64);
            assert_eq!(stats.requested_peak_bytes, known["requested_bytes.all.peak"] as u64);
            assert_eq!(stats.blocks_peak, known["active.all.peak"] as u64);
        }
        assert!(trace.header.notes.iter().all(|note| !note.contains("lost")), "{:?}", trace.header.notes);
    }
}

#[test]
fn a_cut_recording_is_an_error() {
    let Some(folder) = recordings() else { return };
    let whole = zstd::decode_all(std::fs::File::open(folder.join("cudagraph.default.pickle.zst")).unwrap()).unwrap();
    for len in (0..whole.len()).step_by(1000) {
        assert!(Snapshot::read(&whole[..len], "cut").is_err(), "{len}");
    }
}
