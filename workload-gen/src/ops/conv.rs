//! Convolutions by cuDNN.

use super::cast::Cx;
use super::reduce::Reduction;
use super::workspace::{Way, workspace};
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
        gpu.scratch(workspace(Way::Output, shape, images, dtype), Role::Workspace, name);
        let out = tape.record(out, move |gpu, _grad| {
            let _saved = (saved.0.unpack(gpu), saved.1.unpack(gpu));
            let gradient = |elements, way| {
                let gradient = gpu.tensor(elements, dtype, Role::Gradient, name);
                gpu.scratch(workspace(way, shape, images, dtype), Role::Workspace, name);
                gradient
            };
            let x = needs[0].then(|| gradient(elements, Way::Input));
            let weight = needs[1].then(|| gradient(shape.weights(), Way::Weight));
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

    #[test]
    fn strides_round_up() {
        let odd = Images { count: 2, height: 7, width: 224 };
        assert_eq!(odd.strided(2), Images { count: 2, height: 4, width: 112 });
    }
}
