//! Training that is spread over ranks: what a stage of a pipeline holds, and when.

use crate::run::{Block, Run, run};
use std::collections::HashMap;
use workload_gen::Event;
use workload_gen::spec::Spec;

/// A small model in a pipeline of four, eight micro-batches a step.
const PIPELINE: &str = "train:llama-2-7b,layers=8,hidden=512,vocab=4096,batch=2,lengths=256,pp=4,accumulate=8,steps=24";

/// One process's, with written-out attention.
const WRITTEN_OUT: &str =
    "train:llama-2-7b,layers=4,hidden=512,vocab=4096,batch=2,lengths=512,steps=4,attention=written-out";

/// The most blocks of this label that live at a time.
fn most_at_a_time(run: &Run, label: &str) -> usize {
    let (mut live, mut most) = (0, 0);
    run.walk(|born, block| {
        if block.label == label {
            live = if born { live + 1 } else { live - 1 };
            most = most.max(live);
        }
    });
    most
}

/// Bytes of parameters, gradients in 32 bits, and states that live at the end.
fn standing(run: &Run) -> u64 {
    let end = run.trace.events.len();
    run.live_at(end).map(|block| block.size).sum()
}

#[test]
fn between_steps_nothing_lives_but_weights_gradients_states_and_workspaces() {
    for more in [
        "",
        ",interleave=2",
        ",tp=4,sequence-parallel",
        ",recompute=selective,attention=written-out",
        ",recompute=full",
    ] {
        for rank in 0..4 {
            let run = run(&format!("{PIPELINE}{more},rank={rank}"));
            let marks: Vec<usize> = (1..3).flat_map(|number| run.marks(&format!("iteration {number}"))).collect();
            assert_eq!(marks.len(), 2);
            let kept: Vec<Vec<&Block>> = marks.iter().map(|&mark| run.live_at(mark).collect()).collect();
            assert_eq!(kept[0], kept[1], "rank {rank}{more}");
            let is_standing = |block: &&Block| match block.role() {
                "parameter" | "optimizer" | "workspace" => true,
                "gradient" => block.label == "gradient main_grad",
                // What products gather their inputs in.
                "communication" => block.label.ends_with("linear_qkv") || block.label.ends_with("self_attention"),
                _ => false,
            };
            let odd: Vec<_> = kept[0].iter().filter(|block| !is_standing(block)).collect();
            assert!(
                odd.len() <= 3 && odd.iter().all(|block| block.role() == "communication"),
                "rank {rank}{more}: {odd:?}"
            );
        }
    }
}

#[test]
fn a_stage_has_as_many_micro_batches_in_flight_as_stages_from_it_to_the_last() {
    for rank in 1..4 {
        let run = run(&format!("{PIPELINE},rank={rank}"));
        // And the one that was received for the next forward pass, while the last backward pass's is still there.
        assert_eq!(most_at_a_time(&run, "communication pipeline.input"), 4 - rank + 1, "rank {rank}");
        let received = run.blocks.iter().filter(|block| block.label == "communication pipeline.input").count();
        assert_eq!(received, 24);
        let gradients =
            run.blocks.iter().filter(|block| block.label == "communication pipeline.output_gradient").count();
        assert_eq!(gradients, if rank == 3 { 0 } else { 24 });
    }
    let first = run(PIPELINE);
    assert!(first.blocks.iter().all(|block| block.label != "communication pipeline.input"));
    // The embedding's output is kept by the first norm of the stage.
    let peaks: Vec<u64> = (0..3)
        .map(|rank| {
            let run = run(&format!("{PIPELINE},rank={rank}"));
            run.peak() - standing(&run)
        })
        .collect();
    assert!(peaks[0] > peaks[1] && peaks[1] > peaks[2], "{peaks:?}");
}

#[test]
fn interleaved_stages_hold_more_and_send_more() {
    let (plain, interleaved) = (run(&format!("{PIPELINE},rank=1")), run(&format!("{PIPELINE},rank=1,interleave=2")));
    let received = |run: &Run| run.blocks.iter().filter(|block| block.label == "communication pipeline.input").count();
    assert_eq!((received(&plain), received(&interleaved)), (24, 48));
    // (pp - rank - 1) * 2 + (interleave - 1) * pp + 1 parts of half the layers, against pp - rank of all.
    let layers = |run: &Run| {
        most_at_a_time(run, "activation layers.2.input_layernorm")
            + most_at_a_time(run, "activation layers.3.input_layernorm")
    };
    assert!(layers(&plain) > 0);
    let held = |run: &Run| run.peak() - standing(run);
    assert!(held(&interleaved) > held(&plain) * 9 / 8, "{} and {}", held(&interleaved), held(&plain));
    assert_eq!(standing(&interleaved), standing(&plain));
}

#[test]
fn the_first_stage_embeds_and_the_last_has_the_loss() {
    for more in ["", ",interleave=2"] {
        let with = |rank: usize, part: &str| {
            let run = run(&format!("{PIPELINE}{more},rank={rank}"));
            run.blocks.iter().any(|block| block.label.contains(part))
        };
        assert_eq!([0, 1, 2, 3].map(|rank| with(rank, "embedding")), [true, false, false, false]);
        assert_eq!([0, 1, 2, 3].map(|rank| with(rank, "loss")), [false, false, false, true]);
    }
}

