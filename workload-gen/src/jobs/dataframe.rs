//! What a library of data frames asks for: a few large columns of any size, which come and go in no order.
//!
//! The rules are those of RAPIDS RMM's benchmark of its memory resources (`benchmarks/random_allocations`): sizes are uniform
//! from 1 byte to 4096 MiB, 73 % of the steps want to allocate, and one that would go above 16,000 MiB frees instead. There are
//! twice as many steps as allocations, so in the end everything is freed.

use super::live::Live;
use super::{COMMON, Generator, Job};
use crate::lengths::Rng;
use crate::spec::{Kind, Param, Values};
use crate::tensor::{Gpu, Role};

pub(super) const GENERATOR: Generator = Generator {
    name: "dataframe",
    about: "random sizes of up to 4 GiB that die at random, by the rules of RMM's random_allocations benchmark",
    version: 1,
    params: &[PARAMS, COMMON],
    build,
};

const PARAMS: &[Param] = &[
    Param {
        key: "allocations",
        about: "how many there are, and as many frees",
        kind: Kind::Int { min: 1, max: 10_000_000_000 },
        default: "1000",
        unit: "allocations",
    },
    Param {
        key: "least",
        about: "the least size; all sizes from here on are alike",
        kind: Kind::Bytes { min: 1, max: 1 << 40 },
        default: "1",
        unit: "bytes",
    },
    Param {
        key: "most",
        about: "the greatest size",
        kind: Kind::Bytes { min: 1, max: 1 << 40 },
        default: "4096MiB",
        unit: "bytes",
    },
    Param {
        key: "share",
        about: "share of the steps that allocate, where there is room",
        kind: Kind::Real { min: 0.0, max: 1.0 },
        default: "0.73",
        unit: "",
    },
    Param {
        key: "live",
        about: "what lives stays below this; by default 16000MiB, and below `device`",
        kind: Kind::Bytes { min: 2, max: 1 << 50 },
        default: "",
        unit: "bytes",
    },
];

struct Dataframe {
    allocations: u64,
    sizes: (u64, u64),
    share: f64,
    live: u64,
    seed: u64,
}

fn build(values: &Values) -> Result<Box<dyn Job>, String> {
    const LIVE: u64 = 16_000 << 20;
    let device = match values.bytes("device") {
        0 => u64::MAX,
        bytes => bytes,
    };
    let live = if values.is_given("live") { values.bytes("live") } else { LIVE.min(device) };
    let sizes = (values.bytes("least"), values.bytes("most"));
    if sizes.0 > sizes.1 {
        return Err(format!("least={} is more than most={}", values.text("least"), values.text("most")));
    }
    if live > device {
        return Err(format!("live={} is more than device={}", values.text("live"), values.text("device")));
    }
    if sizes.1 >= live {
        return Err(format!("most={} is not less than live, which is {live} bytes", values.text("most")));
    }
    let (allocations, share, seed) = (values.int("allocations"), values.real("share"), values.int("seed"));
    Ok(Box::new(Dataframe { allocations, sizes, share, live, seed }))
}

impl Job for Dataframe {
    fn run(&self, gpu: &Gpu) {
        let name = gpu.name("column");
        let (mut rng, mut live) = (Rng::new(self.seed), Live::default());
        let mut left = self.allocations;
        while (left > 0 || !live.is_empty()) && !gpu.is_stopped() {
            let size = rng.range(self.sizes.0, self.sizes.1);
            let allocates = live.is_empty() || rng.unit() < self.share && left > 0 && live.bytes() + size < self.live;
            if allocates {
                live.push(gpu.storage(size, Role::Buffer, name), size);
                left -= 1;
            } else {
                live.free_any(&mut rng);
            }
        }
    }
}
