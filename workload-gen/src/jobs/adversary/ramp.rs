//! Sizes that grow with each iteration: on and on (`ramp`), or up to a point and from the beginning again (`saw`).
//!
//! Each iteration wants a little more than the last left behind, as with lengths that grow in training or a cache of keys and
//! values that is concatenated anew. What was reserved before is too small, and of use to nobody else.

use crate::jobs::{COMMON, Generator, Job};
use crate::spec::{Kind, Param, Values};
use crate::tensor::{Gpu, Role};

pub(in crate::jobs) const RAMP: Generator = Generator {
    name: "ramp",
    about: "adversary: every iteration wants blocks a step larger than the last",
    version: 1,
    params: &[COMMON_TO_BOTH, COMMON],
    build,
};

pub(in crate::jobs) const SAW: Generator = Generator {
    name: "saw",
    about: "adversary: sizes grow by a step with each iteration and fall back to the first after a period",
    version: 1,
    params: &[COMMON_TO_BOTH, PERIOD, COMMON],
    build: build_saw,
};

const COMMON_TO_BOTH: &[Param] = &[
    Param {
        key: "from",
        about: "size of the first blocks",
        kind: Kind::Bytes { min: 1, max: 1 << 40 },
        default: "64MiB",
        unit: "bytes",
    },
    Param {
        key: "step",
        about: "how much larger the blocks of the next iteration are",
        kind: Kind::Bytes { min: 1, max: 1 << 30 },
        default: "4MiB",
        unit: "bytes",
    },
    Param {
        key: "iterations",
        about: "how many there are",
        kind: Kind::Int { min: 1, max: 1_000_000 },
        default: "64",
        unit: "iterations",
    },
    Param {
        key: "blocks",
        about: "blocks of that size that live at the same time",
        kind: Kind::Int { min: 1, max: 100_000 },
        default: "1",
        unit: "blocks",
    },
    Param {
        key: "overlap",
        about: "whether the blocks of an iteration are there before those of the last are freed",
        kind: Kind::Flag,
        default: "no",
        unit: "",
    },
];

const PERIOD: &[Param] = &[Param {
    key: "period",
    about: "iterations until the size is the first again",
    kind: Kind::Int { min: 2, max: 1_000_000 },
    default: "16",
    unit: "iterations",
}];

struct Ramp {
    from: u64,
    step: u64,
    iterations: u64,
    period: u64,
    blocks: u64,
    overlap: bool,
}

fn ramp(values: &Values, period: u64) -> Ramp {
    Ramp {
        from: values.bytes("from"),
        step: values.bytes("step"),
        iterations: values.int("iterations"),
        period,
        blocks: values.int("blocks"),
        overlap: values.flag("overlap"),
    }
}

fn build(values: &Values) -> Result<Box<dyn Job>, String> {
    Ok(Box::new(ramp(values, u64::MAX)))
}

fn build_saw(values: &Values) -> Result<Box<dyn Job>, String> {
    let saw = ramp(values, values.int("period"));
    if saw.iterations <= saw.period {
        return Err(format!(
            "period={} never ends within iterations={}; the sizes would only grow, as in ramp",
            saw.period, saw.iterations
        ));
    }
    Ok(Box::new(saw))
}

impl Job for Ramp {
    fn run(&self, gpu: &Gpu) {
        let name = gpu.name("batch");
        let mut live = Vec::new();
        for iteration in 0..self.iterations {
            if gpu.is_stopped() {
                return;
            }
            gpu.mark(format!("iteration {}", iteration + 1));
            let size = self.from + self.step * (iteration % self.period);
            let new = || (0..self.blocks).map(|_| gpu.storage(size, Role::Buffer, name)).collect::<Vec<_>>();
            if self.overlap {
                live = new();
            } else {
                drop(new());
            }
        }
        drop(live);
    }
}
