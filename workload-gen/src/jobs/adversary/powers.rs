//! Sizes just above powers of two: what is rounded up to the next power is half empty.

use crate::jobs::live::Live;
use crate::jobs::{COMMON, Generator, Job};
use crate::lengths::Rng;
use crate::spec::{Kind, Param, Values};
use crate::tensor::{Gpu, Role};

pub(in crate::jobs) const GENERATOR: Generator = Generator {
    name: "pow2",
    about: "adversary: blocks of 2^k bytes and a little more, which die at random",
    version: 1,
    params: &[PARAMS, COMMON],
    build,
};

const PARAMS: &[Param] = &[
    Param { key: "least", about: "the least k", kind: Kind::Int { min: 0, max: 40 }, default: "16", unit: "doublings" },
    Param {
        key: "most",
        about: "the greatest k",
        kind: Kind::Int { min: 0, max: 40 },
        default: "25",
        unit: "doublings",
    },
    Param {
        key: "extra",
        about: "what each size has above its power of two",
        kind: Kind::Bytes { min: 0, max: 1 << 30 },
        default: "512",
        unit: "bytes",
    },
    Param {
        key: "live",
        about: "what lives at most; as much is freed before an allocation as it needs",
        kind: Kind::Bytes { min: 1, max: 1 << 50 },
        default: "1GiB",
        unit: "bytes",
    },
    Param {
        key: "allocations",
        about: "how many there are",
        kind: Kind::Int { min: 1, max: 10_000_000_000 },
        default: "10000",
        unit: "allocations",
    },
];

struct Powers {
    least: u64,
    most: u64,
    extra: u64,
    live: u64,
    allocations: u64,
    seed: u64,
}

fn build(values: &Values) -> Result<Box<dyn Job>, String> {
    let powers = Powers {
        least: values.int("least"),
        most: values.int("most"),
        extra: values.bytes("extra"),
        live: values.bytes("live"),
        allocations: values.int("allocations"),
        seed: values.int("seed"),
    };
    if powers.least > powers.most {
        return Err(format!("least={} is more than most={}", powers.least, powers.most));
    }
    if (1 << powers.most) + powers.extra > powers.live {
        return Err(format!(
            "a block of 2^{} + {} bytes is more than live={}; raise live, or lower most",
            powers.most,
            powers.extra,
            values.text("live")
        ));
    }
    Ok(Box::new(powers))
}

impl Job for Powers {
    fn run(&self, gpu: &Gpu) {
        let names: Vec<_> = (self.least..=self.most).map(|power| gpu.name(&format!("2^{power}"))).collect();
        let (mut rng, mut live) = (Rng::new(self.seed), Live::default());
        for _ in 0..self.allocations {
            if gpu.is_stopped() {
                return;
            }
            let place = rng.below(names.len() as u64);
            let size = (1 << (self.least + place)) + self.extra;
            while live.bytes() + size > self.live {
                live.free_any(&mut rng);
            }
            live.push(gpu.storage(size, Role::Buffer, names[place as usize]), size);
        }
        gpu.exit();
    }
}
