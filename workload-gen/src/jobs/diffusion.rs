//! Training of a diffusion model on images whose sizes come from buckets.

use super::images::{LIST, images};
use super::{COMMON, Generator, Job};
use crate::lengths::Rng;
use crate::models::{TRAINED, Unet, UnetShape};
use crate::ops::{AdamW, Cx, Images, backward_from, zero_grad};
use crate::spec::{Kind, Param, Values};
use crate::tensor::{Dtype, Gpu, Role, Tensor};

const PARAMS: &[Param] = &[
    Param {
        key: "levels",
        about: "channels of the network's levels, from the top to the bottom",
        kind: Kind::Ints { min: 1, max: 1 << 16 },
        default: "64+128+256+512",
        unit: "channels",
    },
    Param {
        key: "channels",
        about: "channels of the images",
        kind: Kind::Int { min: 1, max: 1 << 16 },
        default: "4",
        unit: "channels",
    },
    Param {
        key: "groups",
        about: "groups of channels that are normalised together",
        kind: Kind::Int { min: 1, max: 1 << 16 },
        default: "8",
        unit: "groups",
    },
    Param {
        key: "heads",
        about: "heads of the attention at the bottom",
        kind: Kind::Int { min: 1, max: 1 << 16 },
        default: "8",
        unit: "heads",
    },
    Param {
        key: "buckets",
        about: "shapes of batches",
        kind: Kind::Text(LIST, |text| images(text).map(drop)),
        default: "list(8x64x64,8x80x48,8x48x80)",
        unit: "",
    },
    Param {
        key: "order",
        about: "random: each batch from any bucket; listed: in their order, then again from the start",
        kind: Kind::Choice(&["random", "listed"]),
        default: "random",
        unit: "",
    },
    Param {
        key: "precision",
        about: "type of products and convolutions, by autocast",
        kind: Kind::Choice(&["bf16", "fp32"]),
        default: "bf16",
        unit: "",
    },
    Param {
        key: "steps",
        about: "training steps",
        kind: Kind::Int { min: 1, max: 1_000_000_000 },
        default: "60",
        unit: "steps",
    },
];

pub(super) const GENERATOR: Generator = Generator {
    name: "diffusion",
    about: "training of a U-Net with attention on images whose sizes come from buckets",
    version: 1,
    params: &[COMMON, PARAMS],
    build,
};

struct Diffusion {
    shape: UnetShape,
    buckets: Vec<Images>,
    is_random: bool,
    is_autocast: bool,
    steps: u64,
    seed: u64,
}

fn build(values: &Values) -> Result<Box<dyn Job>, String> {
    let shape = UnetShape {
        images: values.int("channels"),
        levels: values.ints("levels"),
        groups: values.int("groups"),
        heads: values.int("heads"),
    };
    let (groups, heads) = (shape.groups, shape.heads);
    if let Some(level) = shape.levels.iter().find(|&level| level % groups != 0) {
        return Err(format!(
            "groups={groups} does not divide the {level} channels of one of `levels`; change one of them"
        ));
    }
    if let Some(bottom) = shape.levels.last().filter(|&bottom| bottom % heads != 0) {
        return Err(format!(
            "heads={heads} does not divide the {bottom} channels of the last of `levels`; change one of them"
        ));
    }
    let buckets = images(values.text("buckets"))?;
    let halved = shape.levels.len() as u32 - 1;
    let is_whole = |side: u64| side.trailing_zeros() >= halved;
    if let Some(images) = buckets.iter().find(|images| !is_whole(images.height) || !is_whole(images.width)) {
        return Err(format!(
            "buckets has images of {}x{}, which cannot be halved {halved} times, once for each of `levels` but the first; give multiples of {}",
            images.height,
            images.width,
            1_u64 << halved.min(63)
        ));
    }
    Ok(Box::new(Diffusion {
        shape,
        buckets,
        is_random: values.text("order") == "random",
        is_autocast: values.text("precision") == "bf16",
        steps: values.int("steps"),
        seed: values.int("seed"),
    }))
}

impl Job for Diffusion {
    fn run(&self, gpu: &Gpu) {
        let model = Unet::new(gpu, &self.shape, TRAINED);
        let parameters = model.parameters();
        let mut optimizer = AdamW::new(gpu, parameters.len());
        let (input, loss_name) = (gpu.name("images"), gpu.name("loss"));
        let mut rng = Rng::new(self.seed);
        let (mut batch, mut last_loss): (Option<Tensor>, Option<Tensor>) = (None, None);
        for step in 0..self.steps {
            if gpu.is_stopped() {
                break;
            }
            gpu.mark(format!("iteration {step}"));
            let at =
                if self.is_random { rng.below(self.buckets.len() as u64) } else { step % self.buckets.len() as u64 };
            let images = self.buckets[at as usize];
            let x = gpu.tensor(images.pixels() * self.shape.images, Dtype::F32, Role::Input, input);
            let x = batch.insert(x);
            let cx = if self.is_autocast { Cx::autocast(gpu, Dtype::Bf16) } else { Cx::plain(gpu) };
            let loss = model.loss(&cx, x, images);
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

#[cfg(test)]
mod tests {
    use crate::spec::Spec;

    #[test]
    fn images_that_levels_do_not_fit_are_refused() {
        let deep = vec!["8"; 40].join("+");
        for (line, part) in [
            ("diffusion:levels=8+8,buckets=list(8x65x64)".to_string(), "give multiples of 2"),
            (format!("diffusion:levels={deep},buckets=list(8x64x64)"), "cannot be halved 39 times"),
            ("diffusion:levels=64+100".to_string(), "groups=8 does not divide the 100 channels"),
        ] {
            let error = Spec::parse(&line).expect_err(&line).to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
