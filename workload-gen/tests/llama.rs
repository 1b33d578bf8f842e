//! Llamas, trained and generating, held against recordings of the same jobs with the same shapes.

use workload_gen::embedded;
use workload_gen::likeness::sizes;
use workload_gen::spec::Spec;
use workload_gen::{Event, Trace};

fn recording(name: &str) -> Trace {
    let found = embedded().iter().find(|recording| recording.name == name).expect("it comes with the crate");
    found.trace().expect("it can be read")
}

fn generated(line: &str) -> Trace {
    Spec::parse(line).unwrap_or_else(|error| panic!("{error}")).trace()
}

/// What is allocated and freed, in order.
fn memory(trace: &Trace) -> Vec<Event> {
    let is_memory = |event: &&Event| matches!(event, Event::Alloc { .. } | Event::Free { .. });
    trace.events.iter().filter(is_memory).copied().collect()
}

#[test]
fn generation_allocates_and_frees_as_recorded() {
    let line = "generate:hidden=1024,ffn=2816,layers=12,heads=16,calls=4,batch=list(8,8,2,2),\
        prompt=list(486,753,61,82),new=list(26,74,52,43)";
    let (recorded, made) = (memory(&recording("generate.default")), memory(&generated(line)));
    // After the last call, the recording goes on with what a process frees at its end.
    let rest = &recorded[made.len()..];
    assert!(rest.iter().all(|event| matches!(event, Event::Free { .. })) && rest.len() < 200, "{}", rest.len());
    let differs = recorded.iter().zip(&made).position(|(recorded, made)| recorded != made);
    assert_eq!(differs, None, "of {}", made.len());
}

#[test]
fn training_of_adapters_with_checkpoints_allocates_as_recorded() {
    let line = "train:llama-2-7b,hidden=2048,ffn=5632,layers=16,heads=16,kv-heads=4,dtype=bf16,batch=4,steps=40,\
        shaping=alike,recompute=full,lora=16,lengths=list(433,504,803,460,1325,168,595,211,474,402,401,112,522,764,1596,\
        883,97,208,952,234,567,173,852,1120,595,594,560,311,731,477,533,692,1566,1781,413,723,641,1351,156,273)";
    assert!(sizes(&recording("llama_lora_ckpt.default")).eq(sizes(&generated(line))));
}

#[test]
fn a_prompt_that_is_too_long_is_cut_and_generation_ends_where_positions_do() {
    let line = "generate:layers=1,hidden=64,heads=2,vocab=100,calls=1,batch=1,positions=50,prompt=80,new=9";
    let one = generated("generate:layers=1,hidden=64,heads=2,vocab=100,calls=1,batch=1,positions=50,prompt=50,new=1");
    assert!(sizes(&generated(line)).eq(sizes(&one)));
}
