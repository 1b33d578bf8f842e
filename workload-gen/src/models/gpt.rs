//! Decoders of the GPT family: layer normalisation, learned or rotary positions, two-layer MLPs with biases.
//!
//! GPT-2 (`modeling_gpt2.py`), OPT (`modeling_opt.py`) and GPT-NeoX (`modeling_gpt_neox.py`) of transformers 5.17, in training mode with their
//! default attention.

use super::projection::Projection;
use super::{Flow, KvCache, Lora, Model, Part, Shared, Tokens, Weights};
use crate::ops::{
    Cx, Form, Heads, LayerNorm, Linear, Rotary, add, attention, causal_loss, dropout, embedding, gelu, matmul,
    new_gelu, relu, scale, split_heads, split3,
};
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor, leaf};
use std::rc::Rc;

/// The function between an MLP's layers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activation {
    /// GPT-2's, written out.
    NewGelu,
    /// One kernel.
    Gelu,
    /// One kernel that keeps its result.
    Relu,
}

/// How a model knows positions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Positions {
    /// A table of so many rows.
    Learned(u64),
    /// A part of each query and key is turned: the share of a head, in percent.
    Rotary(u64),
}

/// The shape of a model.
#[derive(Clone, Debug)]
pub struct GptConfig {
    /// Layers.
    pub layers: u64,
    /// Width of the hidden states.
    pub hidden: u64,
    /// Heads.
    pub heads: u64,
    /// Width of the MLP.
    pub ffn: u64,
    /// Tokens in the vocabulary.
    pub vocab: u64,
    /// Positions.
    pub positions: Positions,
    /// The MLP's function.
    pub activation: Activation,
    /// How layers call products: GPT-2 has its own.
    pub form: Form,
    /// Whether queries, keys and values are one product.
    pub is_fused: bool,
    /// Whether attention and MLP read the same hidden states.
    pub is_parallel: bool,
    /// Whether the output's table is the input's.
    pub is_tied: bool,
    /// Whether activations are dropped out.
    pub has_dropout: bool,
    /// Whether the forward pass fills a cache of keys and values, as transformers does unless told otherwise.
    pub has_cache: bool,
    /// Ranks that share each layer (tensor parallelism).
    pub shards: u64,
    /// Adapters on the attention's layers, if the model's own weights are frozen.
    pub lora: Option<Lora>,
}

struct Layer {
    at: usize,
    norm1: LayerNorm,
    qkv: Vec<Projection>,
    out: Projection,
    norm2: LayerNorm,
    up: Projection,
    down: Projection,
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

/// A model on a device.
pub struct Gpt {
    config: GptConfig,
    tokens: Parameter,
    positions: Option<Parameter>,
    embedding: Vec<Parameter>,
    /// The rotation's frequencies.
    frequencies: Option<Tensor>,
    layers: Vec<Layer>,
    norm: LayerNorm,
    /// The output's table, if it is one of its own.
    output: Option<Parameter>,
    head: Vec<Parameter>,
    names: Names,
}

struct Names {
    embedding: Name,
    positions: Name,
    head: Name,
    loss: Name,
}

impl Gpt {
    /// Makes the weights in the order in which a model moves to the device.
    pub fn new(gpu: &Gpu, config: GptConfig, weights: Weights) -> Gpt {
        let hidden = config.hidden;
        let tokens = weights.make(gpu, config.vocab * hidden, "wte");
        let positions = match config.positions {
            Positions::Learned(count) => Some(weights.make(gpu, count * hidden, "wpe")),
            Positions::Rotary(_) => None,
        };
        let frequencies = match config.positions {
            Positions::Learned(_) => None,
            Positions::Rotary(percent) => {
                let width = config.hidden / config.heads * percent / 100;
                Some(gpu.tensor(width / 2, Dtype::F32, Role::Buffer, gpu.name("positions")))
            }
        };
        let mut embedding = vec![tokens.clone()];
        embedding.extend(positions.clone());
        let mut layers: Vec<Layer> = (0..config.layers).map(|at| Layer::new(gpu, &config, weights, at)).collect();
        let norm = norm(gpu, weights, hidden, "ln_f");
        let output = (!config.is_tied).then(|| weights.make(gpu, config.vocab * hidden, "lm_head"));
        for table in embedding.iter().chain(&output) {
            table.set_columns(hidden);
        }
        let mut head = vec![norm.weight.clone(), norm.bias.clone()];
        head.extend(output.clone());
        for layer in &mut layers {
            if let Some(lora) = &config.lora {
                layer.adapt(gpu, lora);
            }
            layer.collect();
        }
        let names = Names {
            embedding: gpu.name("embedding"),
            positions: gpu.name("positions"),
            head: gpu.name("lm_head"),
            loss: gpu.name("loss"),
        };
        Gpt { config, tokens, positions, embedding, frequencies, layers, norm, output, head, names }
    }
}

fn norm(gpu: &Gpu, weights: Weights, width: u64, name: &str) -> LayerNorm {
    let weight = weights.make(gpu, width, &format!("{name}.weight"));
    let bias = weights.make(gpu, width, &format!("{name}.bias"));
    LayerNorm::new(weight, bias, width, gpu.name(name))
}

impl Layer {
    fn new(gpu: &Gpu, config: &GptConfig, weights: Weights, at: u64) -> Layer {
        let named = |part: &str| format!("h.{at}.{part}");
        let linear = |name: &str, inputs: u64, outputs: u64| {
            let (label, name) = (named(name), gpu.name(&named(name)));
            let weight = weights.make(gpu, inputs * outputs, &format!("{label}.weight"));
            let bias = weights.make(gpu, outputs, &format!("{label}.bias"));
            let base = Linear::new(config.form, weight, Some(bias), inputs, outputs, name);
            Projection::around(base, inputs, outputs, label, name)
        };
        let (hidden, inner, ffn) = (config.hidden, config.hidden / config.shards, config.ffn / config.shards);
        let norm1 = norm(gpu, weights, hidden, &named("ln_1"));
        let qkv = match config.is_fused {
            true => vec![linear("attn.c_attn", hidden, 3 * inner)],
            false => ["attn.q", "attn.k", "attn.v"].map(|name| linear(name, hidden, inner)).into(),
        };
        let out = linear("attn.c_proj", inner, hidden);
        let norm2 = norm(gpu, weights, hidden, &named("ln_2"));
        let up = linear("mlp.c_fc", hidden, ffn);
        let down = linear("mlp.c_proj", ffn, hidden);
        let name = LayerNames {
            attention: gpu.name(&named("attn")),
            activation: gpu.name(&named("mlp.act")),
            residual: gpu.name(&named("residual")),
            dropout: gpu.name(&named("dropout")),
        };
        Layer { at: at as usize, norm1, qkv, out, norm2, up, down, name, parameters: Vec::new() }
    }

