//! OPT as transformers has it (`modeling_opt.py`): learned positions that are counted from a mask, products of their own for queries, keys and
//! values, ReLU, dropout.

use super::blocks::{Head, dropped, listed};
use super::mask::look_for_padding;
use super::projection::Projection;
use super::shapes::Shape;
use super::stack::{Architecture, Layer, Stack};
use super::{Flow, KvCache, Making, Model, Shared, Tokens, Weights};
use crate::ops::{
    Cx, Form, Heads, Kernel, LayerNorm, Layout, Linear, Queries, add, attention, cumsum, embedding, relu, reshape,
    scale, split_heads,
};
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};
use std::rc::Rc;

/// How OPT places tokens.
struct Opt {
    positions: Parameter,
    hidden: u64,
    name: Names,
}

struct Names {
    embedding: Name,
    positions: Name,
    mask: Name,
}

struct OptLayer {
    at: usize,
    heads: Heads,
    k: Projection,
    v: Projection,
    q: Projection,
    out: Projection,
    norm1: LayerNorm,
    up: Linear,
    down: Linear,
    norm2: LayerNorm,
    name: LayerNames,
}

#[derive(Clone, Copy)]
struct LayerNames {
    attention: Name,
    activation: Name,
    residual: Name,
    dropout: Name,
}

/// Makes the weights in the order in which a model moves to the device.
pub fn opt(gpu: &Gpu, shape: &Shape, making: &Making) -> Box<dyn Model> {
    let (hidden, weights) = (shape.hidden, making.weights);
    let tokens = weights.table(gpu, shape.vocab, hidden, "embed_tokens");
    let positions = weights.table(gpu, shape.position_rows(), hidden, "embed_positions");
    let norm = weights.layer_norm(gpu, hidden, "final_layer_norm");
    let layers = (0..shape.layers as usize).map(|at| OptLayer::new(gpu, shape, weights, at)).collect();
    let head = Linear::new(Form::Linear, tokens.clone(), None, hidden, shape.vocab, gpu.name("lm_head"));
    // transformers lists the norm behind the layers before them.
    let mut before = vec![tokens, positions.clone()];
    before.extend(listed([&norm], []));
    let name = Names {
        embedding: gpu.name("embed_tokens"),
        positions: gpu.name("embed_positions"),
        mask: gpu.name("causal_mask"),
    };
    let stack = Stack {
        width: hidden,
        name: name.embedding,
        before,
        layers,
        norm,
        head: Head::new(gpu, head),
        after: Vec::new(),
        architecture: Opt { positions, hidden, name },
    };
    stack.model(making)
}

impl Opt {
    /// Positions: how many tokens of the row there are so far.
    fn count(&self, gpu: &Gpu, mask: &Tensor, rows: u64) -> Tensor {
        let name = self.name.positions;
        let counted = cumsum(gpu, mask, Dtype::F32, rows, name);
        let shifted = {
            let _masked = gpu.like(&counted, Role::Temporary, name);
            gpu.like(&counted, Role::Temporary, name)
        };
        let positions = gpu.tensor(mask.elements(), Dtype::I64, Role::Input, name);
        drop((shifted, counted));
        positions
    }
}

impl OptLayer {
    fn new(gpu: &Gpu, shape: &Shape, weights: Weights, at: usize) -> OptLayer {
        let named = |part: &str| format!("layers.{at}.{part}");
        let linear = |part: &str, inputs, outputs| weights.linear(gpu, inputs, outputs, true, &named(part));
        let (hidden, ffn) = (shape.hidden, shape.ffn);
        let square = |part: &str| {
            Projection::with_bias(
                gpu,
                named(&format!("self_attn.{part}_proj")),
                Form::Linear,
                [hidden, hidden],
                weights,
            )
        };
        let [k, v, q, out] = ["k", "v", "q", "out"].map(square);
        let norm1 = weights.layer_norm(gpu, hidden, &named("self_attn_layer_norm"));
        let up = linear("fc1", hidden, ffn);
        let down = linear("fc2", ffn, hidden);
        let norm2 = weights.layer_norm(gpu, hidden, &named("final_layer_norm"));
        let name = LayerNames {
            attention: gpu.name(&named("self_attn")),
            activation: gpu.name(&named("activation_fn")),
            residual: gpu.name(&named("residual")),
            dropout: gpu.name(&named("dropout")),
        };
        let heads = Heads { heads: shape.heads, shared: shape.heads, width: shape.head_width, has_dropout: false };
        OptLayer { at, heads, k, v, q, out, norm1, up, down, norm2, name }
    }

