//! Llama and its like: a decoder of layers with rotary attention and a gated feed-forward layer.

use super::blocks::embedded;
use super::decoder::{KvCache, Layer, Parts, Widths};
use super::latent::turns;
use super::mask::{look_for_packing, look_for_padding, window_mask};
use super::projection::{Adapted, Lora, adapt, convert};
use super::{Flow, Model, Part, Shared, Tokens, Weights, run_layer};
use crate::ops::{Cx, Form, Heads, Linear, RmsNorm, Rotary, causal_loss, embedding, to};
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};
use std::cell::Cell;
use std::rc::Rc;

/// What a model is made of.
#[derive(Clone, Debug)]
pub struct LlamaShape {
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Width of the feed-forward layers.
    pub ffn: u64,
    /// Heads of the queries.
    pub heads: u64,
    /// Heads of the keys and values.
    pub kv_heads: u64,
    /// Width of a head.
    pub head_width: u64,
    /// Tokens that the model knows.
    pub vocabulary: u64,
    /// The type that weights are made in.
    pub made: Dtype,
    /// The type that they are put into when all are made.
    pub dtype: Dtype,
    /// Whether the head's weight is the embedding's.
    pub is_tied: bool,
    /// Whether it gets adapters, so that its own weights are frozen.
    pub is_adapted: bool,
    /// Whether the layers keep their input alone, and run again in the backward pass.
    pub is_checkpointed: bool,
    /// What it has that Llama has not.
    pub parts: Parts,
}

/// A model on a device.
pub struct Llama {
    shape: LlamaShape,
    embed: Parameter,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
    /// The rotation's frequencies, and those that they are made of.
    frequencies: [Tensor; 2],
    /// The weights of each layer, and of what comes before and after.
    parameters: [Vec<Vec<Parameter>>; 3],
    /// The number of the batch that it is at.
    batch: Rc<Cell<u64>>,
    names: Names,
}

struct Names {
    model: Name,
    embed: Name,
    norm: Name,
    rotary: Name,
    mask: Name,
    head: Name,
    loss: Name,
}

impl Llama {
    /// Makes the model on the device, puts it into its type, and gives it its adapters.
    pub fn new(gpu: &Gpu, shape: &LlamaShape) -> Llama {
        let name = |text: &str| gpu.name(text);
        let names = Names {
            model: name("model"),
            embed: name("embed_tokens"),
            norm: name("norm"),
            rotary: name("rotary_emb"),
            mask: name("causal_mask"),
            head: name("lm_head"),
            loss: name("loss"),
        };
        let is_trained = !shape.is_adapted;
        let heads = Heads { heads: shape.heads, shared: shape.kv_heads, width: shape.head_width, has_dropout: false };
        let widths = Widths { hidden: shape.hidden, ffn: shape.ffn, heads };
        let table = shape.vocabulary * shape.hidden;
        let weights = Weights { dtype: shape.made, are_trained: is_trained };
        let embed = weights.named(gpu, table, names.embed);
        embed.set_columns(shape.hidden);
        let batch = Rc::default();
        let mut layers: Vec<Layer> =
            (0..shape.layers).map(|layer| Layer::new(gpu, layer, &widths, &shape.parts, &batch, weights)).collect();
        let norm = RmsNorm::new(weights.named(gpu, shape.hidden, names.norm), shape.hidden, names.norm);
        let turned = shape.parts.latent.map_or(shape.head_width, |latent| latent.turned);
        let frequencies = frequencies(gpu, turned, names.rotary);
        let head = if shape.is_tied { embed.clone() } else { weights.named(gpu, table, names.head) };

        convert(gpu, &embed, shape.dtype, names.embed);
        for layer in &mut layers {
            layer.convert(gpu, shape.dtype);
        }
        convert(gpu, &norm.weight, shape.dtype, names.norm);
        // Buffers are made in 32 bits in any case, and change their type with the weights only.
        let buffers = if shape.dtype == shape.made { Dtype::F32 } else { shape.dtype };
        let frequencies = frequencies.map(|buffer| to(gpu, &buffer, buffers, Role::Buffer, names.rotary));
        convert(gpu, &head, shape.dtype, names.head);
        let of_layers = listed(&mut layers);
        let mut after = vec![norm.weight.clone()];
        after.extend((!shape.is_tied).then(|| head.clone()));
        let parameters = [vec![vec![embed.clone()]], of_layers, vec![after]];
        let head = Linear::new(Form::Linear, head, None, shape.hidden, shape.vocabulary, names.head);
        Llama { shape: shape.clone(), embed, layers, norm, head, frequencies, parameters, batch, names }
    }

