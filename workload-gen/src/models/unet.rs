//! A U-Net as diffusion models have it: down by pooling, attention at the bottom, and up by enlarging, each level with what its
//! counterpart saw.

use super::Weights;
use crate::ops::{
    Conv2d, Cx, GroupNorm, Images, MultiheadAttention, Shape, add, avg_pool, concat, mse_loss, silu, upsample,
};
use crate::tensor::{Gpu, Name, Parameter, Tensor};

/// What the network looks like.
#[derive(Clone, Debug)]
pub struct UnetShape {
    /// Channels of the images.
    pub images: u64,
    /// Channels of each level, from the top to the bottom.
    pub levels: Vec<u64>,
    /// Groups of channels that are normalised together.
    pub groups: u64,
    /// Heads of the attention.
    pub heads: u64,
}

/// See the module.
pub struct Unet {
    enter: Conv2d,
    down: Vec<Block>,
    up: Vec<Block>,
    leave: Conv2d,
    attention: MultiheadAttention,
    names: Names,
}

struct Names {
    pool: Name,
    upsample: Name,
    concat: Name,
    add: Name,
    loss: Name,
}

/// `c2(silu(norm(c1(x)))) + skip(x)`.
struct Block {
    first: Conv2d,
    norm: GroupNorm,
    second: Conv2d,
    skip: Conv2d,
    silu: Name,
    add: Name,
}

impl Block {
    fn new(gpu: &Gpu, weights: Weights, (inputs, outputs): (u64, u64), groups: u64, path: &str) -> Block {
        let first = weights.conv(gpu, inputs, outputs, 3, path, "c1");
        let norm = GroupNorm {
            weight: weights.make(gpu, outputs, &format!("{path}.norm.weight")),
            bias: weights.make(gpu, outputs, &format!("{path}.norm.bias")),
            groups,
            name: gpu.name(&format!("{path}.norm")),
        };
        Block {
            first,
            norm,
            second: weights.conv(gpu, outputs, outputs, 3, path, "c2"),
            skip: weights.conv(gpu, inputs, outputs, 1, path, "skip"),
            silu: gpu.name(&format!("{path}.silu")),
            add: gpu.name(&format!("{path}.add")),
        }
    }

    fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        let norm = [&self.norm.weight, &self.norm.bias];
        self.first.parameters().chain(norm).chain(self.second.parameters()).chain(self.skip.parameters())
    }

    fn forward(&self, cx: &Cx, x: &Tensor, images: Images) -> Tensor {
        let inner = {
            let active = {
                let normal = {
                    let (wide, _) = self.first.forward(cx, x, images);
                    self.norm.forward(cx, &wide, images)
                };
                silu(&cx.gpu, &normal, self.silu)
            };
            self.second.forward(cx, &active, images).0
        };
        let (skipped, _) = self.skip.forward(cx, x, images);
        let sum = add(&cx.gpu, &inner, &skipped, self.add);
        drop(inner);
        sum
    }
}

impl Weights {
    /// Makes `torch.nn.Conv2d` with a bias, padded so that images keep their size.
    fn conv(&self, gpu: &Gpu, inputs: u64, outputs: u64, kernel: u64, path: &str, part: &str) -> Conv2d {
        let path = if part.is_empty() { path.to_string() } else { format!("{path}.{part}") };
        let shape = Shape { inputs, outputs, kernel, stride: 1 };
        let weight = self.make(gpu, shape.weights(), &format!("{path}.weight"));
        let bias = self.make(gpu, outputs, &format!("{path}.bias"));
        Conv2d::new(weight, Some(bias), shape, gpu.name(&path))
    }
}

impl Unet {
    /// Makes its weights. There is at least one level.
    pub fn new(gpu: &Gpu, shape: &UnetShape, weights: Weights) -> Unet {
        let levels = &shape.levels;
        let (top, bottom) = (levels[0], levels[levels.len() - 1]);
        let enter = weights.conv(gpu, shape.images, top, 3, "enter", "");
        let steps = || levels.windows(2).map(|pair| (pair[0], pair[1])).enumerate();
        let down = steps().map(|(i, step)| Block::new(gpu, weights, step, shape.groups, &format!("down.{i}")));
        let down: Vec<Block> = down.collect();
        // A level gets what comes from below, and what went down from it.
        let up = steps().map(|(i, (above, below))| (i, (above + below, above))).collect::<Vec<_>>().into_iter().rev();
        let up = up.map(|(i, step)| Block::new(gpu, weights, step, shape.groups, &format!("up.{i}"))).collect();
        let leave = weights.conv(gpu, top, shape.images, 3, "leave", "");
        let output = weights.linear(gpu, bottom, bottom, true, "attention.out");
        let attention = MultiheadAttention {
            input: weights.linear(gpu, bottom, 3 * bottom, true, "attention.in"),
            output,
            heads: shape.heads,
            width: bottom,
            name: gpu.name("attention"),
        };
        let [pool, upsample, concat, add, loss] =
            ["down.pool", "up.upsample", "up.concat", "attention.add", "loss"].map(|name| gpu.name(name));
        Unet { enter, down, up, leave, attention, names: Names { pool, upsample, concat, add, loss } }
    }

    /// Its weights, in PyTorch's order.
    pub fn parameters(&self) -> Vec<Parameter> {
        let blocks = self.down.iter().chain(&self.up).flat_map(Block::parameters);
        let rest = self.leave.parameters().chain(self.attention.parameters());
        self.enter.parameters().chain(blocks).chain(rest).cloned().collect()
    }

    /// How often images are halved.
    pub fn depth(&self) -> u32 {
        self.down.len() as u32
    }

    /// The mean square of what differs between the network's output and the images.
    pub fn loss(&self, cx: &Cx, x: &Tensor, mut images: Images) -> Tensor {
        let (gpu, names) = (&cx.gpu, &self.names);
        let (mut h, _) = self.enter.forward(cx, x, images);
        let mut skips = Vec::new();
        for block in &self.down {
            skips.push(h.clone());
            let pooled = {
                let out = block.forward(cx, &h, images);
                avg_pool(gpu, &out, names.pool)
            };
            h = pooled;
            images = images.strided(2);
        }
        // The tokens stay a name of the function, and their memory with it, until it returns.
        let tokens = h.clone();
        let attended = self.attention.forward(cx, &tokens, images.count);
        let sum = add(gpu, &h, &attended, names.add);
        drop(attended);
        h = sum;
        for block in &self.up {
            images = Images { height: 2 * images.height, width: 2 * images.width, ..images };
            let large = upsample(cx, &h, names.upsample);
            h = large;
            let out = {
                let skip = skips.pop();
                let both = match &skip {
                    Some(skip) => concat(gpu, &h, skip, names.concat),
                    None => h.clone(),
                };
                block.forward(cx, &both, images)
            };
            h = out;
        }
        let loss = {
            let (out, _) = self.leave.forward(cx, &h, images);
            mse_loss(cx, &out, x, names.loss)
        };
        drop(tokens);
        loss
    }
}
