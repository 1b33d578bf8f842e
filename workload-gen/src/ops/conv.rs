//! Convolutions by cuDNN, and the memory that it takes for them.
//!
//! Which of its kernels cuDNN takes is its secret, so workspaces are a model, read off recordings made on an H200. Kernels for
//! tensor cores want channels last and in eights: for images with channels first the workspace holds copies of both images and
//! of the weights. The gradient of the weights is summed up in parts, each of them in 32 bits; more of them the more pixels
//! there are. A convolution of single pixels is a product of matrices, which needs none of the copies.

use super::cast::Cx;
use super::reduce::Reduction;
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};

/// A batch of images, without its channels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Images {
    /// Images.
    pub count: u64,
    /// Rows of pixels.
    pub height: u64,
    /// Columns of pixels.
    pub width: u64,
}

impl Images {
    /// All pixels.
    pub fn pixels(&self) -> u64 {
        self.count * self.height * self.width
    }

    /// After a window went over them in steps, padded so that steps of one change nothing. (A window of two goes without.)
    pub fn strided(&self, stride: u64) -> Images {
        Images { height: self.height.div_ceil(stride), width: self.width.div_ceil(stride), ..*self }
    }
}

/// `torch.nn.Conv2d`.
#[derive(Clone)]
pub struct Conv2d {
    /// The weight.
    pub weight: Parameter,
    /// The bias.
    pub bias: Option<Parameter>,
    shape: Shape,
    name: Name,
}

/// What is convolved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Channels of the input.
    pub inputs: u64,
    /// Channels of the output.
    pub outputs: u64,
    /// Side of the window.
    pub kernel: u64,
    /// Steps of the window.
    pub stride: u64,
}

impl Shape {
    /// Elements of the weight.
    pub fn weights(&self) -> u64 {
        self.inputs * self.outputs * self.kernel * self.kernel
    }
}

/// Channels that tensor cores take at a time.
const CHANNELS: u64 = 8;

/// Pixels for which the gradient of the weights has a part of its own, and the most parts.
const PIXELS_OF_A_PART: u64 = 6144;
const MOST_PARTS: u64 = 13;

/// The parts where windows are single pixels, and there are enough for parts.
const MATRIX_PARTS: u64 = 8;

/// What a convolution of `input` takes, one way or the other.
fn workspace(shape: Shape, input: Images, dtype: Dtype) -> u64 {
    if shape.kernel == 1 { 0 } else { copies(shape, input, dtype) + weights_of(shape, dtype) }
}

/// What the gradient of the weights takes.
fn weights_workspace(shape: Shape, input: Images, dtype: Dtype) -> u64 {
    let pixels = input.strided(shape.stride).pixels();
    let parts = (pixels / PIXELS_OF_A_PART).min(MOST_PARTS);
    match shape.kernel {
        1 if parts > 0 => MATRIX_PARTS * shape.weights() * 4,
        1 => copies(shape, input, dtype),
        _ => copies(shape, input, dtype) + weights_of(shape, dtype) + parts * shape.weights() * 4,
    }
}

/// Copies of input and output with channels last.
fn copies(shape: Shape, input: Images, dtype: Dtype) -> u64 {
    let output = input.strided(shape.stride);
    let copy = |images: Images, channels: u64| images.pixels() * channels.next_multiple_of(CHANNELS) * dtype.bytes();
    copy(input, shape.inputs) + copy(output, shape.outputs) + 16
}

/// A copy of the weights with channels last.
fn weights_of(shape: Shape, dtype: Dtype) -> u64 {
    let channels = shape.inputs.next_multiple_of(CHANNELS) * shape.outputs.next_multiple_of(CHANNELS);
    channels * shape.kernel * shape.kernel * dtype.bytes()
}

impl Conv2d {
    /// A layer of weights that were made before.
    pub fn new(weight: Parameter, bias: Option<Parameter>, shape: Shape, name: Name) -> Conv2d {
        Conv2d { weight, bias, shape, name }
    }

