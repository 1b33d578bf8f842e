//! What a server allocates, and when it goes.

use crate::run::{Block, Run, run};
use std::collections::BTreeMap;
use workload_gen::spec::Spec;
use workload_gen::{Event, PoolOp};

/// A model of 4 layers, width 256, 8 heads of 32 and 2 for keys and values, in 16 bits.
const SMALL: &str =
    "serve:layers=4,hidden=256,heads=8,kv-heads=2,ffn=512,vocab=1000,device=1GiB,max-length=512,max-tokens=256";

fn small(rest: &str) -> Run {
    run(&format!("{SMALL},{rest}"))
}

fn of_role<'a>(run: &'a Run, role: &'a str) -> impl Iterator<Item = &'a Block> {
    run.blocks.iter().filter(move |block| block.role() == role)
}

fn iteration(run: &Run, number: u32) -> usize {
    run.marks(&format!("iteration {number}"))[0]
}

/// The counts of parameters are public.
#[test]
fn the_weights_are_the_models() {
    let weights = |line: &str| -> u64 { of_role(&run(line), "parameter").map(|block| block.size).sum() };
    assert_eq!(weights("serve:steps=1"), 2 * 8_030_261_248);
    assert_eq!(weights("serve:llama-2-7b,steps=1"), 2 * 6_738_415_616);
    let llama_70 = "serve:llama-2-70b,steps=1,device=300GiB";
    let count = 68_976_648_192;
    assert_eq!(weights(llama_70), 2 * count);
    // All matrices are split, norms are not.
    assert_eq!(weights(&format!("{llama_70},tp=8")), 2 * (count - 161 * 8192) / 8 + 2 * 161 * 8192);
    // Matrices of layers in four bits, the rest as it was.
    let matrices = 80 * (8192 * 10240 + 8192 * 8192 + 3 * 8192 * 28672);
    assert_eq!(weights(&format!("{llama_70},weight-bits=4")), 2 * (count - matrices) + matrices / 2);
}

#[test]
fn weights_stay_and_everything_else_of_a_pass_goes() {
    let run = small("steps=60,pages=demand,arrivals=list(1,0),prompt=uniform(10,200),output=5");
    assert!(of_role(&run, "parameter").all(|block| block.died.is_none()));
    for role in ["activation", "temporary", "input"] {
        assert!(of_role(&run, role).all(|block| block.died.is_some()), "{role}");
    }
}

/// Keys and values of a sequence: a tensor each in each layer, which is copied into one that is a token longer.
#[test]
fn contiguous_caches_are_copied_as_they_grow() {
    let run = small("steps=8,kv=contiguous,arrivals=list(1,0,0,0,0,0,0,0,0,0),prompt=10,output=6");
    let sizes: Vec<u64> = of_role(&run, "kv-cache").map(|block| block.size / (2 * 32 * 2)).collect();
    let expected: Vec<u64> = (10..=15).flat_map(|length| [length; 8]).collect();
    assert_eq!(sizes, expected, "two tensors in four layers at each length");
    let of_layer: Vec<&Block> = of_role(&run, "kv-cache").filter(|block| block.label.contains("layers.1.")).collect();
    for (old, new) in of_layer.iter().zip(&of_layer[2..]) {
        assert_eq!(old.died, Some(new.born + 1), "the old one goes when the new one is there");
    }
    let end = iteration(&run, 7);
    assert!(of_role(&run, "kv-cache").all(|block| block.died.is_some_and(|died| died < end)), "the sequence is over");
}

#[test]
fn contiguous_caches_grow_by_their_step() {
    let run = small("steps=100,kv=contiguous,step=64,arrivals=every(1000),prompt=10,output=90");
    let sizes: Vec<u64> = of_role(&run, "kv-cache").map(|block| block.size / (2 * 32 * 2)).collect();
    assert_eq!(sizes, [[64; 8], [128; 8]].concat());
}

#[test]
fn pages_are_allocated_when_a_sequence_comes_to_them() {
    let run = small("steps=50,pages=demand,block=16,arrivals=every(1000),prompt=30,output=20");
    let pages: Vec<u64> = of_role(&run, "kv-cache").map(|block| block.size).collect();
    assert_eq!(pages, [2 * 16 * 64 * 2; 16], "49 tokens are four pages in each of four layers");
    let births: Vec<usize> = of_role(&run, "kv-cache").map(|block| block.born).collect();
    // The first token is the prompt's pass, so the third decode pass writes the 33rd.
    assert!(births[7] < iteration(&run, 2) && births[8] > iteration(&run, 3) && births[8] < iteration(&run, 4));
}

/// The pool and all else stay within the share of the device.
#[test]
fn a_pool_fills_the_memory_share_and_nothing_is_allocated_for_tokens() {
    let run = small("steps=80,memory-share=0.8,arrivals=poisson(2),prompt=uniform(10,500),output=uniform(1,100)");
    let pool: Vec<&Block> = of_role(&run, "kv-cache").collect();
    assert_eq!(pool.len(), 4);
    assert!(pool.iter().all(|block| block.died.is_none() && block.size == pool[0].size));
    let share = (1u64 << 30) * 8 / 10;
    assert!(run.peak() <= share && run.peak() > share * 99 / 100, "{} of {share}", run.peak());
}

