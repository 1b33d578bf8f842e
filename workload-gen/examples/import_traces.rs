//! Imports the recordings that are part of the crate: `cargo run --release -p workload-gen --example import_traces -- \
//! ../shared/traces workload-gen/traces`. The test `embedded` compares the result with what is there.

use std::path::PathBuf;
use std::process::ExitCode;
use workload_gen::{embedded, format, import};

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [snapshots, traces] = arguments.as_slice() else {
        eprintln!("usage: import_traces SNAPSHOTS_FOLDER TRACES_FOLDER");
        return ExitCode::from(2);
    };
    for recording in embedded() {
        let snapshot = snapshots.join(format!("{}.pickle.zst", recording.name));
        let to = traces.join(format!("{}.trace.zst", recording.name));
        let trace = match import::import_file(&snapshot, None) {
            Ok(trace) => trace,
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::from(6);
            }
        };
        if let Err(error) = format::save_with_level(&trace, &to, 19) {
            eprintln!("{error}");
            return ExitCode::from(7);
        }
        println!("{}: {} events", to.display(), trace.events.len());
    }
    ExitCode::SUCCESS
}
