//! Models that several cards train together.

mod common;

use common::jobs::{alike, generated, numbers, recording, requests, shapes};
use common::recordings;
use workload_gen::Event;

/// GPT-2 as the recordings' recipe has it.
fn fully_sharded(lengths: &[u64], ranks: u64, rank: u64) -> String {
    let list = lengths.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    format!(
        "train:gpt2,layers=16,hidden=1024,heads=16,positions=2048,batch=6,lengths=list({list}),steps={},shaping=alike,clip=yes,\
         zero=fsdp,ranks={ranks},rank={rank}",
        lengths.len()
    )
}

#[test]
fn a_fully_sharded_model_allocates_as_the_recorded_one_on_both_cards() {
    let Some(folder) = recordings() else { return };
    for rank in 0..2 {
        let recording = recording(&folder, &format!("fsdp_gpt2.default.rank{rank}"));
        let lengths = numbers(&shapes(&folder, &format!("fsdp_gpt2 rank {rank}")));
        let generated = generated(&fully_sharded(&lengths, 2, rank));
        assert!(requests(&recording).eq(requests(&generated)), "rank {rank}");
        let alike = alike(&recording, &generated);
        assert_eq!(alike.peak_bytes.excess(), 0.0, "rank {rank}");
        // Lifetimes count frees, and two of those change places after each forward pass.
        assert!(alike.lifetimes.distance < 0.015, "rank {rank}: {alike:?}");
    }
}

/// No buffer is recorded on a second stream: each is kept until a stream waits for its last reader.
#[test]
fn a_fully_sharded_model_frees_at_once() {
    let trace = generated(&fully_sharded(&[64, 32], 3, 1));
    assert!(!trace.events.iter().any(|event| matches!(event, Event::Use { .. })));
    assert!(trace.events.iter().any(|event| matches!(event, Event::Wait { .. })));
}

/// Rows that do not go evenly into the ranks leave less for the last, and padding for all.
#[test]
fn shards_are_whole_rows() {
    let weights = |ranks, rank| {
        let trace = generated(&fully_sharded(&[16], ranks, rank));
        let shards: Vec<u64> = requests(&trace).map(|(size, _)| size).skip(16 * 12 + 4).collect();
        (shards[16 * 12], shards.iter().filter(|&&size| size == shards[16 * 12]).count())
    };
    // 50,257 rows: 7180 for each of seven ranks, with three of padding in the last.
    assert_eq!(weights(7, 0).0, 7180 * 1024 * 4);
    assert_eq!(weights(7, 6).0, 7180 * 1024 * 4);
    // The shard, two states and the temporary of the optimizer; the last rank's are smaller.
    assert_eq!((weights(7, 0).1, weights(7, 6).1), (4, 1));
}
