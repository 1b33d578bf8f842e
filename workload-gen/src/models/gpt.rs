//! GPT-2 as transformers has it (`modeling_gpt2.py`): learned positions, one product for queries, keys and values, dropout.

use super::blocks::{Head, dropped, listed};
use super::mask::look_for_packing;
use super::projection::Projection;
use super::shapes::Shape;
use super::stack::{Architecture, Layer, Stack};
use super::{Flow, KvCache, Making, Model, Shared, Tokens, Weights};
use crate::ops::{
    Cx, Form, Heads, Kernel, LayerNorm, Layout, Linear, Queries, add, attention, embedding, new_gelu, split_heads,
    split3,
};
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};
use std::rc::Rc;

/// How GPT-2 places tokens.
struct Gpt {
    positions: Parameter,
    hidden: u64,
    name: Names,
}

struct Names {
    embedding: Name,
    positions: Name,
}

struct GptLayer {
    at: usize,
    heads: Heads,
    norm1: LayerNorm,
    qkv: Projection,
    out: Projection,
    norm2: LayerNorm,
    up: Linear,
    down: Linear,
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
pub fn gpt2(gpu: &Gpu, shape: &Shape, making: &Making) -> Box<dyn Model> {
    let (hidden, weights) = (shape.hidden, making.weights);
    let tokens = weights.table(gpu, shape.vocab, hidden, "wte");
    let positions = weights.table(gpu, shape.position_rows(), hidden, "wpe");
    let layers = (0..shape.layers as usize).map(|at| GptLayer::new(gpu, shape, weights, at)).collect();
    let norm = weights.layer_norm(gpu, hidden, "ln_f");
    let head = Linear::new(Form::Linear, tokens.clone(), None, hidden, shape.vocab, gpu.name("lm_head"));
    let name = Names { embedding: gpu.name("embedding"), positions: gpu.name("positions") };
    let stack = Stack {
        width: hidden,
        name: name.embedding,
        before: vec![tokens, positions.clone()],
        layers,
        after: listed([&norm], []),
        norm,
        head: Head::new(gpu, head),
        architecture: Gpt { positions, hidden, name },
    };
    stack.model(making)
}

impl GptLayer {
    fn new(gpu: &Gpu, shape: &Shape, weights: Weights, at: usize) -> GptLayer {
        let named = |part: &str| format!("h.{at}.{part}");
        let linear = |part: &str, inputs: u64, outputs: u64| {
            let name = named(part);
            let weight = weights.make(gpu, inputs * outputs, &format!("{name}.weight"));
            let bias = weights.make(gpu, outputs, &format!("{name}.bias"));
            Linear::new(Form::Conv1d, weight, Some(bias), inputs, outputs, gpu.name(&name))
        };
        let (hidden, ffn) = (shape.hidden, shape.ffn);
        let norm1 = weights.layer_norm(gpu, hidden, &named("ln_1"));
        let adapted = |part: &str, shape| Projection::with_bias(gpu, named(part), Form::Conv1d, shape, weights);
        let qkv = adapted("attn.c_attn", [hidden, 3 * hidden]);
        let out = adapted("attn.c_proj", [hidden, hidden]);
        let norm2 = weights.layer_norm(gpu, hidden, &named("ln_2"));
        let up = linear("mlp.c_fc", hidden, ffn);
        let down = linear("mlp.c_proj", ffn, hidden);
        let name = LayerNames {
            attention: gpu.name(&named("attn")),
            activation: gpu.name(&named("mlp.act")),
            residual: gpu.name(&named("residual")),
            dropout: gpu.name(&named("dropout")),
        };
        let heads = Heads { heads: shape.heads, shared: shape.heads, width: shape.head_width, has_dropout: true };
        GptLayer { at, heads, norm1, qkv, out, norm2, up, down, name }
    }

    fn attention(&self, cx: &Cx, x: &Tensor, shared: &Shared, cache: Option<&KvCache>) -> Tensor {
        let (gpu, name) = (&cx.gpu, self.name.attention);
        let [q, mut k, mut v] = {
            let qkv = self.qkv.forward(cx, x);
            let part = qkv.elements() / 3;
            split3(gpu, &qkv, [part; 3], name)
        };
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
        drop(out);
        let projected = dropout(cx, projected, self.name.dropout);
        drop((q, k, v));
        projected
    }

    fn mlp(&self, cx: &Cx, x: &Tensor) -> Tensor {
        let up = self.up.forward(cx, x);
        let active = cx.module(&[], &up, |up| new_gelu(cx, up, self.name.activation));
        drop(up);
        let down = self.down.forward(cx, &active);
        drop(active);
        dropout(cx, down, self.name.dropout)
    }
}

impl Layer for GptLayer {
    fn adapted(&mut self) -> Vec<&mut Projection> {
        vec![&mut self.qkv, &mut self.out]
    }

    fn list(&self) -> Vec<Parameter> {
        let mut parameters = listed([&self.norm1], []);
        self.qkv.collect(&mut parameters);
        self.out.collect(&mut parameters);
        parameters.extend(listed([&self.norm2], [&self.up, &self.down]));
        parameters
    }

    fn forward(&self, cx: &Cx, hidden: &Tensor, shared: &Shared, cache: Option<&KvCache>) -> Tensor {
        let (gpu, residual) = (&cx.gpu, self.name.residual);
        let normed = self.norm1.forward(cx, hidden);
        let attended = cx.module(&[], &normed, |normed| self.attention(cx, normed, shared, cache));
        let middle = add(gpu, &attended, hidden, residual);
        drop(normed);
        let normed = self.norm2.forward(cx, &middle);
        let fed = cx.module(&[], &normed, |normed| self.mlp(cx, normed));
        let out = add(gpu, &middle, &fed, residual);
        drop((normed, attended, fed));
        out
    }
}

impl Architecture for Gpt {
    type Layer = GptLayer;
    const AROUND: usize = 1;

    fn place(&self, cx: &Cx, tokens: &Tokens, rows: Tensor, cache: Option<Rc<KvCache>>) -> Flow {
        let (gpu, name) = (&cx.gpu, &self.name);
        let ids = {
            let range = gpu.tensor(tokens.columns, Dtype::I64, Role::Input, name.positions);
            gpu.like(&range, Role::Input, name.positions)
        };
        let positions = embedding(cx, &ids, &self.positions, self.hidden, name.positions);
        let sum = add(gpu, &rows, &positions, name.embedding);
        if cache.is_none() {
            look_for_packing(gpu, tokens, name.positions);
        }
        let hidden = dropout(cx, sum, name.embedding);
        let shared = Rc::new(Shared { _positions: Some(ids), length: tokens.columns, ..Shared::default() });
        Flow { hidden, shared, locals: vec![rows, positions], cache }
    }
}

/// A module that drops out.
fn dropout(cx: &Cx, x: Tensor, name: Name) -> Tensor {
    cx.module(&[], &x, |x| dropped(cx, x.clone(), name))
}
