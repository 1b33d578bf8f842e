//! GPT-2 as transformers has it (`modeling_gpt2.py`): learned positions, one product for queries, keys and values, dropout.

use super::blocks::{Head, dropped, embedded, listed};
use super::mask::look_for_packing;
use super::projection::{Projection, adapt};
use super::shapes::Shape;
use super::{Flow, KvCache, Lora, Making, Model, Part, Shared, Tokens, Weights};
use crate::ops::{
    Cx, Form, Heads, Kernel, LayerNorm, Layout, Linear, Queries, add, attention, embedding, new_gelu, split_heads,
    split3,
};
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};
use std::rc::Rc;

/// A model on a device.
pub struct Gpt {
    hidden: u64,
    has_cache: bool,
    is_leaf: bool,
    tables: [Parameter; 2],
    layers: Vec<Layer>,
    norm: LayerNorm,
    head: Head,
    after: Vec<Parameter>,
    name: Names,
}

struct Names {
    embedding: Name,
    positions: Name,
}

struct Layer {
    at: usize,
    heads: Heads,
    norm1: LayerNorm,
    qkv: Projection,
    out: Projection,
    norm2: LayerNorm,
    up: Linear,
    down: Linear,
    name: LayerNames,
    parameters: Vec<Parameter>,
}

#[derive(Clone, Copy)]
struct LayerNames {
    attention: Name,
    activation: Name,
    residual: Name,
    dropout: Name,
}

impl Gpt {
    /// Makes the weights in the order in which a model moves to the device.
    pub fn new(gpu: &Gpu, shape: &Shape, making: &Making) -> Gpt {
        let (hidden, weights, has_cache) = (shape.hidden, making.weights, making.has_cache);
        let is_leaf = making.is_adapted && !has_cache;
        let tokens = weights.table(gpu, shape.vocab, hidden, "wte");
        let positions = weights.table(gpu, shape.position_rows(), hidden, "wpe");
        let mut layers: Vec<Layer> = (0..shape.layers as usize).map(|at| Layer::new(gpu, shape, weights, at)).collect();
        let norm = weights.layer_norm(gpu, hidden, "ln_f");
        let head = Linear::new(Form::Linear, tokens.clone(), None, hidden, shape.vocab, gpu.name("lm_head"));
        for layer in &mut layers {
            layer.parameters = layer.list();
        }
        let name = Names { embedding: gpu.name("embedding"), positions: gpu.name("positions") };
        let after = listed([&norm], []);
        Gpt {
            hidden,
            has_cache,
            is_leaf,
            tables: [tokens, positions],
            layers,
            norm,
            head: Head::new(gpu, head),
            after,
            name,
        }
    }
}

impl Layer {
    fn new(gpu: &Gpu, shape: &Shape, weights: Weights, at: usize) -> Layer {
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
        Layer { at, heads, norm1, qkv, out, norm2, up, down, name, parameters: Vec::new() }
    }

    /// Its weights, in their order.
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

impl Model for Gpt {
    fn adapt(&mut self, gpu: &Gpu, lora: &Lora) {
        adapt(gpu, lora, self.layers.iter_mut().flat_map(|layer| [&mut layer.qkv, &mut layer.out]));
        for layer in &mut self.layers {
            layer.parameters = layer.list();
        }
    }

    fn layers(&self) -> usize {
        self.layers.len()
    }

    fn parameters(&self, part: Part) -> &[Parameter] {
        match part {
            Part::Embedding => &self.tables,
            Part::Layer(at) => &self.layers[at].parameters,
            Part::Head => &self.after,
        }
    }

    fn embed(&self, cx: &Cx, tokens: &Tokens) -> Flow {
        let (gpu, name, [table, places]) = (&cx.gpu, &self.name, &self.tables);
        let cache = self.has_cache.then(|| Rc::new(KvCache::new(self.layers.len())));
        cx.enter(1, &tokens.ids);
        let rows = embedded(cx, &tokens.ids, table, self.hidden, self.is_leaf, name.embedding);
        let ids = {
            let range = gpu.tensor(tokens.columns, Dtype::I64, Role::Input, name.positions);
            gpu.like(&range, Role::Input, name.positions)
        };
        let positions = embedding(cx, &ids, places, self.hidden, name.positions);
        let sum = add(gpu, &rows, &positions, name.embedding);
        if cache.is_none() {
            look_for_packing(gpu, tokens, name.positions);
        }
        let hidden = dropout(cx, sum, name.embedding);
        let shared = Rc::new(Shared { _positions: Some(ids), length: tokens.columns, ..Shared::default() });
        Flow { hidden, shared, locals: vec![rows, positions], cache }
    }

    fn layer(&self, cx: &Cx, layer: usize, hidden: &Tensor, shared: &Shared, cache: Option<&KvCache>) -> Tensor {
        cx.module(&[], hidden, |hidden| self.layers[layer].forward(cx, hidden, shared, cache))
    }

    fn loss(&self, cx: &Cx, flow: Flow, tokens: &Tokens) -> Tensor {
        let Flow { hidden, shared, locals, cache } = flow;
        let normed = cx.leave(1, self.norm.forward(cx, &hidden));
        drop((hidden, shared, locals));
        self.head.loss(cx, normed, [tokens.rows, tokens.columns], cache)
    }
}

/// A module that drops out.
fn dropout(cx: &Cx, x: Tensor, name: Name) -> Tensor {
    cx.module(&[], &x, |x| dropped(cx, x.clone(), name))
}
