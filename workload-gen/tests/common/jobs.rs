//! Recordings of known jobs, and what is generated for the same jobs.

use serde_json::Value;
use std::fs;
use std::path::Path;
use workload_gen::import::import_file;
use workload_gen::likeness::{Likeness, Pair, likeness};
use workload_gen::spec::Spec;
use workload_gen::{Event, Trace};

/// The shapes of a job, as the recordings' table of them has it.
pub fn shapes(folder: &Path, job: &str) -> Value {
    let text = fs::read_to_string(folder.join("lengths.json")).expect("the table of shapes");
    let table: Value = serde_json::from_str(&text).expect("it is JSON");
    let of_job = table.as_object().and_then(|table| table.iter().find(|(key, _)| key.starts_with(job)));
    of_job.unwrap_or_else(|| panic!("no shapes of {job}")).1.clone()
}

pub fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().expect("a list").iter().filter_map(Value::as_u64).collect()
}

pub fn recording(folder: &Path, name: &str) -> Trace {
    import_file(folder.join(format!("{name}.pickle.zst")), None).expect("a recording")
}

pub fn generated(line: &str) -> Trace {
    Spec::parse(line).unwrap_or_else(|error| panic!("{error}")).trace()
}

pub fn alike(recording: &Trace, generated: &Trace) -> Likeness {
    likeness(Pair { recording, generated })
}

/// Sizes and streams of all allocations.
pub fn requests(trace: &Trace) -> impl Iterator<Item = (u64, u32)> + '_ {
    trace.events.iter().filter_map(|event| match *event {
        Event::Alloc { size, stream, .. } => Some((size, stream.0)),
        _ => None,
    })
}