    /// Its parameters.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        [&self.weight].into_iter().chain(&self.bias)
    }

    /// The convolution of `images` images, and the images that it makes.
    pub fn forward(&self, cx: &Cx, x: &Tensor, images: Images) -> (Tensor, Images) {
        let (gpu, name, shape) = (&cx.gpu, self.name, self.shape);
        let bias = self.bias.as_ref().map(|bias| cx.weight(bias, name));
        let weight = cx.weight(&self.weight, name);
        let x = cx.input(x, name);
        let (dtype, elements) = (x.dtype(), x.elements());
        let output = images.strided(shape.stride);
        let tape = match &bias {
            Some(bias) => gpu.tape(name, &[&x, &weight, bias]),
            None => gpu.tape(name, &[&x, &weight]),
        };
        let needs = [tape.needs(0), tape.needs(1), tape.needs(2)];
        let saved = (tape.save(&x), tape.save(&weight));
        let out = gpu.tensor(output.pixels() * shape.outputs, dtype, Role::Activation, name);
        gpu.scratch(workspace(shape, images, dtype), Role::Workspace, name);
        let out = tape.record(out, move |gpu, _grad| {
            let _saved = (saved.0.unpack(gpu), saved.1.unpack(gpu));
            let part = |elements, workspace| {
                let part = gpu.tensor(elements, dtype, Role::Gradient, name);
                gpu.scratch(workspace, Role::Workspace, name);
                part
            };
            let x = needs[0].then(|| part(elements, workspace(shape, images, dtype)));
            let weight = needs[1].then(|| part(shape.weights(), weights_workspace(shape, images, dtype)));
            let bias = needs[2].then(|| channel_sum(gpu, shape.outputs, output.pixels(), dtype, name));
            vec![x, weight, bias]
        });
        (out, output)
    }
}

/// The sum of each channel's pixels.
fn channel_sum(gpu: &Gpu, channels: u64, pixels: u64, dtype: Dtype, name: Name) -> Tensor {
    let sum = gpu.tensor(channels, dtype, Role::Gradient, name);
    Reduction { outputs: channels, inputs: pixels, is_inner: true, partial: 4 }.run(gpu, name);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGES: Images = Images { count: 8, height: 128, width: 80 };

    fn shape(inputs: u64, outputs: u64, kernel: u64) -> Shape {
        Shape { inputs, outputs, kernel, stride: 1 }
    }

    /// What a U-Net's convolutions on an H200 were seen to take, to a part in ten thousand.
    #[test]
    fn workspaces_are_what_the_card_was_seen_to_take() {
        for (shape, images, seen) in [
            (shape(4, 64, 3), IMAGES, 11_805_712),
            (shape(64, 128, 3), IMAGES, 31_604_883),
            (shape(128, 256, 3), IMAGES.strided(2), 16_318_611),
            (shape(768, 256, 3), IMAGES.strided(4), 14_024_720),
            (shape(64, 4, 3), IMAGES, 11_805_712),
        ] {
            let modelled = workspace(shape, images, Dtype::Bf16);
            assert!(modelled.abs_diff(seen) * 10_000 < seen, "{shape:?}: {modelled}, and {seen} was seen");
        }
        assert_eq!(workspace(shape(64, 128, 1), IMAGES, Dtype::Bf16), 0);
    }

    /// The parts of weights' gradients are known roughly: to an eighth of the workspace.
    #[test]
    fn workspaces_of_weights_are_near_those_seen() {
        for (shape, images, seen) in [
            (shape(64, 64, 3), IMAGES, 22_962_855),
            (shape(128, 128, 3), IMAGES, 49_906_343),
            (shape(256, 256, 3), IMAGES.strided(2), 29_229_663),
            (shape(768, 256, 3), IMAGES.strided(4), 14_024_720),
            (shape(128, 256, 1), IMAGES.strided(2), 1_048_576),
            (shape(256, 512, 1), IMAGES.strided(4), 7_864_336),
        ] {
            let modelled = weights_workspace(shape, images, Dtype::Bf16);
            assert!(modelled.abs_diff(seen) * 8 < seen, "{shape:?}: {modelled}, and {seen} was seen");
        }
    }

    #[test]
    fn strides_round_up() {
        let odd = Images { count: 2, height: 7, width: 224 };
        assert_eq!(odd.strided(2), Images { count: 2, height: 4, width: 112 });
    }
}