    /// Puts adapters beside the attention's layers. They are trained in 32 bits if the job does not choose a type for all weights.
    fn adapt(&mut self, gpu: &Gpu, lora: &Lora) {
        for projection in self.qkv.iter_mut().chain([&mut self.out]) {
            projection.adapt(gpu, lora.rank);
            if !lora.has_type_of_model {
                projection.float_adapter(gpu);
            }
        }
    }

    /// Lists the weights as the framework does.
    fn collect(&mut self) {
        let norms = |norm: &LayerNorm| [norm.weight.clone(), norm.bias.clone()];
        let mut parameters: Vec<Parameter> = norms(&self.norm1).into();
        for projection in self.qkv.iter().chain([&self.out]) {
            projection.collect(&mut parameters);
        }
        parameters.extend(norms(&self.norm2));
        for projection in [&self.up, &self.down] {
            projection.collect(&mut parameters);
        }
        self.parameters = parameters;
    }

    fn attention(&self, cx: &Cx, config: &GptConfig, x: &Tensor, shared: &Shared, cache: Option<&KvCache>) -> Tensor {
        let (gpu, name) = (&cx.gpu, self.name.attention);
        let [q, k, v] = match self.qkv.as_slice() {
            [fused] => {
                let qkv = fused.forward(cx, x);
                let part = qkv.elements() / 3;
                split3(gpu, &qkv, [part; 3], name)
            }
            parts => [0, 1, 2].map(|at: usize| {
                let part = parts[at].forward(cx, x);
                // OPT scales the queries itself.
                if at == 0 && matches!(config.positions, Positions::Learned(_)) {
                    scale(gpu, &part, name)
                } else {
                    part
                }
            }),
        };
        // What is turned or gathered lies head by head.
        let is_turned = shared.rotary.is_some();
        let by_head = |x: Tensor, is_needed: bool| if is_needed { split_heads(gpu, &x, name) } else { x };
        let q = by_head(q, is_turned);
        let k = by_head(k, is_turned || cache.is_some());
        let mut v = by_head(v, cache.is_some());
        let [q, mut k] = match (config.positions, &shared.rotary) {
            (Positions::Rotary(percent), Some(rotary)) => {
                [rotate(gpu, &q, rotary, percent, name), rotate(gpu, &k, rotary, percent, name)]
            }
            _ => [q, k],
        };
        if let Some(cache) = cache {
            let whole = cache.update(gpu, self.at, [&k, &v], name);
            [k, v] = whole;
        }
        let heads = config.heads / config.shards;
        let heads =
            Heads { heads, shared: heads, width: config.hidden / config.heads, has_dropout: config.has_dropout };
        let out = attention(gpu, [&q, &k, &v], heads, name);
        let projected = self.out.forward(cx, &out);
        drop(out);
        let dropped = self.dropped(cx, config, projected);
        drop((q, k, v));
        dropped
    }

    fn dropped(&self, cx: &Cx, config: &GptConfig, x: Tensor) -> Tensor {
        if config.has_dropout && cx.has_dropout { dropout(&cx.gpu, &x, self.name.dropout) } else { x }
    }

