//! The table that `torch.cuda.memory_summary()` prints.

use crate::stats::{Stat, Stats};
use std::fmt::Write;

/// Rows by pool: statistic, title, whether it is in bytes.
const ROWS: [(&str, &str, bool); 9] = [
    ("allocated_bytes", "Allocated memory", true),
    ("active_bytes", "Active memory", true),
    ("requested_bytes", "Requested memory", true),
    ("reserved_bytes", "GPU reserved memory", true),
    ("inactive_split_bytes", "Non-releasable memory", true),
    ("allocation", "Allocations", false),
    ("active", "Active allocs", false),
    ("segment", "GPU reserved segments", false),
    ("inactive_split", "Non-releasable allocs", false),
];
/// Rows without pools.
const SINGLE_ROWS: [(&str, &str); 2] =
    [("oversize_allocations", "Oversize allocations"), ("oversize_segments", "Oversize GPU segments")];
const WIDTH: usize = 75;

/// The figures of a row, in the order of the columns.
fn columns(stat: Stat) -> [i64; 4] {
    [stat.current, stat.peak, stat.allocated, stat.freed]
}

/// `value` as a cell, in the unit that suits `whole` (the value over both pools).
fn cell(value: i64, whole: i64, bytes: bool) -> String {
    let (step, most, units): (i64, i64, &[&str]) = if bytes {
        (1024, 768 * 1024, &["B  ", "KiB", "MiB", "GiB", "TiB", "PiB"])
    } else {
        (1000, 750 * 1000, &[" ", "K", "M"])
    };
    let (mut value, mut whole, mut unit) = (value, whole, 0);
    while whole >= most && unit + 1 < units.len() {
        whole = whole.div_euclid(step);
        value = value.div_euclid(step);
        unit += 1;
    }
    if bytes { format!("{value:6} {}", units[unit]) } else { format!("{value:7} {} ", units[unit]) }
}

impl Stats {
    /// The text of `memory_summary()` for device number `device`; `abbreviated` leaves the rows by pool out.
    pub fn memory_summary(&self, device: u32, abbreviated: bool) -> String {
        let mut text = String::new();
        let mut line = |content: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "|{content}|");
        };
        line("=".repeat(WIDTH));
        line(format!("{:18}PyTorch CUDA memory summary, device ID {device:<17} ", ""));
        line("-".repeat(WIDTH));
        let (ooms, retries) = (self.num_ooms, self.num_alloc_retries);
        line(format!("{:12}CUDA OOMs: {ooms:<12} | {:7}cudaMalloc retries: {retries:<8}  ", "", ""));
        line("=".repeat(WIDTH));
        line(format!("{:8}Metric{:9}| Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ", "", ""));
        let row = |title: &str, figures: [i64; 4], whole: [i64; 4], bytes: bool| {
            let cells = [0, 1, 2, 3].map(|i| cell(figures[i], whole[i], bytes));
            format!(" {title:21} | {} ", cells.join(" | "))
        };
        for (name, title, bytes) in ROWS {
            line("-".repeat(WIDTH));
            let [all, small, large] = self.get(name).unwrap_or_default().map(columns);
            line(row(title, all, all, bytes));
            if !abbreviated {
                line(row("      from large pool", large, all, bytes));
                line(row("      from small pool", small, all, bytes));
            }
        }
        for (name, title) in SINGLE_ROWS {
            line("-".repeat(WIDTH));
            let figures = columns(self.get_single(name).unwrap_or_default());
            line(row(title, figures, figures, false));
        }
        line("=".repeat(WIDTH));
        text
    }
}
