//! Every recording whose job is known, generated from its recipe: the job's parameters and the shapes of its batches, in `recipes/`.
//!
//! The two are held against each other allocation by allocation: its size, its stream, and what was freed since the one before.

mod common;

use common::recordings;
use std::fs;
use std::path::Path;
use workload_gen::import::import_file;
use workload_gen::likeness::{Pair, likeness};
use workload_gen::spec::Spec;
use workload_gen::{Event, Trace};

/// Recordings that come out allocation by allocation.
const EXACT: &[&str] = &[
    "gpt2_varlen.default",
    "llama_lora_ckpt.default",
    "empty_cache.default",
    "generate.default",
    "fsdp_gpt2.default.rank0",
    "fsdp_gpt2.default.rank1",
];

/// Recordings of the same jobs that are held to the bars: what a job did by chance is in no recipe.
const ALIKE: &[&str] = &["gnn.default", "multistream.default"];

fn recipe(name: &str) -> Trace {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes").join(name);
    let line = fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    Spec::parse(line.trim()).unwrap_or_else(|why| panic!("{name}: {why}")).trace()
}

fn recording(folder: &Path, name: &str) -> Trace {
    import_file(folder.join(format!("{name}.pickle.zst")), None).expect("a recording")
}

/// Each allocation's size and stream, with the allocations that were freed since the one before, in ascending order: in which order a
/// cache lets go of many tensors at once differs from run to run of one program.
fn steps(trace: &Trace) -> Vec<(u64, u32, Vec<u32>)> {
    let mut owners = vec![0u32; trace.header.slots as usize];
    let mut steps: Vec<(u64, u32, Vec<u32>)> = Vec::new();
    let mut freed = Vec::new();
    for event in &trace.events {
        match *event {
            Event::Alloc { slot, size, stream, .. } => {
                owners[slot as usize] = steps.len() as u32;
                freed.sort_unstable();
                steps.push((size, stream.0, std::mem::take(&mut freed)));
            }
            Event::Free { slot, .. } => freed.push(owners[slot as usize]),
            _ => {}
        }
    }
    steps
}

#[test]
fn a_recipe_makes_its_recording_allocation_by_allocation() {
    let Some(folder) = recordings() else { return };
    for name in EXACT {
        let (recording, generated) = (steps(&recording(&folder, name)), steps(&recipe(name)));
        let differs = recording.iter().zip(&generated).position(|(a, b)| a != b);
        if let Some(at) = differs {
            panic!("{name}: allocation {at} is {:?} in the recording, {:?} generated", recording[at], generated[at]);
        }
        assert_eq!(recording.len(), generated.len(), "{name}");
    }
}

#[test]
fn a_recipe_with_chance_in_it_makes_something_alike() {
    let Some(folder) = recordings() else { return };
    for name in ALIKE {
        let (recording, generated) = (recording(&folder, name), recipe(name));
        let alike = likeness(Pair { recording: &recording, generated: &generated });
        assert!(alike.peak_bytes.excess().abs() < 0.03, "{name}: {alike:?}");
        assert!(alike.allocs.excess().abs() < 0.15, "{name}: {alike:?}");
        assert!(alike.sizes.distance < 0.1 && alike.lifetimes.distance < 0.1, "{name}: {alike:?}");
    }
}

/// `empty_cache` stands where it stood: between the same allocations.
#[test]
fn flushes_are_where_they_were() {
    let Some(folder) = recordings() else { return };
    let places = |trace: &Trace| {
        let mut allocs = 0;
        let mut places = Vec::new();
        for event in &trace.events {
            match event {
                Event::Alloc { .. } => allocs += 1,
                Event::Empty { .. } => places.push(allocs),
                _ => {}
            }
        }
        places
    };
    let generated = places(&recipe("empty_cache.default"));
    assert_eq!(places(&recording(&folder, "empty_cache.default")), generated);
    assert_eq!(generated.len(), 8);
}
