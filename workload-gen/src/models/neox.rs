//! GPT-NeoX as transformers has it (`modeling_gpt_neox.py`): rotary positions on a part of each head, attention and MLP side by side.

use super::blocks::{Head, listed};
use super::mask::look_for_packing;
use super::projection::Projection;
use super::shapes::Shape;
use super::stack::{Architecture, Layer, Stack};
use super::{Flow, KvCache, Making, Model, Shared, Tokens, Weights};
use crate::ops::{
    Cx, Form, Heads, LayerNorm, Layout, Linear, Queries, Rotary, add, attention, cat, gelu, slice, split_heads, split3,
};
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};
use std::rc::Rc;

/// One of so many elements of a head is turned (`partial_rotary_factor`).
const TURNED: u64 = 4;

/// How GPT-NeoX places tokens.
struct Neox {
    /// The rotation's frequencies.
    frequencies: Tensor,
    name: Names,
}

struct Names {
    positions: Name,
    mask: Name,
    rotary: Name,
}

struct NeoxLayer {
    at: usize,
    heads: Heads,
    norms: [LayerNorm; 2],
    qkv: Projection,
    out: Projection,
    up: Linear,
    down: Linear,
    name: LayerNames,
}

#[derive(Clone, Copy)]
struct LayerNames {
    attention: Name,
    activation: Name,
    residual: Name,
}

/// Makes the weights in the order in which a model moves to the device.
pub fn gpt_neox(gpu: &Gpu, shape: &Shape, making: &Making) -> Box<dyn Model> {
    let (hidden, weights) = (shape.hidden, making.weights);
    let table = weights.table(gpu, shape.vocab, hidden, "embed_in");
    let layers = (0..shape.layers as usize).map(|at| NeoxLayer::new(gpu, shape, weights, at)).collect();
    let norm = weights.layer_norm(gpu, hidden, "final_layer_norm");
    let embedding = gpu.name("embed_in");
    let name =
        Names { positions: gpu.name("positions"), mask: gpu.name("causal_mask"), rotary: gpu.name("rotary_emb") };
    let frequencies = gpu.tensor(shape.head_width / TURNED / 2, making.buffers, Role::Buffer, name.rotary);
    let head = weights.linear(gpu, hidden, shape.vocab, false, "embed_out");
    head.weight.set_columns(hidden);
    let stack = Stack {
        width: hidden,
        name: embedding,
        before: vec![table],
        layers,
        after: listed([&norm], [&head]),
        norm,
        head: Head::new(gpu, head),
        architecture: Neox { frequencies, name },
    };
    stack.model(making)
}

impl NeoxLayer {
    fn new(gpu: &Gpu, shape: &Shape, weights: Weights, at: usize) -> NeoxLayer {
        let named = |part: &str| format!("layers.{at}.{part}");
        let linear = |part: &str, inputs, outputs| weights.linear(gpu, inputs, outputs, true, &named(part));
        let (hidden, ffn) = (shape.hidden, shape.ffn);
        let norms =
            ["input_layernorm", "post_attention_layernorm"].map(|part| weights.layer_norm(gpu, hidden, &named(part)));
        let adapted = |part: &str, shape| Projection::with_bias(gpu, named(part), Form::Linear, shape, weights);
        let qkv = adapted("attention.query_key_value", [hidden, 3 * hidden]);
        let out = adapted("attention.dense", [hidden, hidden]);
        let up = linear("mlp.dense_h_to_4h", hidden, ffn);
        let down = linear("mlp.dense_4h_to_h", ffn, hidden);
        let name = LayerNames {
            attention: gpu.name(&named("attention")),
            activation: gpu.name(&named("mlp.act")),
            residual: gpu.name(&named("residual")),
        };
        let heads = Heads { heads: shape.heads, shared: shape.heads, width: shape.head_width, has_dropout: false };
        NeoxLayer { at, heads, norms, qkv, out, up, down, name }
    }

