//! Normalisation by the root of the mean square, as transformers writes it out: six kernels.

use super::cast::{Cx, to};
use super::elementwise::{mul, mul_rows, pow, rsqrt, shift};
use super::reduce::row_mean;
use crate::tensor::{Dtype, Name, Parameter, Role, Tensor};

/// A layer like `LlamaRMSNorm`, over the last dimension.
#[derive(Clone)]
pub struct RmsNorm {
    /// The factor of each column.
    pub weight: Parameter,
    width: u64,
    name: Name,
}

impl RmsNorm {
    /// A layer of a weight that was made before.
    pub fn new(weight: Parameter, width: u64, name: Name) -> RmsNorm {
        RmsNorm { weight, width, name }
    }

    /// The normalised input. In between it has 32 bits.
    pub fn forward(&self, cx: &Cx, x: &Tensor) -> Tensor {
        cx.module(&[&self.weight], x, |x| self.normalise(cx, x))
    }

    fn normalise(&self, cx: &Cx, x: &Tensor) -> Tensor {
        let (gpu, name) = (&cx.gpu, self.name);
        let hidden = to(gpu, x, Dtype::F32, Role::Activation, name);
        let variance = row_mean(gpu, &pow(cx, &hidden, name), self.width, name);
        let scaled = {
            let factors = rsqrt(gpu, &shift(gpu, &variance, name), name);
            mul_rows(gpu, &hidden, &factors, name)
        };
        drop(hidden);
        let out = mul(gpu, &self.weight.tensor(), &to(gpu, &scaled, x.dtype(), Role::Activation, name), name);
        drop((scaled, variance));
        out
    }
}