    fn mlp(&self, cx: &Cx, config: &GptConfig, x: &Tensor) -> Tensor {
        let up = self.up.forward(cx, x);
        let active = match config.activation {
            Activation::NewGelu => new_gelu(cx, &up, self.name.activation),
            Activation::Gelu => gelu(&cx.gpu, &up, self.name.activation),
            Activation::Relu => relu(&cx.gpu, &up, self.name.activation),
        };
        drop(up);
        let down = self.down.forward(cx, &active);
        drop(active);
        self.dropped(cx, config, down)
    }
}

/// Rotary positions on a part of each head: the part is turned and put together with the rest.
fn rotate(gpu: &Gpu, x: &Tensor, rotary: &Rotary, percent: u64, name: Name) -> Tensor {
    let (elements, dtype) = (x.elements(), x.dtype());
    let turned = rotary.apply(gpu, &x.view(elements * percent / 100), name);
    let tape = gpu.tape(name, &[&turned, x]);
    let out = gpu.tensor(elements, dtype, Role::Activation, name);
    tape.record(out, move |_, grad| vec![Some(grad.view(elements * percent / 100)), Some(grad)])
}

impl Model for Gpt {
    fn layers(&self) -> usize {
        self.layers.len()
    }

    fn parameters(&self, part: Part) -> &[Parameter] {
        match part {
            Part::Embedding => &self.embedding,
            Part::Layer(at) => &self.layers[at].parameters,
            Part::Head => &self.head,
        }
    }

    fn embed(&self, cx: &Cx, tokens: &Tokens) -> Flow {
        let (gpu, config, names) = (&cx.gpu, &self.config, &self.names);
        let cache = config.has_cache.then(|| Rc::new(KvCache::new(self.layers.len())));
        let embedded = {
            let rows = embedding(cx, &tokens.ids, &self.tokens, config.hidden, names.embedding);
            // peft: without it, the first checkpoint would have no input that needs a gradient.
            let is_leaf = config.lora.is_some() && !config.has_cache && gpu.is_recording();
            if is_leaf { leaf(gpu, rows, names.embedding) } else { rows }
        };
        let range = gpu.tensor(tokens.columns, Dtype::I64, Role::Input, names.positions);
        let ids = gpu.like(&range, Role::Input, names.positions);
        drop(range);
        let Some(table) = &self.positions else {
            let rotary = self
                .frequencies
                .as_ref()
                .map(|frequencies| Rotary::new(gpu, frequencies, &ids, 1, embedded.dtype(), names.positions));
            let shared = Rc::new(Shared { rotary, _positions: Some(ids) });
            return Flow { hidden: embedded, shared, locals: Vec::new(), cache };
        };
        let positions = embedding(cx, &ids, table, config.hidden, names.positions);
        let sum = add(gpu, &embedded, &positions, names.embedding);
        let hidden = if config.has_dropout && cx.has_dropout { dropout(gpu, &sum, names.embedding) } else { sum };
        Flow { hidden, shared: Rc::default(), locals: vec![embedded, positions, ids], cache }
    }

    fn layer(&self, cx: &Cx, layer: usize, hidden: &Tensor, shared: &Shared, cache: Option<&KvCache>) -> Tensor {
        let (gpu, config, layer) = (&cx.gpu, &self.config, &self.layers[layer]);
        let residual = layer.name.residual;
        let normed = layer.norm1.forward(cx, hidden);
        let attended = layer.attention(cx, config, &normed, shared, cache);
        if config.is_parallel {
            drop(normed);
            let normed = layer.norm2.forward(cx, hidden);
            let fed = layer.mlp(cx, config, &normed);
            let sum = add(gpu, &fed, &attended, residual);
            return add(gpu, &sum, hidden, residual);
        }
        let middle = add(gpu, &attended, hidden, residual);
        drop(normed);
        let normed = layer.norm2.forward(cx, &middle);
        let fed = layer.mlp(cx, config, &normed);
        let out = add(gpu, &middle, &fed, residual);
        drop((normed, attended, fed));
        out
    }

    fn loss(&self, cx: &Cx, flow: Flow, tokens: &Tokens) -> Tensor {
        let (gpu, config) = (&cx.gpu, &self.config);
        let Flow { hidden, shared, locals, cache } = flow;
        let normed = self.norm.forward(cx, &hidden);
        drop((hidden, shared, locals));
        let table = self.output.as_ref().unwrap_or(&self.tokens);
        let logits = cx.module(&[table], &normed, |normed| {
            let weight = cx.weight(table, self.names.head);
            let input = cx.input(normed, self.names.head);
            matmul(gpu, &input, &weight, config.hidden, config.vocab, self.names.head)
        });
        let loss = causal_loss(gpu, &logits, tokens.rows, tokens.columns, self.names.loss);
        drop((normed, logits, cache));
        loss
    }
}
