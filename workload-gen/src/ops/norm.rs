//! Layer normalisation.

use super::cast::Cx;
use crate::tensor::{Dtype, Name, Parameter, Role, Tensor};

/// `torch.nn.LayerNorm` over the last dimension.
#[derive(Clone)]
pub struct LayerNorm {
    /// The factor of each column.
    pub weight: Parameter,
    /// What is added to each column.
    pub bias: Parameter,
    width: u64,
    name: Name,
}

impl LayerNorm {
    /// A layer of weights that were made before.
    pub fn new(weight: Parameter, bias: Parameter, width: u64, name: Name) -> LayerNorm {
        LayerNorm { weight, bias, width, name }
    }

    /// The normalised input. Mean and deviation of each row are kept for the backward pass.
    pub fn forward(&self, cx: &Cx, x: &Tensor) -> Tensor {
        cx.module(&[&self.weight, &self.bias], x, |x| self.normalise(cx, x))
    }

    fn normalise(&self, cx: &Cx, x: &Tensor) -> Tensor {
        let (gpu, name, width) = (&cx.gpu, self.name, self.width);
        let x = &cx.float(x, name);
        let (weight, bias) = (self.weight.tensor(), self.bias.tensor());
        let tape = gpu.tape(name, &[x, &weight, &bias]);
        let needs = [tape.needs(0), tape.needs(1), tape.needs(2)];
        let (saved_x, saved_weight) = (tape.save(x), tape.save(&weight));
        let (dtype, elements, rows, weights) = (x.dtype(), x.elements(), x.elements() / width, weight.dtype());
        let out = gpu.like(x, Role::Activation, name);
        let mean = gpu.tensor(rows, Dtype::F32, Role::Activation, name);
        let deviation = gpu.tensor(rows, Dtype::F32, Role::Activation, name);
        let saved = (tape.save(&mean), tape.save(&deviation));
        tape.record(out, move |gpu, _grad| {
            let _saved = (saved_x.unpack(gpu), saved_weight.unpack(gpu), saved.0.unpack(gpu), saved.1.unpack(gpu));
            let x = needs[0].then(|| gpu.tensor(elements, dtype, Role::Gradient, name));
            let weight = needs[1].then(|| gpu.tensor(width, weights, Role::Gradient, name));
            let bias = needs[2].then(|| gpu.tensor(width, weights, Role::Gradient, name));
            vec![x, weight, bias]
        })
    }
}
