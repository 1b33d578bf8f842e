//! What the switches of a training run do to its memory.

use std::collections::BTreeMap;
use workload_gen::models::shapes;
use workload_gen::spec::Spec;
use workload_gen::{Event, Trace};

fn trace(line: &str) -> Trace {
    Spec::parse(line).unwrap_or_else(|why| panic!("{line}: {why}")).trace()
}

/// Bytes and blocks that live at the end, by role, and the most bytes that lived at once.
struct Usage {
    bytes: BTreeMap<String, u64>,
    blocks: BTreeMap<String, u64>,
    peak: u64,
    allocs: u64,
}

fn usage(trace: &Trace) -> Usage {
    let role = |label: u32| trace.label_texts[label as usize].split(' ').next().expect("a role").to_string();
    let mut live: Vec<Option<(u64, u32)>> = vec![None; trace.header.slots as usize];
    let mut labels = trace.labels.iter();
    let (mut now, mut peak, mut allocs) = (0, 0, 0);
    for event in &trace.events {
        match *event {
            Event::Alloc { slot, size, .. } => {
                live[slot as usize] = Some((size, *labels.next().expect("a label for each allocation")));
                now += size;
                peak = peak.max(now);
                allocs += 1;
            }
            Event::Free { slot, .. } => now -= live[slot as usize].take().expect("a block").0,
            _ => {}
        }
    }
    let (mut bytes, mut blocks) = (BTreeMap::new(), BTreeMap::new());
    for (size, label) in live.into_iter().flatten() {
        *bytes.entry(role(label)).or_default() += size;
        *blocks.entry(role(label)).or_default() += 1;
    }
    Usage { bytes, blocks, peak, allocs }
}

const SMALL: &str = "train:gpt2,layers=4,hidden=256,heads=4,vocab=2000,positions=512,batch=4,steps=6,lengths=300";

#[test]
fn weights_and_states_have_the_bytes_that_the_model_says() {
    for (line, name) in [
        ("train:gpt2,steps=2,batch=1,lengths=16", "gpt2"),
        ("train:opt-1.3b,dtype=fp32,steps=2,batch=1,lengths=16", "opt-1.3b"),
        ("train:llama-2-7b,dtype=fp32,steps=2,batch=1,lengths=16", "llama-2-7b"),
        ("train:llama-3-8b,dtype=fp32,steps=2,batch=1,lengths=16", "llama-3-8b"),
    ] {
        let weights = shapes::shape(name).expect("a published model").parameters() * 4;
        let usage = usage(&trace(line));
        assert_eq!(usage.bytes["parameter"], weights, "{line}");
        assert_eq!(usage.bytes["optimizer"], 2 * weights, "{line}");
        assert_eq!(usage.bytes.get("gradient"), None, "{line}");
    }
}

#[test]
fn recomputation_trades_memory_for_allocations() {
    let (kept, made_again) = (usage(&trace(SMALL)), usage(&trace(&format!("{SMALL},recompute=full"))));
    assert!(made_again.peak < kept.peak * 9 / 10, "{} and {}", made_again.peak, kept.peak);
    assert!(made_again.allocs > kept.allocs * 5 / 4, "{} and {}", made_again.allocs, kept.allocs);
}

#[test]
fn adapters_alone_have_states() {
    let line = "train:llama-2-7b,layers=2,hidden=512,ffn=1024,heads=8,vocab=1000,dtype=bf16,batch=2,steps=2,lengths=64";
    let usage = usage(&trace(&format!("{line},lora=8")));
    // Four adapters a layer, of two matrices of 8 by 512 in 32 bits.
    assert_eq!(usage.bytes["optimizer"], 2 * 2 * 4 * 2 * 8 * 512 * 4);
    assert_eq!(usage.blocks["optimizer"], 2 * 2 * 4 * 2);
}

#[test]
fn a_loss_that_is_kept_costs_little_and_a_graph_that_is_kept_costs_all() {
    let at_end =
        |switch: &str| usage(&trace(&format!("{SMALL},{switch}"))).bytes.get("activation").copied().unwrap_or(0);
    let none = at_end("leak=none");
    assert_eq!(at_end("leak=loss"), none + 6 * 4);
    let graph = |evals: u64| at_end(&format!("leak=graph,epoch=3,evals={evals},eval-batch=4,eval-lengths=300"));
    let (one, two) = (graph(1), graph(2));
    assert!(one > 50 << 20 && two > one * 19 / 10, "{one} and {two}");
}

