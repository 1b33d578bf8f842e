//! Training of a residual network on images whose sizes change from batch to batch.
//!
//! The network is torchvision's. All that it allocates is that of recordings, but for what cuDNN takes while a convolution runs:
//! see `ops/workspace.rs`.

use super::images::{LIST, MOST, images};
use super::{COMMON, Generator, Job};
use crate::lengths::{Lengths, Rng};
use crate::models::{Resnet, ResnetShape, TRAINED};
use crate::ops::{AdamW, Cx, Images, Sgd, backward_from, zero_grad};
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
        key: "images",
        about: "these batches in this order, then again from the start, instead of batch and sides; sides are as they are given",
        kind: Kind::Text(LIST, |text| images(text).map(drop)),
        default: "",
        unit: "",
    },
    Param {
        key: "optimizer",
        about: "SGD with momentum, or AdamW",
        kind: Kind::Choice(&["sgd", "adamw"]),
        default: "sgd",
        unit: "",
    },
    Param {
        key: "decay",
        about: "whether SGD decays weights, for which it makes a second gradient of each; AdamW decays them where they are",
        kind: Kind::Flag,
        default: "yes",
        unit: "",
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

/// Stages, at most: each doubles the channels.
const STAGES: usize = 8;

enum Batches {
    List(Vec<Images>),
    Random { count: u64, sides: Lengths },
}

impl Batches {
    /// Batches, without end.
    fn draw(&self, seed: u64) -> Box<dyn Iterator<Item = Images> + '_> {
        match self {
            Batches::List(batches) => Box::new(batches.iter().copied().cycle()),
            Batches::Random { count, sides } => Box::new(sides.sampler(Rng::new(seed)).map(|side| {
                let side = side.min(MOST).next_multiple_of(GRAIN);
                Images { count: *count, height: side, width: side }
            })),
        }
    }
}

enum Optimizer {
    AdamW(AdamW),
    Sgd(Sgd),
}

struct Cnn {
    shape: ResnetShape,
    batches: Batches,
    is_adamw: bool,
    has_decay: bool,
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
    let batches = match values.is_given("images") {
        true if values.is_changed("batch") || values.is_changed("sides") => {
            return Err("images says what batch and sides would; give the one or the others".to_string());
        }
        true => Batches::List(images(values.text("images"))?),
        false => Batches::Random { count: values.int("batch"), sides: Lengths::parse(values.text("sides"))? },
    };
    let is_adamw = values.text("optimizer") == "adamw";
    if is_adamw && values.is_changed("decay") {
        return Err("decay is SGD's; AdamW always decays weights, and needs nothing for it".to_string());
    }
    Ok(Box::new(Cnn {
        shape,
        batches,
        is_adamw,
        has_decay: values.flag("decay"),
        is_autocast: values.text("precision") == "bf16",
        steps: values.int("steps"),
        seed: values.int("seed"),
    }))
}

impl Job for Cnn {
    fn run(&self, gpu: &Gpu) {
        let model = Resnet::new(gpu, &self.shape, TRAINED);
        let parameters = model.parameters();
        let mut optimizer = match self.is_adamw {
            true => Optimizer::AdamW(AdamW::new(gpu, parameters.len())),
            false => Optimizer::Sgd(Sgd::new(gpu, parameters.len(), self.has_decay)),
        };
        let (input, loss_name) = (gpu.name("images"), gpu.name("loss"));
        // The program's variables: each is let go of when its successor is there.
        let (mut x, mut classes, mut last_loss): (Option<Tensor>, Option<Tensor>, Option<Tensor>) = (None, None, None);
        for (step, images) in (0..self.steps).zip(self.batches.draw(self.seed)) {
            if gpu.is_stopped() {
                break;
            }
            gpu.mark(format!("iteration {step}"));
            let x = x.insert(gpu.tensor(images.pixels() * 3, Dtype::F32, Role::Input, input));
            let classes = classes.insert(gpu.tensor(images.count, Dtype::I64, Role::Input, input));
            let cx = if self.is_autocast { Cx::autocast(gpu, Dtype::Bf16) } else { Cx::plain(gpu) };
            let loss = {
                let scores = model.forward(&cx, x, images);
                model.loss(&cx, &scores, classes)
            };
            let loss = last_loss.insert(loss);
            drop(cx);
            backward_from(gpu, loss, loss_name);
            match &mut optimizer {
                Optimizer::AdamW(adamw) => adamw.step(gpu, &parameters),
                Optimizer::Sgd(sgd) => sgd.step(gpu, &parameters),
            }
            zero_grad(&parameters);
            gpu.sync();
        }
        gpu.exit();
    }
}

#[cfg(test)]
mod tests {
    use crate::spec::Spec;

    #[test]
    fn what_says_the_same_twice_is_refused() {
        for (line, part) in [
            ("cnn:images=list(8x160x160),batch=4", "batch and sides"),
            ("cnn:images=list(8x160x160),sides=224", "batch and sides"),
            ("cnn:optimizer=adamw,decay=no", "SGD's"),
            ("cnn:images=8x160x160", "not list"),
        ] {
            let error = Spec::parse(line).expect_err(line).to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