    fn attention(&self, cx: &Cx, x: &Tensor, shared: &Shared, cache: Option<&KvCache>) -> Tensor {
        let (gpu, name) = (&cx.gpu, self.name.attention);
        let q = scale(gpu, &self.q.forward(cx, x), name);
        let mut k = self.k.forward(cx, x);
        let mut v = self.v.forward(cx, x);
        let layout = if cache.is_some() { Layout::ByHead } else { Layout::ByToken };
        if Kernel::new(cx, q.dtype(), self.heads).gradient(layout) == Layout::ByHead {
            k = split_heads(gpu, &k, name);
            v = split_heads(gpu, &v, name);
        }
        if let Some(cache) = cache {
            let whole = cache.update(gpu, self.at, [&k, &v], name);
            [k, v] = whole;
        }
        let queries = Queries { length: shared.length, layout: Layout::ByToken };
        let out = attention(cx, [&q, &k, &v], self.heads, queries, name);
        let projected = self.out.forward(cx, &out);
        drop((out, q, k, v));
        projected
    }
}

impl Layer for OptLayer {
    fn adapted(&mut self) -> Vec<&mut Projection> {
        vec![&mut self.k, &mut self.v, &mut self.q, &mut self.out]
    }

    fn list(&self) -> Vec<Parameter> {
        let mut parameters = Vec::new();
        for projection in [&self.k, &self.v, &self.q, &self.out] {
            projection.collect(&mut parameters);
        }
        parameters.extend(listed([&self.norm1], [&self.up, &self.down]));
        parameters.extend(listed([&self.norm2], []));
        parameters
    }

    fn forward(&self, cx: &Cx, hidden: &Tensor, shared: &Shared, cache: Option<&KvCache>) -> Tensor {
        let (gpu, name) = (&cx.gpu, self.name);
        let middle = {
            let normed = self.norm1.forward(cx, hidden);
            let attended = cx.module(&[], &normed, |normed| self.attention(cx, normed, shared, cache));
            drop(normed);
            let attended = dropped(cx, attended, name.dropout);
            add(gpu, hidden, &attended, name.residual)
        };
        // The MLP sees rows of all sequences.
        let residual = reshape(gpu, &middle, name.residual);
        // A name for all of them: each dies when the next is there.
        let mut x = self.norm2.forward(cx, &residual);
        x = self.up.forward(cx, &x);
        x = cx.module(&[], &x, |x| relu(gpu, x, name.activation));
        x = self.down.forward(cx, &x);
        x = dropped(cx, x, name.dropout);
        let out = reshape(gpu, &add(gpu, &residual, &x, name.residual), name.residual);
        drop((x, residual, middle));
        out
    }
}

impl Architecture for Opt {
    type Layer = OptLayer;
    const AROUND: usize = 2;

    fn place(&self, cx: &Cx, tokens: &Tokens, rows: Tensor, cache: Option<Rc<KvCache>>) -> Flow {
        let (gpu, name) = (&cx.gpu, &self.name);
        let mask = gpu.tensor(tokens.count(), Dtype::F32, Role::Input, name.mask);
        let ids = self.count(gpu, &mask, tokens.rows);
        look_for_padding(gpu, &mask, name.mask);
        let positions = {
            // The first two rows of the table are for nothing.
            let shifted = gpu.like(&ids, Role::Input, name.positions);
            embedding(cx, &shifted, &self.positions, self.hidden, name.positions)
        };
        let hidden = add(gpu, &rows, &positions, name.embedding);
        let shared = Rc::new(Shared { _positions: Some(ids), length: tokens.columns, ..Shared::default() });
        Flow { hidden, shared, locals: vec![rows, positions, mask], cache }
    }
}
