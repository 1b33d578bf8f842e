//! Random churn: sizes and lifetimes of given distributions, and nothing else that a real job has.
//!
//! The clock is the count of allocations. Steady state follows from Little's law: what lives is the mean size times the mean
//! lifetime, as long as `live` allows it.

use super::{COMMON, Generator, Job};
use crate::lengths::{Lengths, Rng};
use crate::spec::{Kind, Param, Values};
use crate::tensor::{Gpu, Role, Storage};
use allocator_core::StreamId;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::rc::Rc;

pub(super) const GENERATOR: Generator =
    Generator { name: "churn", about: "random sizes and lifetimes", version: 1, params: &[PARAMS, COMMON], build };

const PARAMS: &[Param] = &[
    Param {
        key: "allocations",
        about: "how many there are; twice as many events",
        kind: Kind::Int { min: 1, max: 10_000_000_000 },
        default: "100000",
        unit: "allocations",
    },
    Param {
        key: "size",
        about: "distribution of sizes, as lengths are written",
        kind: Kind::Text("a distribution such as lognormal(13,2) or uniform(1,1048576)", is_lengths),
        default: "lognormal(13,2)",
        unit: "grains",
    },
    Param {
        key: "grain",
        about: "what a size is counted in",
        kind: Kind::Bytes { min: 1, max: 1 << 20 },
        default: "1",
        unit: "bytes",
    },
    Param {
        key: "lifetime",
        about: "distribution of lifetimes, as lengths are written: how many allocations come before the free",
        kind: Kind::Text("a distribution such as lognormal(5,2) or bimodal(3,5000,0.1)", is_lengths),
        default: "lognormal(5,2)",
        unit: "allocations",
    },
    Param {
        key: "live",
        about: "what lives at most: what would die next dies early if there is no room, and a size that is more becomes this",
        kind: Kind::Bytes { min: 1, max: 1 << 50 },
        default: "16GiB",
        unit: "bytes",
    },
    Param {
        key: "kept",
        about: "share of the allocations that stay to the end, until they take half of `live`",
        kind: Kind::Real { min: 0.0, max: 1.0 },
        default: "0",
        unit: "",
    },
    Param {
        key: "streams",
        about: "streams that allocate, each as often as the others",
        kind: Kind::Int { min: 1, max: 1024 },
        default: "1",
        unit: "streams",
    },
];

pub(super) fn is_lengths(text: &str) -> Result<(), String> {
    Lengths::parse(text).map(drop)
}

struct Churn {
    allocations: u64,
    sizes: Lengths,
    grain: u64,
    lifetimes: Lengths,
    live: u64,
    kept: f64,
    streams: u64,
    rng: Rng,
}

fn build(values: &Values) -> Result<Box<dyn Job>, String> {
    let churn = Churn {
        allocations: values.int("allocations"),
        sizes: Lengths::parse(values.text("size"))?,
        grain: values.bytes("grain"),
        lifetimes: Lengths::parse(values.text("lifetime"))?,
        live: values.bytes("live"),
        kept: values.real("kept"),
        streams: values.int("streams"),
        rng: Rng::new(values.int("seed")),
    };
    let least = churn.sizes.range().0 * churn.grain;
    if least > churn.live {
        return Err(format!("live={} has no room for the least size, which is {least} bytes", values.text("live")));
    }
    Ok(Box::new(churn))
}

/// A block that will die.
struct Mortal {
    death: u64,
    birth: u64,
    size: u64,
    _block: Rc<Storage>,
}

impl Ord for Mortal {
    /// The greatest dies first.
    fn cmp(&self, other: &Mortal) -> Ordering {
        (other.death, other.birth).cmp(&(self.death, self.birth))
    }
}

impl PartialOrd for Mortal {
    fn partial_cmp(&self, other: &Mortal) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Mortal {
    fn eq(&self, other: &Mortal) -> bool {
        self.birth == other.birth
    }
}

impl Eq for Mortal {}

impl Job for Churn {
    fn run(&self, gpu: &Gpu) {
        let (mortal_name, kept_name) = (gpu.name("mortal"), gpu.name("kept"));
        let [sizes, lifetimes, keeping, placing] = [0, 1, 2, 3].map(|stream| self.rng.fork(stream));
        let (mut sizes, mut lifetimes) = (self.sizes.sampler(sizes), self.lifetimes.sampler(lifetimes));
        let (mut keeping, mut placing) = (keeping, placing);
        let (mut mortals, mut kept) = (BinaryHeap::<Mortal>::new(), Vec::new());
        let (mut live, mut kept_bytes) = (0, 0);
        for birth in 0..self.allocations {
            if gpu.is_stopped() {
                return;
            }
            let size = (sizes.draw() * self.grain).min(self.live - kept_bytes);
            while let Some(next) = mortals.peek()
                && (next.death <= birth || live + size > self.live)
            {
                live -= next.size;
                mortals.pop();
            }
            let is_kept = self.kept > 0.0 && keeping.unit() < self.kept && kept_bytes + size <= self.live / 2;
            let name = if is_kept { kept_name } else { mortal_name };
            let allocate = || gpu.storage(size, Role::Buffer, name);
            let block = match self.streams {
                1 => allocate(),
                streams => gpu.on_stream(StreamId(placing.below(streams) as u32), allocate),
            };
            live += size;
            if is_kept {
                kept_bytes += size;
                kept.push(block);
            } else {
                mortals.push(Mortal { death: birth + lifetimes.draw(), birth, size, _block: block });
            }
        }
        gpu.exit();
    }
}
