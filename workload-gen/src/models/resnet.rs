//! A residual network, as torchvision writes it.

use super::Weights;
use crate::ops::{
    BatchNorm, Conv2d, Cx, Images, Linear, Shape, add_in_place, cross_entropy, max_pool, relu_in_place, row_mean,
};
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};

/// What the network looks like.
#[derive(Clone, Debug)]
pub struct ResnetShape {
    /// Blocks of each stage.
    pub stages: Vec<u64>,
    /// Channels of the first stage's windows; each stage has twice those of the one before.
    pub width: u64,
    /// Whether a block narrows its channels to a quarter around its window.
    pub is_bottleneck: bool,
    /// What images are classified as.
    pub classes: u64,
}

/// See the module.
pub struct Resnet {
    stem: Layer,
    blocks: Vec<Block>,
    head: Linear,
    pool: Name,
    mean: Name,
    loss: Name,
}

/// A convolution without a bias, and the normalisation after it.
struct Layer {
    conv: Conv2d,
    norm: BatchNorm,
}

impl Layer {
    fn new(gpu: &Gpu, weights: Weights, shape: Shape, path: &str) -> Layer {
        let weight = weights.make(gpu, shape.weights(), &format!("{path}.conv.weight"));
        let conv = Conv2d::new(weight, None, shape, gpu.name(&format!("{path}.conv")));
        let channels = shape.outputs;
        let name = gpu.name(&format!("{path}.bn"));
        let norm = BatchNorm {
            weight: weights.make(gpu, channels, &format!("{path}.bn.weight")),
            bias: weights.make(gpu, channels, &format!("{path}.bn.bias")),
            name,
            running: [(channels, Dtype::F32), (channels, Dtype::F32), (1, Dtype::I64)]
                .map(|(elements, dtype)| gpu.tensor(elements, dtype, Role::Buffer, name)),
        };
        Layer { conv, norm }
    }

    fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.conv.parameters().chain([&self.norm.weight, &self.norm.bias])
    }

    fn forward(&self, cx: &Cx, x: &Tensor, images: Images) -> (Tensor, Images) {
        let (wide, images) = self.conv.forward(cx, x, images);
        (self.norm.forward(&cx.gpu, &wide), images)
    }
}

struct Block {
    layers: Vec<Layer>,
    /// Brings the input into the output's shape, where these differ.
    shortcut: Option<Layer>,
    relu: Name,
}

impl Block {
    /// A block of `width` channels, which takes `stride` steps.
    fn new(
        gpu: &Gpu,
        weights: Weights,
        (inputs, width, stride): (u64, u64, u64),
        is_bottleneck: bool,
        path: &str,
    ) -> Block {
        let shape = |inputs, outputs, kernel, stride| Shape { inputs, outputs, kernel, stride };
        let outputs = if is_bottleneck { 4 * width } else { width };
        let shapes = if is_bottleneck {
            vec![shape(inputs, width, 1, 1), shape(width, width, 3, stride), shape(width, outputs, 1, 1)]
        } else {
            vec![shape(inputs, width, 3, stride), shape(width, width, 3, 1)]
        };
        let layer = |(i, shape)| Layer::new(gpu, weights, shape, &format!("{path}.{i}"));
        let layers = shapes.into_iter().enumerate().map(layer).collect();
        let has_shortcut = stride != 1 || inputs != outputs;
        let shortcut = || Layer::new(gpu, weights, shape(inputs, outputs, 1, stride), &format!("{path}.shortcut"));
        Block { layers, shortcut: has_shortcut.then(shortcut), relu: gpu.name(&format!("{path}.relu")) }
    }

    fn forward(&self, cx: &Cx, x: &Tensor, images: Images) -> (Tensor, Images) {
        let gpu = &cx.gpu;
        let (mut out, mut size) = (x.clone(), images);
        for (number, layer) in self.layers.iter().enumerate() {
            let (next, images) = layer.forward(cx, &out, size);
            (out, size) = (next, images);
            if number + 1 < self.layers.len() {
                out = relu_in_place(gpu, &out, self.relu);
            }
        }
        let shortcut = self.shortcut.as_ref().map(|layer| layer.forward(cx, x, images).0);
        let sum = add_in_place(gpu, &out, shortcut.as_ref().unwrap_or(x), self.relu);
        (relu_in_place(gpu, &sum, self.relu), size)
    }
}

impl Resnet {
    /// Makes its weights.
    pub fn new(gpu: &Gpu, shape: &ResnetShape, weights: Weights) -> Resnet {
        let first = Shape { inputs: 3, outputs: shape.width, kernel: 7, stride: 2 };
        let stem = Layer::new(gpu, weights, first, "stem");
        let expansion = if shape.is_bottleneck { 4 } else { 1 };
        let mut channels = shape.width;
        let mut blocks = Vec::new();
        for (stage, &count) in shape.stages.iter().enumerate() {
            let width = shape.width << stage;
            for block in 0..count {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                let path = format!("layer{}.{block}", stage + 1);
                blocks.push(Block::new(gpu, weights, (channels, width, stride), shape.is_bottleneck, &path));
                channels = width * expansion;
            }
        }
        let head = weights.linear(gpu, channels, shape.classes, true, "fc");
        let [pool, mean, loss] = ["maxpool", "avgpool", "loss"].map(|name| gpu.name(name));
        Resnet { stem, blocks, head, pool, mean, loss }
    }

    /// Its weights, in PyTorch's order.
    pub fn parameters(&self) -> Vec<Parameter> {
        let layers = self.blocks.iter().flat_map(|block| block.layers.iter().chain(&block.shortcut));
        let layers = [&self.stem].into_iter().chain(layers).flat_map(Layer::parameters);
        layers.chain(self.head.parameters()).cloned().collect()
    }

    /// The classes of images, a row of scores for each.
    pub fn forward(&self, cx: &Cx, x: &Tensor, images: Images) -> Tensor {
        let gpu = &cx.gpu;
        let (out, images) = self.stem.forward(cx, x, images);
        let active = relu_in_place(gpu, &out, self.stem.norm.name);
        drop(out);
        let channels = active.elements() / images.pixels();
        let mut size = images.strided(2);
        let mut x = max_pool(gpu, &active, size.pixels() * channels, self.pool);
        drop(active);
        for block in &self.blocks {
            let (next, images) = block.forward(cx, &x, size);
            (x, size) = (next, images);
        }
        let means = row_mean(gpu, &x, size.height * size.width, self.mean);
        drop(x);
        self.head.forward(cx, &means)
    }

    /// The loss of what it said about images of known classes.
    pub fn loss(&self, cx: &Cx, scores: &Tensor, classes: &Tensor) -> Tensor {
        cross_entropy(cx, scores, classes, self.loss)
    }
}
