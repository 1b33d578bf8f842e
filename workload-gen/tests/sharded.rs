//! Models that several cards train together.

mod common;

use common::jobs::{alike, generated, numbers, recording, requests, shapes};
use common::recordings;
use workload_gen::spec::Spec;
use workload_gen::{Event, Trace};

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

/// A small model on four cards.
fn of_four(more: &str) -> Trace {
    generated(&format!("train:llama-2-7b,layers=4,hidden=512,vocab=4000,batch=2,lengths=64,steps=3,ranks=4{more}"))
}

/// Bytes of all allocations whose label begins with `prefix`.
fn bytes(trace: &Trace, prefix: &str) -> u64 {
    let labels = trace.labels.iter().map(|&label| &trace.label_texts[label as usize]);
    let sizes = requests(trace).map(|(size, _)| size);
    labels.zip(sizes).filter(|(label, _)| label.starts_with(prefix)).map(|(_, size)| size).sum()
}

/// The most bytes that live at a time, and those that live at the end.
fn live(trace: &Trace) -> (u64, u64) {
    let mut sizes = vec![0; trace.header.slots as usize];
    let (mut peak, mut live) = (0, 0);
    for event in &trace.events {
        match *event {
            Event::Alloc { slot, size, .. } => {
                sizes[slot as usize] = size;
                live += size;
                peak = peak.max(live);
            }
            Event::Free { slot, .. } => live -= sizes[slot as usize],
            _ => {}
        }
    }
    (peak, live)
}

/// Weights of that model: a table and a head, and of each layer four matrices of attention, three of the MLP and two norms.
const WEIGHTS: u64 = 2 * 4000 * 512 + 4 * (4 * 512 * 512 + 3 * 512 * 1376 + 2 * 512) + 512;

#[test]
fn a_rank_has_its_share_of_the_states() {
    // A rank updates a quarter in 32 bits, and has two moments of it.
    for stage in ["1", "2"] {
        let trace = of_four(&format!(",zero={stage}"));
        assert_eq!(bytes(&trace, "optimizer adamw"), 3 * 4 * WEIGHTS.next_multiple_of(8) / 4, "stage {stage}");
    }
    let trace = of_four(",zero=3");
    assert_eq!(bytes(&trace, "optimizer adamw"), 3 * 4 * WEIGHTS / 4);
    for offload in ["1,offload=optimizer", "2,offload=optimizer", "3,offload=optimizer", "3,offload=all"] {
        assert_eq!(bytes(&of_four(&format!(",zero={offload}")), "optimizer"), 0, "stage {offload}");
    }
}

/// What lives between steps gets less from stage to stage, and with what is kept on the host.
#[test]
fn each_stage_keeps_less() {
    let kept = |more: &str| {
        let bucket = 2 * 500_000_000;
        live(&of_four(more)).1 - if more.contains("zero=3") { bucket } else { 0 }
    };
    let lines = [",zero=1", ",zero=3", ",zero=3,offload=optimizer", ",zero=3,offload=all"];
    let found = lines.map(kept);
    assert!(found.is_sorted_by(|before, after| before > after), "{found:?}");
    assert!(kept("") > found[0], "replicas have all states");
}

/// DeepSpeed 0.19 keeps frozen weights whole that a recomputed layer has used until the backward pass is over, earlier releases do not. As
/// many are whole then as there are; else a billion elements, those that are being fetched, and the table and the head.
#[test]
fn frozen_weights_of_recomputed_layers_stay_with_the_newer_deepspeed() {
    let peak = |release: &str| {
        let shape = "train:llama-2-7b,batch=1,lengths=64,steps=3,ranks=8";
        live(&generated(&format!("{shape},zero=3,recompute=full,lora=8,deepspeed={release}"))).0
    };
    let layers = 2 * 32 * (4 * 4096 * 4096 + 3 * 4096 * 11_008);
    let more = peak("0.19") - peak("0.18");
    assert!((layers - (3 << 30)..layers).contains(&more), "{more} bytes more, the layers have {layers}");
}

/// Weights come and go on a stream of their own, and what goes waits for the stream that used it.
#[test]
fn gathered_weights_are_recorded_on_the_stream_that_uses_them() {
    let uses = |trace: &Trace| trace.events.iter().filter(|event| matches!(event, Event::Use { .. })).count();
    let (overlapped, plain) = (of_four(",zero=3"), of_four(",zero=3,overlap=no"));
    assert!(uses(&overlapped) > 100 && uses(&plain) == 0);
    let streams = |trace: &Trace| requests(trace).map(|(_, stream)| stream).max();
    assert_eq!((streams(&overlapped), streams(&plain)), (Some(2), Some(0)));
}

/// In the first pass, which records the order of modules, a weight goes when its module has run and comes again for the backward pass. After
/// that a model as small as this one stays whole from the forward to the backward pass.
#[test]
fn a_weight_stays_where_it_is_used_again_soon() {
    let trace = of_four(",zero=3");
    let mut gathered = Vec::new();
    let mut labels = trace.labels.iter();
    for event in &trace.events {
        match *event {
            Event::Mark { .. } => gathered.push(0),
            Event::Alloc { stream, .. } => {
                let label = &trace.label_texts[*labels.next().expect("each allocation has a label") as usize];
                if let Some(count) = gathered.last_mut().filter(|_| stream.0 == 1 && label.contains("mlp.up_proj")) {
                    *count += 1;
                }
            }
            _ => {}
        }
    }
    // Four layers, forward and backward.
    assert_eq!(gathered, [8, 4, 4]);
}

