//! Generation of text, held against a recording event by event.

use workload_gen::embedded;
use workload_gen::likeness::sizes;
use workload_gen::spec::Spec;
use workload_gen::{Event, Trace};

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
    let recording = embedded().iter().find(|recording| recording.name == "generate.default").expect("it is there");
    let recorded = memory(&recording.trace().expect("it can be read"));
    let made = memory(&generated(include_str!("../recipes/generate.default").trim()));
    let differs = recorded.iter().zip(&made).position(|(recorded, made)| recorded != made);
    assert_eq!(differs, None, "of {}", made.len());
    // After the last call, the recording goes on with what a process frees at its end.
    let rest = recorded.get(made.len()..).expect("the recording is longer");
    assert!(rest.iter().all(|event| matches!(event, Event::Free { .. })));
}

#[test]
fn a_prompt_that_is_too_long_is_cut_and_generation_ends_where_positions_do() {
    let line = "generate:layers=1,hidden=64,heads=2,vocab=100,calls=1,batch=1,positions=50";
    let cut = generated(&format!("{line},prompt=80,new=9"));
    assert!(sizes(&cut).eq(sizes(&generated(&format!("{line},prompt=50,new=1")))));
    // The last token is made, and read no more.
    let ended = generated(&format!("{line},prompt=48,new=9"));
    assert!(sizes(&ended).eq(sizes(&generated(&format!("{line},prompt=48,new=3")))));
}

#[test]
fn prompts_beyond_any_memory_are_refused() {
    let error = Spec::parse("generate:batch=1000000000").expect_err("it is refused").to_string();
    assert!(error.contains("batch=1000000000") && error.contains("`prompt`"), "{error}");
}