/// What lives does not grow beyond the share, however many requests come: the youngest lose their blocks.
#[test]
fn too_many_sequences_take_turns() {
    let tight =
        "serve:layers=4,hidden=256,heads=8,kv-heads=2,ffn=512,vocab=1000,max-length=512,max-tokens=256,memory-share=1";
    for kv in ["pages=demand,block=8", "kv=contiguous,step=1"] {
        let run = run(&format!("{tight},{kv},device=42MiB,steps=300,arrivals=poisson(3),prompt=60,output=200"));
        let cached: u64 = of_role(&run, "kv-cache").map(|block| block.size).sum();
        assert!(run.peak() <= 42 << 20 && cached > 0, "{}", run.peak());
        assert!(run.peak() > 41 << 20, "{kv}: {}", run.peak());
    }
}

#[test]
fn a_batch_is_no_larger_than_it_may_be() {
    let run = small("steps=50,pages=demand,block=64,max-batch=3,arrivals=list(9),prompt=10,output=40");
    let most = (0..run.trace.events.len())
        .filter(|&at| matches!(run.trace.events[at], Event::Mark { .. }))
        .map(|at| run.live_at(at).filter(|block| block.role() == "kv-cache").count())
        .max();
    assert_eq!(most, Some(3 * 4));
}

/// Prompts of one step share passes of at most so many tokens.
#[test]
fn prompts_are_cut_into_passes() {
    let passes = |rest: &str| -> Vec<u64> {
        let run = small(&format!("steps=1,output=1,{rest}"));
        let profile = iteration(&run, 1);
        let embedded =
            run.blocks.iter().filter(|block| block.label == "activation embed_tokens" && block.born > profile);
        embedded.map(|block| block.size / 512).collect()
    };
    assert_eq!(passes("prompt=500,arrivals=list(1)"), [256, 244]);
    assert_eq!(passes("prompt=100,arrivals=list(2)"), [200]);
    assert_eq!(
        passes("prompt=100,arrivals=list(9)"),
        [256, 44],
        "the third is admitted while there is room for tokens"
    );
}

#[test]
fn scores_are_written_out_without_a_fused_kernel() {
    let rest = "steps=1,prompt=100,output=1,arrivals=list(1)";
    let (flash, math) = (small(rest), small(&format!("{rest},attention=math")));
    let scores = 8 * 100 * 100;
    let has = |run: &Run, size: u64| of_role(run, "temporary").any(|block| block.size == size);
    assert!(has(&math, scores * 2) && has(&math, scores * 4) && !has(&flash, scores * 4));
}

#[test]
fn sorting_the_vocabulary_takes_several_times_the_logits() {
    let rest = "steps=1,prompt=100,output=1,arrivals=list(1)";
    let bytes = |run: &Run| -> u64 {
        run.blocks
            .iter()
            .filter(|block| block.label.ends_with("sampler") && block.born > iteration(run, 1))
            .map(|block| block.size)
            .sum()
    };
    assert_eq!(bytes(&small(rest)), 4_000 + 8);
    assert_eq!(bytes(&small(&format!("{rest},sampling=top-p"))), 4_000 * 7 + 8_000 + 1_000 + 8);
}

/// Ascending and descending captures ask for the same, in another order.
#[test]
fn captures_differ_in_their_order_alone() {
    let capture = |order: &str| small(&format!("steps=5,capture={order},batch-sizes=4+1+2"));
    let (up, down) = (capture("ascending"), capture("descending"));
    let sizes =
        |run: &Run| -> Vec<u64> { run.blocks.iter().filter(|block| block.pool == 1).map(|block| block.size).collect() };
    let (mut up, mut down) = (sizes(&up), sizes(&down));
    assert_ne!(up, down);
    up.sort_unstable();
    down.sort_unstable();
    assert_eq!(up, down);
}

#[test]
fn graphs_share_a_pool_or_have_one_each() {
    for (pools, count) in [("one", 1), ("many", 3)] {
        let run = small(&format!("steps=5,capture=ascending,batch-sizes=1+2+4,graph-pools={pools}"));
        assert_eq!(run.trace.header.pools.len(), count, "{pools}");
        let outputs: Vec<&Block> =
            run.blocks.iter().filter(|b| b.pool > 0 && b.died.is_none() && b.role() == "activation").collect();
        assert_eq!(outputs.iter().map(|block| block.size / 512).collect::<Vec<_>>(), [1, 2, 4], "each output stays");
        let begins =
            run.trace.events.iter().filter(|event| matches!(event, Event::Pool { op: PoolOp::Begin, .. })).count();
        assert_eq!(begins, 3);
    }
}

