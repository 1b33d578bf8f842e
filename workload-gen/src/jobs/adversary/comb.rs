//! The comb: small blocks stay between large ones that go, and then something larger than a gap is wanted.
//!
//! Memory is there, and none of it in one piece. Who maps pages, or gives whole segments back, gets round it; with `joined`
//! all teeth lie in one segment of a caching allocator, and then it cannot.

use crate::jobs::{COMMON, Generator, Job};
use crate::spec::{Kind, Param, Values};
use crate::tensor::{Gpu, Role};

pub(in crate::jobs) const GENERATOR: Generator = Generator {
    name: "comb",
    about: "adversary: small blocks stay between large ones that are freed, then blocks wider than a gap are wanted",
    version: 1,
    params: &[PARAMS, COMMON],
    build,
};

const PARAMS: &[Param] = &[
    Param {
        key: "teeth",
        about: "small blocks that stay, and gaps",
        kind: Kind::Int { min: 1, max: 1_000_000 },
        default: "20",
        unit: "blocks",
    },
    Param {
        key: "tooth",
        about: "size of a block that stays",
        kind: Kind::Bytes { min: 1, max: 1 << 40 },
        default: "2MiB",
        unit: "bytes",
    },
    Param {
        key: "gap",
        about: "size of a block that goes",
        kind: Kind::Bytes { min: 1, max: 1 << 40 },
        default: "64MiB",
        unit: "bytes",
    },
    Param {
        key: "wide",
        about: "size of the blocks that are wanted in the end; as many as the gaps have bytes for",
        kind: Kind::Bytes { min: 1, max: 1 << 50 },
        default: "128MiB",
        unit: "bytes",
    },
    Param {
        key: "joined",
        about: "whether one block of the size of all is allocated and freed first, so that a cache puts all into one segment",
        kind: Kind::Flag,
        default: "yes",
        unit: "",
    },
    Param {
        key: "iterations",
        about: "how often all of it is done; the teeth go in the end of each",
        kind: Kind::Int { min: 1, max: 1_000_000 },
        default: "1",
        unit: "iterations",
    },
];

struct Comb {
    teeth: u64,
    tooth: u64,
    gap: u64,
    wide: u64,
    joined: bool,
    iterations: u64,
}

fn build(values: &Values) -> Result<Box<dyn Job>, String> {
    let comb = Comb {
        teeth: values.int("teeth"),
        tooth: values.bytes("tooth"),
        gap: values.bytes("gap"),
        wide: values.bytes("wide"),
        joined: values.flag("joined"),
        iterations: values.int("iterations"),
    };
    if comb.wide <= comb.gap {
        return Err(format!(
            "wide={} fits into a gap of gap={}; wide has to be the larger",
            values.text("wide"),
            values.text("gap")
        ));
    }
    if comb.gap * comb.teeth < comb.wide {
        return Err(format!(
            "wide={} is more than all gaps together, teeth={} of gap={}",
            values.text("wide"),
            comb.teeth,
            values.text("gap")
        ));
    }
    Ok(Box::new(comb))
}

impl Job for Comb {
    fn run(&self, gpu: &Gpu) {
        let [tooth, gap, wide, all] = ["tooth", "gap", "wide", "all"].map(|text| gpu.name(text));
        for iteration in 1..=self.iterations {
            if gpu.is_stopped() {
                return;
            }
            gpu.mark(format!("iteration {iteration}"));
            if self.joined {
                gpu.scratch(self.teeth * (self.tooth + self.gap), Role::Buffer, all);
            }
            let pair = |_| (gpu.storage(self.tooth, Role::Buffer, tooth), gpu.storage(self.gap, Role::Buffer, gap));
            let (teeth, gaps): (Vec<_>, Vec<_>) = (0..self.teeth).map(pair).unzip();
            drop(gaps);
            gpu.mark("gaps freed");
            let count = self.gap * self.teeth / self.wide;
            drop((0..count).map(|_| gpu.storage(self.wide, Role::Buffer, wide)).collect::<Vec<_>>());
            drop(teeth);
        }
    }
}
