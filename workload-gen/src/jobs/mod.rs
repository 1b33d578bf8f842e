//! The generators: jobs that allocate as real ones do. One list, in the order in which people see them.

mod adversary;
mod churn;
mod cnn;
mod dataframe;
mod diffusion;
mod generate;
mod gnn;
mod images;
mod live;
mod mlp;
mod pipeline;
mod serve;
mod train;

use crate::spec::{Kind, Param, Values};
use crate::tensor::Gpu;

/// A kind of workload.
#[derive(Debug)]
pub struct Generator {
    /// Its name.
    pub name: &'static str,
    /// One line on what it is.
    pub about: &'static str,
    /// Goes up when the same parameters make other events.
    pub version: u32,
    /// Its parameters, in groups.
    pub params: &'static [&'static [Param]],
    /// Makes the job, or says which values do not go together.
    pub(crate) build: fn(&Values) -> Result<Box<dyn Job>, String>,
}

/// Something that runs on a device.
pub trait Job: Send + Sync {
    /// Runs it. Called twice, it does the same twice.
    fn run(&self, gpu: &Gpu);
}

/// What every generator has.
pub(crate) const COMMON: &[Param] = &[
    Param {
        key: "seed",
        about: "chooses among the random outcomes",
        kind: Kind::Int { min: 0, max: u64::MAX },
        default: "0",
        unit: "",
    },
    Param {
        key: "device",
        about: "memory of the device that it runs on; 0 for any",
        kind: Kind::Bytes { min: 0, max: 1 << 50 },
        default: "0",
        unit: "bytes",
    },
];

/// All generators.
pub fn generators() -> &'static [Generator] {
    &[
        train::GENERATOR,
        generate::GENERATOR,
        gnn::GENERATOR,
        cnn::GENERATOR,
        diffusion::GENERATOR,
        mlp::GENERATOR,
        serve::GENERATOR,
        churn::GENERATOR,
        dataframe::GENERATOR,
        pipeline::GENERATOR,
        adversary::robson::GENERATOR,
        adversary::comb::GENERATOR,
        adversary::ramp::RAMP,
        adversary::ramp::SAW,
        adversary::powers::GENERATOR,
    ]
}