/// A batch that has a graph runs without allocations of its layers, and a larger one as if there were none.
#[test]
fn decode_passes_of_captured_sizes_allocate_no_activations() {
    let layers = |run: &Run, from: u32| -> usize {
        let from = iteration(run, from);
        run.blocks.iter().filter(|block| block.born > from && block.label.contains("layers.")).count()
    };
    let rest = "steps=20,arrivals=list(2,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0),prompt=20,output=15";
    assert_eq!(layers(&small(&format!("{rest},capture=ascending,batch-sizes=2+4")), 2), 0);
    assert!(layers(&small(&format!("{rest},capture=ascending,batch-sizes=1")), 2) > 0);
    assert!(layers(&small(rest), 2) > 0);
}

#[test]
fn models_that_share_a_card_have_all_things_of_their_own() {
    let run = small(
        "steps=30,models=2,own-streams=yes,arrivals=poisson(0.5),prompt=50,output=20,capture=ascending,batch-sizes=1+2",
    );
    let mut bytes = BTreeMap::new();
    for block in run.blocks.iter().filter(|block| ["parameter", "kv-cache"].contains(&block.role())) {
        let model = block.label.split([' ', '.']).nth(1).expect("a prefix");
        *bytes.entry((block.role(), model, block.stream)).or_insert(0) += block.size;
    }
    let (keys, bytes): (Vec<_>, Vec<_>) = bytes.into_iter().unzip();
    assert_eq!(keys, [("kv-cache", "0", 0), ("kv-cache", "1", 1), ("parameter", "0", 0), ("parameter", "1", 1)]);
    assert!(bytes[0] == bytes[1] && bytes[2] == bytes[3]);
    assert_eq!((run.trace.header.pools.len(), run.trace.header.streams.len()), (2, 3));
    let peak = small("steps=30,models=3,own-streams=yes,arrivals=poisson(0.5),prompt=50,output=20").peak();
    assert!(peak <= (1 << 30) * 9 / 10 && peak > (1 << 30) * 89 / 100, "{peak}");
}

/// Asleep, nothing lives but what graphs and libraries hold; awake again, it is all there as before.
#[test]
fn sleep_gives_the_card_to_training_and_back() {
    let run =
        small("steps=100,sleep-every=20,arrivals=poisson(0.3),prompt=50,output=10,capture=descending,batch-sizes=1+2");
    let (sleep, training, wake) = (run.marks("sleep"), run.marks("training"), run.marks("wake"));
    assert!(sleep.len() >= 2 && sleep.len() == wake.len());
    let bytes = |at: usize, role: &str| -> u64 {
        run.live_at(at).filter(|block| block.role() == role).map(|block| block.size).sum()
    };
    for at in 0..sleep.len() {
        for moment in [training[at], wake[at]] {
            for block in run.live_at(moment) {
                let is_graphs = block.pool > 0 || block.role() == "input" || block.role() == "workspace";
                assert!(is_graphs, "{block:?} lives through sleep");
            }
        }
        let phase = run.blocks.iter().filter(|block| (training[at]..wake[at]).contains(&block.born));
        let roles: Vec<&str> = phase.map(Block::role).collect();
        assert!(["parameter", "gradient", "optimizer"].iter().all(|role| roles.contains(role)));
        let empties = |range: std::ops::Range<usize>| {
            run.trace.events[range].iter().filter(|event| matches!(event, Event::Empty { .. })).count()
        };
        assert_eq!((empties(sleep[at]..training[at]), empties(training[at]..wake[at])), (1, 1));
    }
    let last = run.trace.events.len() - 1;
    for role in ["parameter", "kv-cache"] {
        assert_eq!(bytes(last, role), bytes(iteration(&run, 1), role));
    }
}

/// Streams of events do not grow with the run: what lives, and what the generator holds, is bounded by the batch.
#[test]
fn a_longer_run_needs_no_more_slots() {
    let slots = |steps: u32| {
        small(&format!("steps={steps},kv=contiguous,arrivals=poisson(5),prompt=50,output=20")).trace.header.slots
    };
    assert!(slots(400) <= slots(100) * 11 / 10);
}

#[test]
fn values_that_do_not_go_together_are_refused_by_name() {
    let cases = [
        ("serve:hidden=4095", ["hidden=4095", "heads=32"]),
        ("serve:kv-heads=5", ["kv-heads=5", "heads=32"]),
        ("serve:tp=3", ["tp=3", "heads=32"]),
        ("serve:tp=16,kv-heads=8,ffn=14343", ["tp=16", "ffn=14343"]),
        ("serve:kv=contiguous,block=32", ["block", "kv=contiguous"]),
        ("serve:kv=contiguous,pages=demand", ["pages", "kv=contiguous"]),
        ("serve:step=256", ["step", "kv=paged"]),
        ("serve:kv=contiguous,capture=ascending", ["capture=ascending", "kv=contiguous"]),
        ("serve:batch-sizes=1+2", ["batch-sizes", "capture=none"]),
        ("serve:train-tokens=1", ["train-tokens", "sleep-every=0"]),
        ("serve:device=16GiB", ["memory-share=0.9", "max-length=8192"]),
    ];
    for (line, words) in cases {
        let error = Spec::parse(line).expect_err(line).to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}