#[test]
fn gradients_of_several_batches_share_their_memory() {
    let one = trace(SMALL);
    let several = trace(&format!("{SMALL},accumulate=3"));
    // Three batches a step: two steps, each of which makes a root of each second moment.
    let roots = |trace: &Trace| {
        let temporary = |label: &u32| trace.label_texts[*label as usize] == "temporary adamw";
        trace.labels.iter().filter(|label| temporary(label)).count()
    };
    assert_eq!(roots(&one), 3 * roots(&several));
    assert!(usage(&several).peak >= usage(&one).peak);
}

#[test]
fn flushes_come_where_they_are_asked_for() {
    let empties = |switch: &str| {
        let trace = trace(&format!("{SMALL},{switch}"));
        trace.events.iter().filter(|event| matches!(event, Event::Empty { .. })).count()
    };
    assert_eq!(empties("empty-cache=never"), 0);
    assert_eq!(empties("empty-cache=step"), 6);
    assert_eq!(empties("empty-cache=phase,epoch=3"), 2);
    assert_eq!(empties("empty-cache=phase,epoch=3,evals=1"), 4);
}

#[test]
fn a_sequence_is_as_long_as_the_model_has_positions_at_most() {
    let cut = trace(&SMALL.replace("lengths=300", "lengths=5000"));
    let longest = trace(&SMALL.replace("lengths=300", "lengths=512"));
    assert_eq!(cut.events, longest.events);
}

#[test]
fn a_checkpoint_copies_weights_one_after_another() {
    let saved = trace(&format!("{SMALL},save=2"));
    let copies: Vec<&u32> =
        saved.labels.iter().filter(|label| saved.label_texts[**label as usize] == "temporary checkpoint").collect();
    let weights = usage(&saved).blocks["parameter"];
    assert_eq!(copies.len() as u64, 3 * weights);
    assert_eq!(usage(&saved).peak, usage(&trace(SMALL)).peak);
}

#[test]
fn what_does_not_go_together_is_refused_by_name() {
    for (line, names) in [
        ("train:gpt2,heads=7", ["hidden", "heads"]),
        ("train:llama-2-7b,heads=32,kv-heads=5", ["heads", "kv-heads"]),
        ("train:gpt2,layers=0", ["layers", "1 to"]),
        ("train:gpt2,batch=many", ["batch", "sequences"]),
        ("train:gpt2,lengths=lognormal(6)", ["lengths", "tokens"]),
        ("train:gpt2,layer=3", ["layer", "'layers'"]),
        ("train:gpt3", ["model", "gpt2"]),
    ] {
        let error = Spec::parse(line).expect_err(line).to_string();
        for name in names {
            assert!(error.contains(name), "{line}: {error}");
        }
    }
}

/// Products of sizes that do not fit a number are refused, and what is refused is named.
#[test]
fn batches_beyond_any_device_are_refused() {
    let line = "train:gpt2,layers=1,steps=1,batch=1048576,lengths=16777216,positions=16777216";
    let error = Spec::parse(line).expect_err(line).to_string();
    assert!(["batch=1048576", "lengths", "positions"].iter().all(|name| error.contains(name)), "{error}");
}

#[test]
fn a_default_that_is_given_changes_nothing() {
    let plain = trace(SMALL);
    for same in
        ["pp=1", "interleave=1", "tp=1", "ep=1", "sequence-parallel=no", "attention=fused", "framework=transformers"]
    {
        assert_eq!(trace(&format!("{SMALL},{same}")).events, plain.events, "{same}");
    }
}

#[test]
fn blanks_in_a_line_mean_nothing() {
    let (with, without) = ("churn: size=uniform(1,\n 20), allocations=10", "churn:allocations=10,size=uniform(1,20)");
    let [with, without] = [with, without].map(|line| Spec::parse(line).expect(line).to_string());
    assert_eq!(with, without);
}