    fn attention(&self, cx: &Cx, x: &Tensor, shared: &Shared, cache: Option<&KvCache>) -> Tensor {
        let (gpu, name) = (&cx.gpu, self.name.attention);
        // Each head has its query, key and value side by side.
        let qkv = split_heads(gpu, &self.qkv.forward(cx, x), name);
        let part = qkv.elements() / 3;
        let [q, k, mut v] = split3(gpu, &qkv, [part; 3], name);
        let [q, mut k] = match &shared.rotary {
            Some(rotary) => self.turn(gpu, [&q, &k], rotary),
            None => [q, k],
        };
        if let Some(cache) = cache {
            let whole = cache.update(gpu, self.at, [&k, &v], name);
            [k, v] = whole;
        }
        let queries = Queries { length: shared.length, layout: Layout::ByHead };
        let out = attention(cx, [&q, &k, &v], self.heads, queries, name);
        let projected = self.out.forward(cx, &out);
        drop((out, q, k, v, qkv));
        projected
    }

    /// Turns a part of each query and key, and puts it together with the rest.
    fn turn(&self, gpu: &Gpu, qk: [&Tensor; 2], rotary: &Rotary) -> [Tensor; 2] {
        let name = self.name.attention;
        let width = self.heads.width;
        let turned = width / TURNED;
        let parts = qk.map(|x| {
            let heads = x.elements() / width;
            [heads * turned, heads * (width - turned)].map(|part| slice(gpu, x, part, name))
        });
        let [q, k] = parts.each_ref().map(|[part, _]| rotary.apply(gpu, part, name));
        let [[_, q_rest], [_, k_rest]] = &parts;
        let whole = cat(gpu, [&q, q_rest], name);
        drop(q);
        [whole, cat(gpu, [&k, k_rest], name)]
    }

    fn mlp(&self, cx: &Cx, x: &Tensor) -> Tensor {
        // A name for all of them: each dies when the next is there.
        let mut x = self.up.forward(cx, x);
        x = cx.module(&[], &x, |x| gelu(&cx.gpu, x, self.name.activation));
        self.down.forward(cx, &x)
    }
}

impl Layer for NeoxLayer {
    fn adapted(&mut self) -> Vec<&mut Projection> {
        vec![&mut self.qkv, &mut self.out]
    }

    fn list(&self) -> Vec<Parameter> {
        let mut parameters = listed(&self.norms, []);
        self.qkv.collect(&mut parameters);
        self.out.collect(&mut parameters);
        parameters.extend(listed([], [&self.up, &self.down]));
        parameters
    }

    fn forward(&self, cx: &Cx, hidden: &Tensor, shared: &Shared, cache: Option<&KvCache>) -> Tensor {
        let (gpu, residual) = (&cx.gpu, self.name.residual);
        let attended = {
            let normed = self.norms[0].forward(cx, hidden);
            cx.module(&[], &normed, |normed| self.attention(cx, normed, shared, cache))
        };
        let attended = passed(cx, attended);
        let fed = {
            let normed = self.norms[1].forward(cx, hidden);
            cx.module(&[], &normed, |normed| self.mlp(cx, normed))
        };
        let fed = passed(cx, fed);
        let out = {
            let sum = add(gpu, &fed, &attended, residual);
            add(gpu, &sum, hidden, residual)
        };
        drop((attended, fed));
        out
    }
}

impl Architecture for Neox {
    type Layer = NeoxLayer;
    const AROUND: usize = 1;

    fn place(&self, cx: &Cx, tokens: &Tokens, rows: Tensor, cache: Option<Rc<KvCache>>) -> Flow {
        let (gpu, name) = (&cx.gpu, &self.name);
        let positions = {
            let range = gpu.tensor(tokens.columns, Dtype::I64, Role::Temporary, name.positions);
            gpu.like(&range, Role::Input, name.positions)
        };
        if cache.is_none() {
            look_for_packing(gpu, tokens, name.mask);
        }
        let hidden = passed(cx, rows.clone());
        let rotary =
            cx.aside(&positions, || Rotary::new(gpu, &self.frequencies, &positions, 1, rows.dtype(), name.rotary));
        let shared = Shared { turns: None, rotary: Some(rotary), _positions: Some(positions), length: tokens.columns };
        Flow { hidden, shared: Rc::new(shared), locals: vec![rows], cache }
    }
}

/// A module that drops nothing out: GPT-NeoX has them, but its layers were trained without.
fn passed(cx: &Cx, x: Tensor) -> Tensor {
    cx.module(&[], &x, Tensor::clone)
}
