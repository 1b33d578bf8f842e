//! Families of models and types of weights, against what training of small ones on an H200 was seen to allocate.
//!
//! Twelve batches each, by PyTorch 2.11 and transformers 5.17. The setup, where those runs moved a model from the host, is left out.

use workload_gen::spec::Spec;
use workload_gen::{Event, Trace};

/// What all lines have in common.
const BATCHES: &str =
    "hidden=512,heads=8,batch=4,shaping=alike,steps=12,lengths=list(497,36,98,331,72,271,287,142,286,170,106,202)";

/// The rest of each line, and what was seen: allocations, their bytes, and the most bytes that lived at a time beside those that lived
/// before the first batch.
const SEEN: &[(&str, u64, u64, u64)] = &[
    ("train:opt-1.3b,ffn=2048,vocab=50272,layers=6,positions=1024,dtype=fp32", 9215, 24_322_348_068, 1_537_489_224),
    ("train:gpt-neox-20b,ffn=2048,vocab=50432,layers=6,positions=1024,dtype=fp32", 9359, 26_550_429_016, 1_666_075_176),
    (
        "train:gpt-neox-20b,ffn=2048,vocab=50432,layers=6,positions=1024,convert,dtype=bf16,autocast=no,recompute=full",
        8940,
        19_956_418_588,
        1_254_062_096,
    ),
    (
        "train:llama-2-7b,layers=6,ffn=1408,kv-heads=4,convert,dtype=bf16,autocast=no",
        9462,
        16_458_149_096,
        1_074_431_576,
    ),
    ("train:llama-2-7b,layers=6,ffn=1408,kv-heads=4,dtype=fp32", 11_370, 22_508_260_584, 1_274_355_128),
    ("train:llama-2-7b,layers=6,ffn=1408,kv-heads=4,dtype=fp32,autocast=no", 10_146, 24_827_024_344, 1_512_236_792),
    ("train:gpt2,layers=6,positions=1024,autocast=no", 6347, 29_912_768_400, 1_988_385_152),
    (
        "train:mixtral-8x7b,layers=4,ffn=1024,expert-ffn=1024,kv-heads=2,vocab=32000,convert,dtype=bf16,autocast=no",
        10_226,
        18_880_332_568,
        1_090_258_552,
    ),
    (
        "train:qwen1.5-moe-a2.7b,layers=4,expert-ffn=352,expert-count=16,vocab=32000,convert,dtype=bf16,autocast=no",
        11_767,
        20_159_016_152,
        1_158_387_928,
    ),
];

/// Allocations from the first batch on, their bytes, and the most that lived at a time beside what lived before.
fn batches(line: &str) -> (u64, u64, u64) {
    let trace = Spec::parse(line).unwrap_or_else(|why| panic!("{line}: {why}")).trace();
    let mut sizes = vec![0; trace.header.slots as usize];
    let (mut count, mut bytes, mut peak) = (0, 0, 0);
    let (mut live, mut before) = (0, None);
    for event in &trace.events {
        match *event {
            Event::Mark { .. } => {
                before.get_or_insert(live);
            }
            Event::Alloc { slot, size, .. } => {
                sizes[slot as usize] = size;
                live += size;
                if let Some(before) = before {
                    count += 1;
                    bytes += size;
                    peak = peak.max(live - before);
                }
            }
            Event::Free { slot, .. } => live -= sizes[slot as usize],
            _ => {}
        }
    }
    (count, bytes, peak)
}

#[test]
fn a_model_of_each_family_allocates_what_an_h200_showed() {
    for &(line, count, bytes, peak) in SEEN {
        assert_eq!(batches(&format!("{line},{BATCHES}")), (count, bytes, peak), "{line}");
    }
}

/// Adapters of rank 8 on what the attention of two layers has: one product or three, and the output.
#[test]
fn every_family_has_adapters() {
    for (model, widths) in [("gpt2", 3 + 1 + 1 + 1), ("gpt-neox-20b", 3 + 1 + 1 + 1), ("opt-1.3b", 4 * 2)] {
        let line = format!("train:{model},layers=2,hidden=64,heads=4,vocab=100,batch=2,steps=2,lengths=16,lora=8");
        let trace = Spec::parse(&line).unwrap_or_else(|why| panic!("{why}")).trace();
        let states: u64 = states(&trace).iter().sum();
        assert_eq!(states, 2 * 2 * 8 * 64 * widths * 4, "{model}");
    }
}

/// Sizes of the optimizer's states.
fn states(trace: &Trace) -> Vec<u64> {
    let allocs = trace.events.iter().filter_map(|event| match *event {
        Event::Alloc { size, .. } => Some(size),
        _ => None,
    });
    let is_state = |label: &u32| trace.label_texts[*label as usize].starts_with("optimizer ");
    allocs.zip(&trace.labels).filter(|(_, label)| is_state(label)).map(|(size, _)| size).collect()
}