/// Allocations of a role and name, in order.
fn sizes(trace: &Trace, label: &str) -> Vec<u64> {
    let labels = trace.labels.iter().map(|&label| &trace.label_texts[label as usize]);
    labels.zip(requests(trace)).filter(|(found, _)| *found == label).map(|(_, (size, _))| size).collect()
}

/// The ranks of that model look whether they have the same weights, agree on them, and have one bucket for all gradients. The second pass
/// has two, in the order in which gradients came: the head's is full, and everything else fits into another.
#[test]
fn replicas_have_buckets_for_all_gradients() {
    const HEAD: u64 = 4000 * 512;
    let (matrices, vectors) = (2 + 4 * 7, 4 * 2 + 1);
    let numbers = [8, 8, 8, 8, 8, 4 * 8, 2 * 8 * (2 * matrices + vectors)];
    let buckets = [2 * WEIGHTS, 2 * WEIGHTS, 4 * (matrices + vectors + 1), 2 * 4, 2 * HEAD, 2 * (WEIGHTS - HEAD)];
    assert_eq!(sizes(&of_four(""), "communication ddp"), [&numbers[..], &buckets[..]].concat());
    assert!(bytes(&generated("train:llama-2-7b,layers=1,hidden=64,steps=1"), "communication") == 0);
}

/// The only bucket of the first pass goes as the first of the others is sent, which is when the head has its gradient again.
#[test]
fn the_first_bucket_outlives_a_forward_pass() {
    let trace = of_four("");
    let mut labels = trace.labels.iter().map(|&label| trace.label_texts[label as usize].as_str());
    let (mut last, mut of_slot) = ("", vec![("", 0); trace.header.slots as usize]);
    let mut ends = Vec::new();
    for event in &trace.events {
        match *event {
            Event::Alloc { slot, size, .. } => {
                last = labels.next().expect("each allocation has a label");
                of_slot[slot as usize] = (last, size);
            }
            Event::Free { slot, .. } if of_slot[slot as usize] == ("communication ddp", 2 * WEIGHTS) => ends.push(last),
            _ => {}
        }
    }
    assert_eq!(ends, ["communication ddp", "gradient lm_head"]);
}

/// The first stage has a bucket from the first gradient to the last of several backward passes, the second has one in each.
#[test]
fn stages_have_buckets_for_as_long_as_gradients_come() {
    let buckets = |more: &str| {
        sizes(&of_four(more), "communication gradients").iter().filter(|&&size| size == 1_000_000_000).count()
    };
    assert_eq!([",zero=1", ",zero=2"].map(buckets), [3, 3]);
    assert_eq!([",zero=1,accumulate=3", ",zero=2,accumulate=3"].map(buckets), [1, 3]);
}

/// Whether a gradient is finite takes two extremes, of which each takes four more numbers, and two for the answer; its norm takes the norm and
/// a copy in 64 bits. A rank whose part is of many small weights does more of that than one with the table of embeddings.
#[test]
fn a_rank_checks_each_gradient_of_its_part() {
    let count = |rank: u64| {
        let line =
            "train:gpt2,layers=2,hidden=32,heads=4,vocab=400,positions=64,batch=2,lengths=16,steps=2,zero=1,ranks=2";
        let trace = generated(&format!("{line},rank={rank}"));
        sizes(&trace, "temporary gradients").len()
    };
    // The first rank's 20,160 elements end in the eleventh of 28 weights.
    assert_eq!(count(1) - count(0), 2 * (18 - 11) * (2 * 5 + 2 + 2));
}

#[test]
fn what_does_not_go_together_is_said() {
    for (line, why) in [
        ("train:gpt2,offload=optimizer", "offload=optimizer needs zero=1, zero=2 or zero=3; this is zero=0"),
        ("train:gpt2,zero=2,offload=all", "offload=all needs zero=3; this is zero=2"),
        ("train:gpt2,zero=3,ranks=4,rank=4", "rank=4 is none of ranks=4"),
        ("train:llama-2-7b,zero=1,pp=2", "zero does not go with pp"),
        ("train:gpt2,zero=4", "zero"),
        ("train:gpt2,zero=2,ranks=2,overlap=no", "overlap=no changes nothing without zero=3"),
        (
            "train:gpt2,zero=fsdp,ranks=2,deepspeed=0.18",
            "deepspeed=0.18 changes nothing without zero=1, zero=2 or zero=3",
        ),
        ("train:llama-2-7b,experts=loop", "experts=loop changes nothing without a model that has experts"),
        ("train:mixtral-8x7b,skew=1", "skew=1 changes nothing without a model whose experts run one after another"),
        ("train:gpt2,steps=2,accumulate=3", "steps=2 batches are fewer than accumulate=3"),
        ("train:llama-2-7b,hidden=33,heads=11", "hidden=33 makes each of heads=11 3 elements wide"),
        ("train:gpt2,eval-batch=4", "eval-batch=4 changes nothing without evals"),
        ("train:gpt2,leak=graph", "there are none without evals"),
    ] {
        let error = Spec::parse(line).map(drop).expect_err(line).to_string();
        assert!(error.contains(why), "{line}: {error}");
    }
}