    /// The logits of each row's last token, without a graph. `positions` number the tokens, which come after those that `cache` has seen;
    /// `mask` says of all of them which are no padding.
    pub fn predict(
        self: &Rc<Llama>,
        cx: &Cx,
        tokens: &Tokens,
        [positions, mask]: [&Tensor; 2],
        cache: &Rc<KvCache>,
    ) -> Tensor {
        let (gpu, names, shape) = (&cx.gpu, &self.names, &self.shape);
        let embedded = embedding(cx, &tokens.ids, &self.embed, shape.hidden, names.embed);
        look_for_padding(gpu, mask, names.mask);
        let rotary = Rotary::new(gpu, &self.frequencies[0], positions, tokens.rows, embedded.dtype(), names.rotary);
        let shared = Rc::new(Shared { turns: None, rotary: Some(rotary), _positions: None, length: tokens.columns });
        let mut flow = Flow { hidden: embedded.clone(), shared, locals: vec![embedded], cache: Some(cache.clone()) };
        let model: Rc<dyn Model> = self.clone();
        for layer in 0..self.layers.len() {
            flow.hidden = run_layer(&model, cx, layer, &flow.hidden, &flow, None);
        }
        let Flow { hidden, shared, locals, .. } = flow;
        let normed = self.norm.forward(cx, &hidden);
        drop((hidden, locals, shared));
        self.head.forward(cx, &normed.view(tokens.rows * shape.hidden))
    }
}

impl Model for Llama {
    fn adapt(&mut self, gpu: &Gpu, lora: &Lora) {
        let is_adapted = |number: usize| match lora.adapted {
            Adapted::QueryValue => number == 0 || number == 2,
            Adapted::Attention => number < 4,
            Adapted::Linear => true,
        };
        let all = self.layers.iter_mut().flat_map(|layer| layer.projections().into_iter().enumerate());
        adapt(gpu, lora, all.filter(|(number, _)| is_adapted(*number)).map(|(_, projection)| projection));
        self.parameters[1] = listed(&mut self.layers);
    }

    fn layers(&self) -> usize {
        self.layers.len()
    }

    fn parameters(&self, part: Part) -> &[Parameter] {
        match part {
            Part::Embedding => &self.parameters[0][0],
            Part::Layer(at) => &self.parameters[1][at],
            Part::Head => &self.parameters[2][0],
        }
    }

    fn embed(&self, cx: &Cx, tokens: &Tokens) -> Flow {
        let (gpu, names, shape) = (&cx.gpu, &self.names, &self.shape);
        cx.enter(1, &tokens.ids);
        let is_leaf = shape.is_adapted && shape.is_checkpointed;
        let embedded = embedded(cx, &tokens.ids, &self.embed, shape.hidden, is_leaf, names.embed);
        let cache = (!shape.is_checkpointed).then(|| Rc::new(KvCache::new(shape.layers)));
        let positions = {
            let range = gpu.tensor(tokens.columns, Dtype::I64, Role::Temporary, names.model);
            gpu.like(&range, Role::Input, names.model)
        };
        if cache.is_none() {
            // Once for each mask that layers may have.
            for _ in 0..if shape.parts.has_window_mask { 2 } else { 1 } {
                look_for_packing(gpu, tokens, names.mask);
            }
        }
        self.batch.set(self.batch.get() + 1);
        let mut locals = vec![embedded.clone()];
        locals.extend(shape.parts.has_window_mask.then(|| window_mask(gpu, tokens, names.mask)));
        let frequencies = &self.frequencies[0];
        let (turns, rotary) = cx.aside(&positions, || match shape.parts.latent {
            Some(_) => (Some(turns(gpu, frequencies, &positions, names.rotary)), None),
            None => (None, Some(Rotary::new(gpu, frequencies, &positions, 1, embedded.dtype(), names.rotary))),
        });
        let shared = Rc::new(Shared { turns, rotary, _positions: Some(positions), length: tokens.columns });
        Flow { hidden: embedded, shared, locals, cache }
    }

    fn layer(&self, cx: &Cx, layer: usize, hidden: &Tensor, shared: &Shared, cache: Option<&KvCache>) -> Tensor {
        cx.module(&[], hidden, |hidden| self.layers[layer].forward(cx, hidden, shared, cache))
    }

    fn loss(&self, cx: &Cx, flow: Flow, tokens: &Tokens) -> Tensor {
        let Flow { hidden, shared, locals, cache } = flow;
        let normed = cx.leave(1, self.norm.forward(cx, &hidden));
        drop((hidden, shared, locals));
        let logits = self.head.forward(cx, &normed);
        let loss = causal_loss(&cx.gpu, &logits, tokens.rows, tokens.columns, self.names.loss);
        drop((normed, logits, cache));
        loss
    }
}

/// The weights of each layer.
fn listed(layers: &mut [Layer]) -> Vec<Vec<Parameter>> {
    let of_layer = |layer: &mut Layer| {
        let mut parameters = Vec::new();
        layer.collect(&mut parameters);
        parameters
    };
    layers.iter_mut().map(of_layer).collect()
}

/// The frequencies of `base^(-2i/width)`, which are computed twice: as the module is made and as its buffers are set.
fn frequencies(gpu: &Gpu, width: u64, name: Name) -> [Tensor; 2] {
    let half = || gpu.tensor(width / 2, Dtype::F32, Role::Temporary, name);
    let compute = |role: Role| {
        let exponents = {
            let range = half();
            let exponents = half();
            drop(range);
            exponents
        };
        let powers = half();
        gpu.scratch(8, Role::Temporary, name);
        drop(exponents);
        let inverse = half();
        let out = gpu.tensor(width / 2, Dtype::F32, role, name);
        drop((inverse, powers));
        out
    };
    let buffer = compute(Role::Buffer);
    let original = gpu.like(&buffer, Role::Buffer, name);
    drop(compute(Role::Temporary));
    [buffer, original]
}
