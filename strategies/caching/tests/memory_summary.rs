//! The summary table, byte for byte as PyTorch 2.11's own `torch.cuda.memory_summary` prints it from the statistics
//! that this program ends with.

#[allow(dead_code, reason = "each test uses a part of it")]
mod common;

use common::Runner;

/// Allocations of many sizes, repeated so that columns reach KiB, MiB, GiB and thousands.
fn run() -> Runner {
    let mut runner = Runner::new(4 << 30, vec![0xb00]);
    runner.run(&["conf", "max_split_size_mb:20"]);
    for round in 0..80_u32 {
        for (number, bytes) in [700, 5_000, 1 << 20, 3 << 20, 15_000_000, 50_000_000].into_iter().enumerate() {
            let (id, bytes) = (format!("x{number}"), (bytes + 64 * u64::from(round)).to_string());
            runner.run(&["a", &id, &bytes, if number % 2 == 0 { "0" } else { "b00" }]);
        }
        runner.run(&["r", "x1", "0"]);
        runner.run(&["ev", if round % 3 == 0 { "0" } else { "1" }]);
        for number in 0..if round == 79 { 4 } else { 6 } {
            runner.run(&["f", &format!("x{number}")]);
        }
    }
    runner.run(&["a", "huge", "8000000000", "0"]);
    runner
}

#[test]
fn the_table_is_pytorchs() {
    let runner = run();
    if let Ok(path) = std::env::var("WRITE_STATS") {
        // For making the expected text again with PyTorch's function.
        std::fs::write(path, serde_json::to_string(&runner.stats()).unwrap()).unwrap();
    }
    assert_eq!(runner.summary(false), include_str!("memory_summary.txt"));
    assert_eq!(runner.summary(true), include_str!("memory_summary_abbreviated.txt"));
}