#[test]
fn what_is_made_again_is_not_held() {
    let peak = |recompute: &str| {
        let run = run(&format!("{WRITTEN_OUT},recompute={recompute}"));
        run.peak() - standing(&run)
    };
    let [none, selective, full] = ["none", "selective", "full"].map(peak);
    assert!(none > selective * 5 / 4 && selective > full * 5 / 4, "{none}, {selective}, {full}");
}

#[test]
fn selective_recomputation_runs_the_scores_twice_and_nothing_else() {
    let count = |recompute: &str| {
        let mut labels: HashMap<String, usize> = HashMap::new();
        for block in run(&format!("{WRITTEN_OUT},recompute={recompute}")).blocks {
            *labels.entry(block.label).or_default() += 1;
        }
        labels
    };
    let (none, selective) = (count("none"), count("selective"));
    for (label, &before) in &none {
        let again = selective.get(label).copied().unwrap_or(0);
        let is_core = label.starts_with("activation layers.") && label.ends_with("self_attention");
        assert!(if is_core { again > before } else { again == before }, "{label}: {before}, then {again}");
    }
}

#[test]
fn ranks_that_split_layers_have_their_share() {
    let weights = |more: &str| {
        let run = run(&format!("train:llama-2-7b,layers=2,vocab=32768,steps=1,lengths=128,batch=1{more}"));
        run.blocks.iter().filter(|block| block.role() == "parameter").map(|block| block.size).sum::<u64>()
    };
    let (whole, eighth) = (weights(",framework=megatron"), weights(",tp=8"));
    // All but the norms is split.
    let norms = 5 * 4096 * 2;
    assert_eq!(whole - norms, 8 * (eighth - norms));
    let held = |more: &str| {
        let run = run(&format!("{PIPELINE},rank=1,tp=8{more}"));
        run.peak() - standing(&run)
    };
    assert!(held("") > held(",sequence-parallel") * 3 / 2);
}

#[test]
fn a_model_of_70_billion_in_a_pipeline_streams() {
    let line = "train:llama-2-70b,pp=8,batch=1,lengths=4096,accumulate=512,steps=512,rank=2";
    let run = run(line);
    let syncs = run.trace.events.iter().filter(|event| matches!(event, Event::Sync { .. })).count();
    assert!(syncs > 1000);
    assert!(run.trace.header.slots < 2000, "{}", run.trace.header.slots);
}

#[test]
fn experts_of_other_ranks_get_tokens_and_send_theirs() {
    let line = "train:mixtral-8x7b,layers=2,hidden=512,ep=4,batch=1,lengths=1024,steps=40,skew=";
    let sizes = |skew: &str| {
        let run = run(&format!("{line}{skew}"));
        let mut sizes: Vec<u64> = run
            .blocks
            .iter()
            .filter(|block| block.label == "communication layers.0.mlp")
            .map(|block| block.size)
            .collect();
        sizes.sort_unstable();
        sizes.dedup();
        (sizes.len(), sizes[sizes.len() - 1])
    };
    let (even, skewed) = (sizes("0.05"), sizes("1.5"));
    assert!(even.0 > 10 && skewed.1 > even.1 * 3 / 2, "{even:?}, {skewed:?}");
}

#[test]
fn what_does_not_go_together_is_said() {
    for (line, why) in [
        ("train:llama-2-7b,pp=5", "layers=32 does not go evenly into pp=5"),
        ("train:llama-2-7b,pp=4,interleave=3", "layers=32 does not go evenly into pp*interleave=12"),
        ("train:llama-2-7b,pp=4,interleave=2,accumulate=4,steps=6", "steps=6 does not go evenly into pp=4"),
        ("train:mixtral-8x7b,ep=8,rank=3", "ranks of tp and ep are alike"),
        ("train:llama-2-7b,pp=4,rank=4", "rank=4 is no stage of pp=4; the last is 3"),
        ("train:llama-2-7b,rank=1", "a stage of a pipeline needs pp"),
        ("train:llama-2-7b,interleave=2", "interleave=2 parts need a pipeline"),
        ("train:llama-2-7b,pp=4,interleave=2,accumulate=6", "accumulate=6 does not go evenly into pp=4"),
        ("train:llama-2-70b,tp=16", "kv-heads=8 does not go evenly into tp=16"),
        ("train:llama-2-7b,pp=2,lora=8", "lora does not go with pp=2"),
        ("train:llama-2-7b,ep=2", "ep=2 spreads experts"),
        ("train:mixtral-8x7b,ep=3", "expert-count=8 does not go evenly into ep=3"),
        ("train:deepseek-v2-lite,pp=3", "latent attention"),
        ("train:llama-2-7b,pp=0", "pp is 1 to 4096 ranks"),
    ] {
        let error = Spec::parse(line).map(drop).expect_err(line).to_string();
        assert!(error.contains(why), "{line}: {error}");
    }
}
