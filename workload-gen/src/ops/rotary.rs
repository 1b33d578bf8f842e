//! Rotary position embeddings, as transformers applies them to queries and keys.

use super::cat::{cat, slice};
use super::elementwise::{add, mul, neg};
use crate::tensor::{Dtype, Gpu, Name, Role, Tensor};

/// Cosines and sines for each position. They die from the last to the first.
#[derive(Clone)]
pub struct Rotary {
    sin: Tensor,
    cos: Tensor,
}

impl Rotary {
    /// The tables for positions that are numbered by `rows` rows of `positions`, in `dtype`: a matrix product of frequencies and positions,
    /// in 32 bits.
    pub fn new(gpu: &Gpu, frequencies: &Tensor, positions: &Tensor, rows: u64, dtype: Dtype, name: Name) -> Rotary {
        let float = |x: &Tensor| super::cast::to(gpu, x, Dtype::F32, Role::Temporary, name);
        let make = |elements: u64| gpu.tensor(elements, Dtype::F32, Role::Temporary, name);
        let width = frequencies.elements();
        let frequencies = float(&frequencies.view(rows * width));
        let positions = float(positions);
        let angles = make(width * positions.elements());
        super::linear::product(gpu);
        let twice = make(2 * angles.elements());
        let wave = || {
            let wave = gpu.like(&twice, Role::Temporary, name);
            gpu.like(&wave, Role::Temporary, name)
        };
        let cos = wave();
        let sin = wave();
        let in_dtype = |x: &Tensor| super::cast::to(gpu, x, dtype, Role::Input, name);
        let cos_out = in_dtype(&cos);
        let tables = Rotary { sin: in_dtype(&sin), cos: cos_out };
        drop((frequencies, positions, angles, twice, cos, sin));
        tables
    }

    /// Turns each head of `x` by its position.
    pub fn apply(&self, gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
        let straight = mul(gpu, x, &self.cos, name);
        let turned = mul(gpu, &rotate_half(gpu, x, name), &self.sin, name);
        let out = add(gpu, &straight, &turned, name);
        drop((straight, turned));
        out
    }
}

/// The halves of each head exchanged, the second of them negative.
fn rotate_half(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let half = x.elements() / 2;
    let first = slice(gpu, x, half, name);
    let second = neg(gpu, &slice(gpu, x, half, name), name);
    cat(gpu, [&second, &first], name)
}

/// What a projection returned, seen head by head. The gradient that comes back, from [`Rotary::apply`] for one, lies head by head, and is
/// copied to lie token by token.
pub fn split_heads(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    tape.record(x.detach().view(x.elements()), move |gpu, grad| vec![Some(gpu.like(&grad, Role::Gradient, name))])
}
