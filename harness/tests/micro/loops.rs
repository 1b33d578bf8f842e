//! The traces that are too long to write by hand, each from the loop that it is.

use std::collections::BTreeMap;
use std::fmt::Write;

const MIB: u64 = 1 << 20;

/// A trace under way: live blocks by name, in the lowest free slots.
struct Script {
    text: String,
    slots: Vec<Option<String>>,
}

impl Script {
    fn new(source: &str, device: u64) -> Script {
        Script {
            text: format!("gpu-alloc-trace 1\n# source = {source}\n# device_bytes = {device}\n"),
            slots: Vec::new(),
        }
    }

    /// Any event that concerns no slot.
    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "{line}");
    }

    fn allocate(&mut self, name: impl Into<String>, size: u64) {
        self.allocate_in("", name, size);
    }

    fn allocate_in(&mut self, pool: &str, name: impl Into<String>, size: u64) {
        let slot = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        self.slots.resize(self.slots.len().max(slot + 1), None);
        self.slots[slot] = Some(name.into());
        let _ = writeln!(self.text, "a {slot} {size} 0{pool}");
    }

    fn free(&mut self, name: &str) {
        let slot = self.slots.iter().position(|taken| taken.as_deref() == Some(name)).expect("a live block");
        self.slots[slot] = None;
        let _ = writeln!(self.text, "f {slot}");
    }
}

/// Every trace, by name.
pub fn all() -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("split-cap", split_cap()),
        ("capture-ascending", capture(1..=8)),
        ("capture-descending", capture((1..=8).rev())),
        ("ramp", ramp()),
        ("above-powers", above_powers()),
        ("comb", comb(true)),
        ("comb-apart", comb(false)),
        ("sync-threshold", sync_threshold()),
        ("robson", robson()),
    ])
}

fn split_cap() -> String {
    let mut script = Script::new("https://github.com/pytorch/pytorch/issues/123548", 16384 * MIB);
    for cycle in 0..=100 {
        script.allocate("a", 91 * MIB);
        script.allocate("b", 91 * MIB / 2);
        script.allocate(format!("kept {cycle}"), 2 * MIB);
        script.free("a");
        script.free("b");
        if [0, 20, 100].contains(&cycle) {
            script.line(&format!("m cycle {cycle}"));
        }
    }
    script.text
}

/// One graph for each batch size, all in one private pool. A graph's output stays, its activations do not.
fn capture(batches: impl Iterator<Item = u64>) -> String {
    let mut script = Script::new("https://github.com/NVIDIA/TensorRT-LLM/pull/3116", 8192 * MIB);
    for batch in batches {
        script.line("p begin 1");
        script.allocate_in(" p1", "hidden", batch * 16 * MIB);
        script.allocate_in(" p1", "wide", batch * 64 * MIB);
        script.allocate_in(" p1", format!("output {batch}"), batch * 4 * MIB);
        script.free("wide");
        script.free("hidden");
        script.line("p end 1");
    }
    script.text
}

fn ramp() -> String {
    let mut script = Script::new("harness/tests/micro/loops.rs", 4096 * MIB);
    for iteration in 0..32 {
        script.allocate("batch", (64 + 4 * iteration) * MIB);
        script.free("batch");
        if [0, 15, 31].contains(&iteration) {
            script.line(&format!("m size {}", iteration + 1));
        }
    }
    script.text
}

fn above_powers() -> String {
    let mut script = Script::new("harness/tests/micro/loops.rs", 4096 * MIB);
    for power in (16..=25).rev() {
        for copy in 0..2 {
            script.allocate(format!("{power} {copy}"), (1 << power) + 512);
        }
    }
    script.text
}

/// Twenty blocks freed between as many that stay; if `joined`, all of them in one segment.
fn comb(joined: bool) -> String {
    let mut script = Script::new("harness/tests/micro/loops.rs", 1320 * MIB);
    if joined {
        script.allocate("all", 1320 * MIB);
        script.free("all");
    }
    for tooth in 0..20 {
        script.allocate(format!("kept {tooth}"), 2 * MIB);
        script.allocate(format!("gap {tooth}"), 64 * MIB);
    }
    for tooth in 0..20 {
        script.free(&format!("gap {tooth}"));
    }
    script.line("m gaps freed");
    script.allocate("wide", 128 * MIB);
    script.text
}

fn sync_threshold() -> String {
    let mut script = Script::new("harness/tests/micro/loops.rs", 4096 * MIB);
    for iteration in 1..=10 {
        for block in 1..=4 {
            script.allocate(block.to_string(), block * 32 * MIB);
        }
        for block in 1..=4 {
            script.free(&block.to_string());
        }
        script.line("y *");
        if [1, 10].contains(&iteration) {
            script.line(&format!("m iteration {iteration}"));
        }
    }
    script.text
}

/// Robson's program against first fit, for at most 64 live units and blocks of up to 16: each round leaves a block
/// wherever it does most harm to the next size.
fn robson() -> String {
    const UNIT: u64 = 2 * MIB;
    const LIVE: u64 = 64;
    let mut script = Script::new("harness/tests/micro/loops.rs", 1024 * MIB);
    // The end of each live block by its start, as first fit places it.
    let mut placed: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut offset, mut extent) = (0, 0);
    for round in 0..=4 {
        let size = 1 << round;
        // Whether a block holds a unit whose number is `offset` modulo the size.
        let hits = |start: u64, end: u64, offset: u64| (start..end).any(|unit| unit % size == offset);
        if round > 0 {
            let harm = |offset: u64| -> u64 {
                placed
                    .iter()
                    .filter(|&(&start, &end)| hits(start, end, offset))
                    .map(|(start, end)| size + start - end)
                    .sum()
            };
            let other = offset + size / 2;
            offset = if harm(other) > harm(offset) { other } else { offset };
            placed.retain(|&start, &mut end| {
                let stays = hits(start, end, offset);
                if !stays {
                    script.free(&start.to_string());
                }
                stays
            });
        }
        let mut live: u64 = placed.iter().map(|(start, end)| end - start).sum();
        while live + size <= LIVE {
            let mut start = 0;
            for (&next, &end) in &placed {
                if start + size <= next {
                    break;
                }
                start = end;
            }
            placed.insert(start, start + size);
            extent = extent.max(start + size);
            script.allocate(start.to_string(), size * UNIT);
            live += size;
        }
        script.line(&format!("m blocks of {}", size * UNIT / MIB));
    }
    // Robson's bound in units, which first fit meets: LIVE (log2(16) / 2 + 1) - 16 + 1.
    assert_eq!(extent, LIVE * 3 - 15, "first fit");
    script.text
}
