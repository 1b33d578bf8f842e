//! Attention whose heads are split among ranks.

use super::linear::{Gathered, ParallelLinear, Split, add_bias};
use super::{Maker, Micro, Recompute};
use crate::ops::{Cx, Heads, Layout, Queries, attention, batched_matmul, dropout, gather, split3};
use crate::tensor::{Gpu, Name, Role, Tensor, reentrant_checkpoint};
use std::rc::Rc;

pub(super) struct Attention {
    qkv: ParallelLinear,
    out: ParallelLinear,
    core: Core,
    is_recomputed: bool,
    name: Name,
}

/// What is done with queries, keys and values.
#[derive(Clone)]
struct Core {
    heads: Heads,
    is_fused: bool,
    gathered: Rc<Gathered>,
    name: Name,
}

impl Attention {
    pub(super) fn new(maker: &mut Maker<'_>, name: &str, gathered: &Rc<Gathered>) -> Attention {
        let config = maker.config;
        let (shape, ranks) = (config.shape, config.tensor_parallel);
        let (queries, keys) = (shape.heads * shape.head_width, shape.kv_heads * shape.head_width);
        let mut linear =
            |part: &str, split, widths| ParallelLinear::new(maker, split, widths, &format!("{name}.{part}"), gathered);
        let qkv = linear("linear_qkv", Split::Columns, [shape.hidden, queries + 2 * keys]);
        let out = linear("linear_proj", Split::Rows, [queries, shape.hidden]);
        let heads = Heads {
            heads: shape.heads / ranks,
            shared: shape.kv_heads / ranks,
            width: shape.head_width,
            has_dropout: config.has_dropout,
        };
        let name = maker.gpu.name(name);
        let core = Core { heads, is_fused: config.is_fused, gathered: gathered.clone(), name };
        Attention { qkv, out, core, is_recomputed: config.recompute == Recompute::Attention, name }
    }

    pub(super) fn forward(&self, gpu: &Gpu, micro: Micro, x: &Tensor, positions: Option<&Tensor>) -> Tensor {
        let (name, heads) = (self.name, self.core.heads);
        let [mut q, mut k, v] = {
            let mixed = add_bias(gpu, self.qkv.forward(gpu, x), self.qkv.bias(), name);
            let part = mixed.elements() / (heads.heads + 2 * heads.shared);
            split3(gpu, &mixed, [part * heads.heads, part * heads.shared, part * heads.shared], name)
        };
        if heads.is_shared() {
            // Queries of a group lie beside its key and value, and are taken together.
            q = gather(gpu, &q, name);
        }
        if let Some(positions) = positions {
            q = rotate(gpu, &q, positions, name);
            k = rotate(gpu, &k, positions, name);
        }
        let attended = if self.is_recomputed {
            let core = self.core.clone();
            reentrant_checkpoint(gpu, &[&q, &k, &v], name, move |gpu, inputs| match inputs {
                [q, k, v] => core.forward(gpu, micro, [q, k, v]),
                _ => unreachable!("three inputs were given"),
            })
        } else {
            self.core.forward(gpu, micro, [&q, &k, &v])
        };
        let out = self.out.forward(gpu, &attended);
        drop((q, k, v, attended));
        out
    }

    /// What is added after the last product.
    pub(super) fn bias(&self) -> Option<Tensor> {
        self.out.bias()
    }
}

impl Core {
    fn forward(&self, gpu: &Gpu, micro: Micro, qkv: [&Tensor; 3]) -> Tensor {
        if !self.is_fused {
            return self.written_out(gpu, micro, qkv);
        }
        let queries = Queries { length: micro.columns, layout: Layout::ByToken };
        attention(&Cx::plain(gpu), qkv, self.heads, queries, self.name)
    }

    /// Scores, their softmax, dropout, and the sums of values, each a tensor of its own.
    fn written_out(&self, gpu: &Gpu, micro: Micro, [q, k, v]: [&Tensor; 3]) -> Tensor {
        let (name, heads) = (self.name, self.heads);
        let scores = micro.rows * heads.heads * micro.columns * micro.columns;
        let repeated = |x: &Tensor| if heads.is_shared() { repeat(gpu, x, q.elements(), name) } else { x.clone() };
        let (k, v) = (repeated(k), repeated(v));
        self.gathered.reserve(gpu, scores, q.dtype(), name);
        let mut probabilities = softmax(gpu, &batched_matmul(gpu, q, &k, scores, name), name);
        if heads.has_dropout {
            probabilities = dropout(gpu, &probabilities, name);
        }
        let context = batched_matmul(gpu, &probabilities, &v, q.elements(), name);
        let gathered = gather(gpu, &context, name);
        drop((k, v, probabilities, context));
        gathered
    }
}

/// Rotary positions in one kernel.
fn rotate(gpu: &Gpu, x: &Tensor, positions: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let saved = tape.save(positions);
    let out = gpu.like(x, Role::Activation, name);
    tape.record(out, move |gpu, grad| {
        let _positions = saved.unpack(gpu);
        vec![Some(gpu.like(&grad, Role::Gradient, name))]
    })
}

/// Keys or values of a group, once for each of its heads.
fn repeat(gpu: &Gpu, x: &Tensor, elements: u64, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let before = x.elements();
    let out = gpu.tensor(elements, x.dtype(), Role::Activation, name);
    tape.record(out, move |gpu, grad| vec![Some(gpu.tensor(before, grad.dtype(), Role::Gradient, name))])
}

/// The mask and the softmax in one kernel, whose backward pass writes over the gradient that comes.
fn softmax(gpu: &Gpu, scores: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[scores]);
    let out = gpu.like(scores, Role::Activation, name);
    let saved = tape.save(&out);
    tape.record(out, move |gpu, grad| {
        let _out = saved.unpack(gpu);
        vec![Some(grad)]
    })
}
