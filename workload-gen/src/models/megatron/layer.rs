//! A layer: attention, and an MLP or experts, each behind a norm and beside a residual.

use super::attention::Attention;
use super::linear::{Gathered, ParallelLinear, Split, add_to_residual};
use super::moe::Experts;
use super::{Maker, Micro, Norm};
use crate::models::routing::Loads;
use crate::ops::column_sum;
use crate::tensor::{Gpu, Name, Role, Tensor};
use std::rc::Rc;

pub(super) struct Layer {
    norms: [Norm; 2],
    attention: Attention,
    feed: Feed,
    has_dropout: bool,
    pub(super) name: Name,
}

enum Feed {
    Dense(Mlp),
    Experts(Experts),
}

impl Layer {
    pub(super) fn new(maker: &mut Maker<'_>, number: u64, gathered: &Rc<Gathered>, loads: &Rc<Loads>) -> Layer {
        let name = format!("layers.{number}");
        let before = Norm::new(maker, &format!("{name}.input_layernorm"));
        let attention = Attention::new(maker, &format!("{name}.self_attention"), gathered);
        let between = Norm::new(maker, &format!("{name}.pre_mlp_layernorm"));
        let label = format!("{name}.mlp");
        let feed = match maker.config.shape.experts {
            Some(experts) if number >= experts.dense_layers => {
                Feed::Experts(Experts::new(maker, number, experts, &label, gathered, loads))
            }
            _ => Feed::Dense(Mlp::new(maker, maker.config.shape.ffn, &label, gathered)),
        };
        let (has_dropout, name) = (maker.config.has_dropout, maker.gpu.name(&name));
        Layer { norms: [before, between], attention, feed, has_dropout, name }
    }

    pub(super) fn forward(&self, gpu: &Gpu, micro: Micro, x: &Tensor, positions: Option<&Tensor>) -> Tensor {
        let hidden = {
            let normed = self.norms[0].forward(gpu, x);
            let attended = self.attention.forward(gpu, micro, &normed, positions);
            add_to_residual(gpu, &attended, self.attention.bias(), x, self.has_dropout, self.name)
        };
        let normed = self.norms[1].forward(gpu, &hidden);
        let (fed, bias) = match &self.feed {
            Feed::Dense(mlp) => (mlp.forward(gpu, &normed), mlp.down.bias()),
            Feed::Experts(experts) => (experts.forward(gpu, micro, &normed), None),
        };
        drop(normed);
        add_to_residual(gpu, &fed, bias, &hidden, self.has_dropout, self.name)
    }
}

/// Two products with an activation between, gated where the model has no biases.
pub(super) struct Mlp {
    up: ParallelLinear,
    down: ParallelLinear,
    is_gated: bool,
    name: Name,
}

impl Mlp {
    pub(super) fn new(maker: &mut Maker<'_>, ffn: u64, name: &str, gathered: &Rc<Gathered>) -> Mlp {
        let hidden = maker.config.shape.hidden;
        let is_gated = !maker.config.has_biases();
        let wide = if is_gated { 2 * ffn } else { ffn };
        let mut linear =
            |part: &str, split, widths| ParallelLinear::new(maker, split, widths, &format!("{name}.{part}"), gathered);
        let up = linear("linear_fc1", Split::Columns, [hidden, wide]);
        let down = linear("linear_fc2", Split::Rows, [ffn, hidden]);
        Mlp { up, down, is_gated, name: maker.gpu.name(name) }
    }

    pub(super) fn forward(&self, gpu: &Gpu, x: &Tensor) -> Tensor {
        let active = {
            let wide = self.up.forward(gpu, x);
            if self.is_gated { gate(gpu, &wide, self.name) } else { bias_gelu(gpu, &wide, self.up.bias(), self.name) }
        };
        self.down.forward(gpu, &active)
    }
}

/// `silu(x₁) · x₂` in one kernel.
pub(super) fn gate(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let saved = tape.save(x);
    let (elements, dtype) = (x.elements(), x.dtype());
    let out = gpu.tensor(elements / 2, dtype, Role::Activation, name);
    tape.record(out, move |gpu, _grad| {
        let _x = saved.unpack(gpu);
        vec![Some(gpu.tensor(elements, dtype, Role::Gradient, name))]
    })
}

/// The bias and the activation in one kernel. The bias's gradient is the sum of the input's.
fn bias_gelu(gpu: &Gpu, x: &Tensor, bias: Option<Tensor>, name: Name) -> Tensor {
    let mut inputs = vec![x];
    inputs.extend(bias.as_ref());
    let tape = gpu.tape(name, &inputs);
    let saved: Vec<_> = inputs.iter().map(|input| tape.save(input)).collect();
    let out = gpu.like(x, Role::Activation, name);
    let width = bias.map(|bias| bias.elements());
    tape.record(out, move |gpu, grad| {
        let _saved: Vec<_> = saved.into_iter().map(|one| one.unpack(gpu)).collect();
        let x = gpu.like(&grad, Role::Gradient, name);
        let sum = |width| column_sum(gpu, width, x.elements() / width, x.dtype(), Role::Gradient, name);
        let bias = width.map(sum);
        vec![Some(x), bias]
    })
}
