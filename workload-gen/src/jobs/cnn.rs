//! Training of a residual network on images whose sizes change from batch to batch.

use super::{COMMON, Generator, Job};
use crate::lengths::{Lengths, Rng};
use crate::models::{Resnet, ResnetShape, TRAINED};
use crate::ops::{Cx, Images, Sgd, backward_from, zero_grad};
use crate::spec::{Kind, Param, Values};
use crate::tensor::{Dtype, Gpu, Role, Tensor};

const PARAMS: &[Param] = &[
    Param {
        key: "stages",
        about: "blocks of each stage; 2+2+2+2 is ResNet-18 with basic blocks, 3+4+6+3 ResNet-50 with bottlenecks",
        kind: Kind::Ints { min: 1, max: 200 },
        default: "3+4+6+3",
        unit: "blocks",
    },
    Param {
        key: "block",
        about: "what a block is: two windows of three pixels, or one between two of single pixels",
        kind: Kind::Choice(&["basic", "bottleneck"]),
        default: "bottleneck",
        unit: "",
    },
    Param {
        key: "width",
        about: "channels of the first stage; each stage has twice those of the one before",
        kind: Kind::Int { min: 1, max: 4096 },
        default: "64",
        unit: "channels",
    },
    Param {
        key: "classes",
        about: "what an image is classified as",
        kind: Kind::Int { min: 2, max: 1 << 20 },
        default: "1000",
        unit: "classes",
    },
    Param {
        key: "batch",
        about: "images of a batch",
        kind: Kind::Int { min: 1, max: 1 << 16 },
        default: "32",
        unit: "images",
    },
    Param {
        key: "sides",
        about: "height and width of a batch's images, rounded up to a multiple of 32, 16384 at most: a distribution, written as lengths are",
        kind: Kind::Text("a distribution of lengths", |text| Lengths::parse(text).map(drop)),
        default: "uniform(128,320)",
        unit: "pixels",
    },
    Param {
        key: "precision",
        about: "type of products and convolutions, by autocast",
        kind: Kind::Choice(&["bf16", "fp32"]),
        default: "fp32",
        unit: "",
    },
    Param {
        key: "steps",
        about: "training steps",
        kind: Kind::Int { min: 1, max: 1_000_000_000 },
        default: "40",
        unit: "steps",
    },
];

pub(super) const GENERATOR: Generator = Generator {
    name: "cnn",
    about: "training of a residual network on images whose sizes change",
    version: 1,
    params: &[COMMON, PARAMS],
    build,
};

/// Sides are multiples of this: what five halvings leave whole.
const GRAIN: u64 = 32;

/// The largest side.
const MOST: u64 = 1 << 14;

/// Stages, at most: each doubles the channels.
const STAGES: usize = 8;

struct Cnn {
    shape: ResnetShape,
    batch: u64,
    sides: Lengths,
    is_autocast: bool,
    steps: u64,
    seed: u64,
}

fn build(values: &Values) -> Result<Box<dyn Job>, String> {
    let shape = ResnetShape {
        stages: values.ints("stages"),
        width: values.int("width"),
        is_bottleneck: values.text("block") == "bottleneck",
        classes: values.int("classes"),
    };
    if shape.stages.len() > STAGES {
        return Err(format!("stages={} are more than {STAGES}", values.text("stages")));
    }
    Ok(Box::new(Cnn {
        shape,
        batch: values.int("batch"),
        sides: Lengths::parse(values.text("sides"))?,
        is_autocast: values.text("precision") == "bf16",
        steps: values.int("steps"),
        seed: values.int("seed"),
    }))
}

impl Job for Cnn {
    fn run(&self, gpu: &Gpu) {
        let model = Resnet::new(gpu, &self.shape, TRAINED);
        let parameters = model.parameters();
        let mut optimizer = Sgd::new(gpu, parameters.len());
        let (input, loss_name) = (gpu.name("images"), gpu.name("loss"));
        let (mut batch, mut last_loss): (Option<(Tensor, Tensor)>, Option<Tensor>) = (None, None);
        for (step, side) in (0..self.steps).zip(self.sides.sampler(Rng::new(self.seed))) {
            if gpu.is_stopped() {
                break;
            }
            gpu.mark(format!("iteration {step}"));
            let side = side.min(MOST).next_multiple_of(GRAIN);
            let images = Images { count: self.batch, height: side, width: side };
            let x = gpu.tensor(images.pixels() * 3, Dtype::F32, Role::Input, input);
            let (x, classes) = batch.insert((x, gpu.tensor(self.batch, Dtype::I64, Role::Input, input)));
            let cx = if self.is_autocast { Cx::autocast(gpu, Dtype::Bf16) } else { Cx::plain(gpu) };
            let loss = {
                let scores = model.forward(&cx, x, images);
                model.loss(&cx, &scores, classes)
            };
            let loss = last_loss.insert(loss);
            drop(cx);
            backward_from(gpu, loss, loss_name);
            optimizer.step(gpu, &parameters);
            zero_grad(&parameters);
            gpu.sync();
        }
        gpu.exit();
    }
}
