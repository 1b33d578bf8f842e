//! Mixtures of experts, as transformers runs them: what routers decide, and what they do not.

use crate::run::{Run, run};

/// Models small enough to have been recorded on an H200 with PyTorch 2.11 and transformers 5.17: two layers, two steps of three sequences.
const MIXTRAL: &str = "train:mixtral-8x7b,layers=2,hidden=512,ffn=1408,heads=8,kv-heads=4,dtype=bf16,convert=yes,batch=3,shaping=alike,steps=2";
const QWEN: &str = "train:qwen1.5-moe-a2.7b,layers=2,hidden=512,ffn=1408,heads=8,vocab=32000,expert-count=12,expert-ffn=352,dtype=bf16,convert=yes,\
                    batch=3,shaping=alike,steps=2";

/// Allocations, their bytes in all, and the most that lived at a time.
fn measures(run: &Run) -> (usize, u64, u64) {
    (run.blocks.len(), run.blocks.iter().map(|block| block.size).sum(), run.peak())
}

#[test]
fn grouped_experts_allocate_as_the_card_was_seen_to() {
    for (line, lengths, seen) in [
        (MIXTRAL, "list(200,333)", (993, 3_053_882_268, 944_657_888)),
        (MIXTRAL, "list(800,2000)", (1031, 10_660_741_169, 3_266_548_840)),
        (QWEN, "list(200,333)", (1182, 2_782_012_734, 857_511_920)),
        (QWEN, "list(800,2000)", (1244, 10_733_477_875, 3_241_575_304)),
    ] {
        assert_eq!(measures(&run(&format!("{line},lengths={lengths}"))), seen, "{line},lengths={lengths}");
    }
}

/// Sizes depend on the router, how many there are does not as long as all experts have tokens.
#[test]
fn experts_in_turn_make_as_many_allocations_as_the_card_was_seen_to() {
    for (line, seen) in [(MIXTRAL, 2209), (QWEN, 2994)] {
        let run = run(&format!("{line},lengths=list(200,333),experts=loop,skew=0.2"));
        assert_eq!(run.blocks.len(), seen, "{line}");
    }
}

/// The sizes of what experts take of the hidden states of a layer, in order.
fn sizes(run: &Run, label: &str) -> Vec<u64> {
    run.blocks.iter().filter(|block| block.label == label).map(|block| block.size).collect()
}

#[test]
fn no_size_of_grouped_experts_depends_on_the_router() {
    let of = |seed: u64| sizes(&run(&format!("{MIXTRAL},lengths=300,seed={seed}")), "activation layers.0.mlp");
    assert_eq!(of(0), of(3));
}

#[test]
fn experts_in_turn_get_what_the_router_sends_them() {
    let line = |skew: &str, seed: u64| {
        let run = run(&format!("{MIXTRAL},lengths=400,experts=loop,skew={skew},seed={seed}"));
        sizes(&run, "activation layers.1.mlp")
    };
    assert_ne!(line("1", 0), line("1", 1));
    let different = |sizes: Vec<u64>| {
        let mut sizes = sizes;
        sizes.sort_unstable();
        sizes.dedup();
        (sizes.len(), sizes[sizes.len() - 1])
    };
    // The tensors of all tokens are the largest unless an expert has most of them: two halves of 1408 columns against 512.
    let (even, skewed) = (different(line("0", 0)), different(line("2", 0)));
    assert!(skewed.1 > 2 * even.1, "{even:?}, {skewed:?}");
}

#[test]
fn latent_attention_keeps_the_short_vectors() {
    let run = run("train:deepseek-v2-lite,layers=2,dtype=bf16,batch=2,lengths=128,steps=1");
    let tokens = 2 * 128;
    let has = |label: &str, columns: u64| {
        run.blocks
            .iter()
            .any(|block| block.label == format!("activation layers.1.{label}") && block.size == tokens * columns * 2)
    };
    assert!(has("self_attn.q_proj", 16 * 192), "queries have 128 columns that stay and 64 that are turned");
    assert!(has("self_attn.kv_a_proj_with_mqa", 512 + 64));
    assert!(has("self_attn.kv_b_proj", 16 * 256));
    assert!(has("mlp.shared_expert.up_proj", 2 * 1408));
    assert!(
        run.blocks.iter().any(|block| block.label == "activation layers.0.mlp.up_proj"),
        "the first layer has no experts"
    );
}
