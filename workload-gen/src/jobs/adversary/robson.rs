//! Robson's program, which drives first fit to the worst that an allocator can be driven to.
//!
//! J. M. Robson, "An estimate of the store size necessary for dynamic storage allocation" (JACM 18(3), 1971) and "Bounds for
//! some functions concerning dynamic storage allocation" (JACM 21(3), 1974): with at most M units live, in blocks of powers
//! of two up to n, no allocator that does not move blocks gets by with less than M (log2(n) / 2 + 1) - n + 1 units, and first
//! fit gets by with that. The program goes in rounds. Round i has an offset `f`, and keeps of what lives the blocks that hold
//! a unit whose number is `f` modulo 2^i: no block of 2^i units fits between two of them. All else is freed, and the room that
//! is left in M is filled with blocks of 2^i. The next offset is `f` or `f` + 2^i, whichever leaves the blocks that stay with
//! less of their neighbourhood used.
//!
//! The program looks at addresses. A trace cannot, so the addresses are those that first fit gives in one region: against
//! first fit the trace is the worst case, against others a hard one.

use crate::jobs::{COMMON, Generator, Job};
use crate::spec::{Kind, Param, Values};
use crate::tensor::{Gpu, Role, Storage};
use std::rc::Rc;

pub(in crate::jobs) const GENERATOR: Generator = Generator {
    name: "robson",
    about: "Robson's adversary: blocks of 1, 2, 4... units, each kept where it spoils most, the worst case of first fit",
    version: 1,
    params: &[PARAMS, COMMON],
    build,
};

const PARAMS: &[Param] = &[
    Param {
        key: "unit",
        about: "size of the smallest block",
        kind: Kind::Bytes { min: 1, max: 1 << 30 },
        default: "2MiB",
        unit: "bytes",
    },
    Param {
        key: "live",
        about: "what lives at most",
        kind: Kind::Int { min: 2, max: 1 << 20 },
        default: "1024",
        unit: "units",
    },
    Param {
        key: "rounds",
        about: "how often the size is doubled",
        kind: Kind::Int { min: 1, max: 20 },
        default: "7",
        unit: "doublings",
    },
    Param {
        key: "iterations",
        about: "how often all of it is done; everything is freed between",
        kind: Kind::Int { min: 1, max: 1_000_000 },
        default: "1",
        unit: "iterations",
    },
];

struct Robson {
    unit: u64,
    live: u64,
    rounds: u64,
    iterations: u64,
}

fn build(values: &Values) -> Result<Box<dyn Job>, String> {
    let robson = Robson {
        unit: values.bytes("unit"),
        live: values.int("live"),
        rounds: values.int("rounds"),
        iterations: values.int("iterations"),
    };
    if 1 << robson.rounds > robson.live {
        let (rounds, live, most) = (robson.rounds, robson.live, robson.live.ilog2());
        return Err(format!(
            "after rounds={rounds} a block has {} units, and live={live} has no room for one; rounds is at most {most} then",
            1u64 << rounds
        ));
    }
    Ok(Box::new(robson))
}

/// A block where first fit has put it. Units are numbered from the start of the region.
struct Placed {
    start: u64,
    end: u64,
    _memory: Rc<Storage>,
}

impl Placed {
    /// Whether it holds a unit whose number is `offset` modulo `size`, which is a power of two.
    fn holds(&self, offset: u64, size: u64) -> bool {
        let first = (self.start.wrapping_sub(offset).wrapping_add(size - 1) & !(size - 1)).wrapping_add(offset);
        (self.start..self.end).contains(&first)
    }
}

impl Job for Robson {
    fn run(&self, gpu: &Gpu) {
        let name = gpu.name("robson");
        for iteration in 1..=self.iterations {
            gpu.mark(format!("iteration {iteration}"));
            let (mut placed, mut offset) = (Vec::new(), 0);
            for round in 0..=self.rounds {
                if gpu.is_stopped() {
                    return;
                }
                let size = 1 << round;
                offset = self.keep(&mut placed, offset, size);
                let used: u64 = placed.iter().map(|block: &Placed| block.end - block.start).sum();
                let memory = || gpu.storage(size * self.unit, Role::Buffer, name);
                placed = fill(placed, (self.live - used) / size, size, memory);
                gpu.mark(format!("blocks of {size} units"));
            }
        }
    }
}

impl Robson {
    /// Frees what does not spoil room for blocks of `size`, and returns the offset that says what does.
    fn keep(&self, placed: &mut Vec<Placed>, offset: u64, size: u64) -> u64 {
        let spoilt = |offset| -> u64 {
            placed.iter().filter(|block| block.holds(offset, size)).map(|block| size + block.start - block.end).sum()
        };
        let other = offset + size / 2;
        let offset = if spoilt(other) > spoilt(offset) { other } else { offset };
        placed.retain(|block| block.holds(offset, size));
        offset
    }
}

/// Puts `count` blocks of `size` in the first gaps that hold them. Blocks stay in the order of their addresses.
fn fill(placed: Vec<Placed>, mut count: u64, size: u64, memory: impl Fn() -> Rc<Storage>) -> Vec<Placed> {
    let mut filled = Vec::with_capacity(placed.len() + count as usize);
    let mut start = 0;
    let mut put = |filled: &mut Vec<Placed>, start: &mut u64, before: u64| {
        while count > 0 && *start + size <= before {
            filled.push(Placed { start: *start, end: *start + size, _memory: memory() });
            *start += size;
            count -= 1;
        }
    };
    for block in placed {
        put(&mut filled, &mut start, block.start);
        start = block.end;
        filled.push(block);
    }
    put(&mut filled, &mut start, u64::MAX);
    filled
}
