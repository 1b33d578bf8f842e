//! Events a second of generated workloads that nobody keeps: `cargo run --release --example generate_speed -- LINE...`

use std::time::Instant;
use workload_gen::spec::Spec;
use workload_gen::tensor::{Batch, Sink};

/// Counts events and throws them away.
struct Count(u64);

impl Sink for Count {
    fn take(&mut self, batch: &Batch) -> bool {
        self.0 += batch.events.len() as u64;
        true
    }
}

fn main() {
    let lines: Vec<String> = std::env::args().skip(1).collect();
    let lines = if lines.is_empty() { vec!["churn:allocations=5000000".to_string()] } else { lines };
    for line in &lines {
        let spec = match Spec::parse(line) {
            Ok(spec) => spec,
            Err(error) => {
                eprintln!("{error}");
                std::process::exit(2);
            }
        };
        let (mut count, start) = (Count(0), Instant::now());
        let totals = spec.generate(&mut count);
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{spec}: {} events, {} slots, {seconds:.2} s, {:.2} M events/s",
            count.0,
            totals.slots,
            count.0 as f64 / seconds / 1e6
        );
    }
}
