//! A decoder layer as Llama has it, in parts that other models share.

use super::latent::LatentAttention;
use super::moe::{Mixed, Mixture};
use super::projection::{Projection, convert};
use super::shapes::Latent;
use super::{Shared, Weights};
use crate::ops::{
    Cx, Form, Heads, Kernel, Layout, Queries, RmsNorm, add, attention, gather, mul, silu, split_heads, to,
};
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Widths of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Widths {
    pub hidden: u64,
    pub ffn: u64,
    pub heads: Heads,
}

/// What a model has that Llama has not.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    /// Whether queries, keys and values have a bias.
    pub has_qkv_bias: bool,
    /// Whether a mask is made for a window over earlier tokens, though no layer has one (Qwen).
    pub has_window_mask: bool,
    /// Keys and values that are made of a short vector.
    pub latent: Option<Latent>,
    /// Experts in the place of the MLPs.
    pub experts: Option<Mixed>,
}

/// The attention of a layer.
enum Mixer {
    Heads(Attention),
    Latent(LatentAttention),
}

/// The feed-forward part of a layer.
enum Feed {
    Dense(Box<SwiGlu>),
    Experts(Box<Mixture>),
}

/// Keys and values of earlier tokens, which grow by being copied: a layer's new tensors replace the old at each step.
#[derive(Debug)]
pub struct KvCache {
    layers: RefCell<Vec<Option<(Tensor, Tensor)>>>,
}

impl KvCache {
    /// An empty cache.
    pub fn new(layers: usize) -> KvCache {
        KvCache { layers: RefCell::new(vec![None; layers]) }
    }

    /// Puts keys and values behind those of a layer, and returns all of them. They have the keys' type.
    pub(super) fn update(&self, gpu: &Gpu, layer: usize, new: [&Tensor; 2], name: Name) -> [Tensor; 2] {
        let mut layers = self.layers.borrow_mut();
        let dtype = new[0].dtype();
        let whole = match layers[layer].take() {
            None => new.map(|new| match new.dtype() == dtype {
                true => gather(gpu, new, name),
                false => to(gpu, new, dtype, Role::Activation, name),
            }),
            Some((keys, values)) => {
                let behind =
                    |old: Tensor, new: &Tensor| gpu.tensor(old.elements() + new.elements(), dtype, Role::KvCache, name);
                let keys = behind(keys, new[0]);
                [keys, behind(values, new[1])]
            }
        };
        layers[layer] = Some((whole[0].clone(), whole[1].clone()));
        whole
    }
}

impl Drop for KvCache {
    /// A list gives up its elements from the last to the first.
    fn drop(&mut self) {
        while self.layers.get_mut().pop().is_some() {}
    }
}

/// Attention with rotary positions.
pub(super) struct Attention {
    q: Projection,
    k: Projection,
    v: Projection,
    o: Projection,
    heads: Heads,
    layer: usize,
    name: Name,
}

impl Attention {
    pub(super) fn new(gpu: &Gpu, layer: usize, widths: &Widths, has_bias: bool, weights: Weights) -> Attention {
        let Widths { hidden, heads, .. } = *widths;
        let label = format!("layers.{layer}.self_attn");
        let new = |part: &str, inputs, outputs| {
            Projection::new(gpu, format!("{label}.{part}_proj"), inputs, outputs, weights)
        };
        let input = |part: &str, outputs| {
            if !has_bias {
                return new(part, hidden, outputs);
            }
            let label = format!("{label}.{part}_proj");
            Projection::with_bias(gpu, label, Form::Linear, [hidden, outputs], weights)
        };
        let (queries, keys) = (heads.heads * heads.width, heads.shared * heads.width);
        Attention {
            q: input("q", queries),
            k: input("k", keys),
            v: input("v", keys),
            o: new("o", queries, hidden),
            heads,
            layer,
            name: gpu.name(&label),
        }
    }

    pub(super) fn projections(&mut self) -> [&mut Projection; 4] {
        [&mut self.q, &mut self.k, &mut self.v, &mut self.o]
    }

    pub(super) fn forward(&self, cx: &Cx, x: &Tensor, shared: &Shared, cache: Option<&KvCache>) -> Tensor {
        let (gpu, name) = (&cx.gpu, self.name);
        let q = split_heads(gpu, &self.q.forward(cx, x), name);
        let k = split_heads(gpu, &self.k.forward(cx, x), name);
        let mut v = self.v.forward(cx, x);
        // What is gathered lies head by head; otherwise the kernel reads token by token.
        let layout = if cache.is_some() { Layout::ByHead } else { Layout::ByToken };
        if Kernel::new(cx, q.dtype(), self.heads).gradient(layout) == Layout::ByHead {
            v = split_heads(gpu, &v, name);
        }
        let (q, mut k) = match &shared.rotary {
            Some(rotary) => {
                let turned = rotary.apply(gpu, &q, name);
                let turned = (turned, rotary.apply(gpu, &k, name));
                drop((q, k));
                turned
            }
            None => (q, k),
        };
        if let Some(cache) = cache {
            let whole = cache.update(gpu, self.layer, [&k, &v], name);
            [k, v] = whole;
        }
        let queries = Queries { length: shared.length, layout: Layout::ByToken };
        let out = attention(cx, [&q, &k, &v], self.heads, queries, name);
        let projected = self.o.forward(cx, &out);
        drop((out, q, k, v));
        projected
    }
}

/// A feed-forward layer whose activation is gated.
pub(super) struct SwiGlu {
    gate: Projection,
    up: Projection,
    down: Projection,
    name: Name,
}

impl SwiGlu {
    pub(super) fn new(gpu: &Gpu, label: &str, hidden: u64, ffn: u64, weights: Weights) -> SwiGlu {
        let new = |part: &str, inputs, outputs| {
            Projection::new(gpu, format!("{label}.{part}_proj"), inputs, outputs, weights)
        };
        SwiGlu {
            gate: new("gate", hidden, ffn),
            up: new("up", hidden, ffn),
            down: new("down", ffn, hidden),
            name: gpu.name(label),
        }
    }

    pub(super) fn projections(&mut self) -> [&mut Projection; 3] {
        [&mut self.gate, &mut self.up, &mut self.down]
    }

    pub(super) fn forward(&self, cx: &Cx, x: &Tensor) -> Tensor {
        let (gpu, name) = (&cx.gpu, self.name);
        let gated = {
            let gate = cx.module(&[], &self.gate.forward(cx, x), |gate| silu(gpu, gate, name));
            let up = self.up.forward(cx, x);
            let gated = mul(gpu, &gate, &up, name);
            drop((gate, up));
            gated
        };
        self.down.forward(cx, &gated)
    }
}

/// A layer: attention and a feed-forward layer, each behind a norm and beside a residual.
pub(super) struct Layer {
    attention: Mixer,
    feed: Feed,
    norms: [RmsNorm; 2],
    names: [Name; 2],
    name: Name,
}

impl Layer {
    pub(super) fn new(
        gpu: &Gpu,
        layer: usize,
        widths: &Widths,
        parts: &Parts,
        batch: &Rc<Cell<u64>>,
        weights: Weights,
    ) -> Layer {
        let attention = match parts.latent {
            Some(latent) => Mixer::Latent(LatentAttention::new(gpu, layer, widths, latent, weights)),
            None => Mixer::Heads(Attention::new(gpu, layer, widths, parts.has_qkv_bias, weights)),
        };
        let feed = match &parts.experts {
            Some(mixed) if layer as u64 >= mixed.shape.dense_layers => {
                Feed::Experts(Box::new(Mixture::new(gpu, layer, widths.hidden, mixed, batch, weights)))
            }
            _ => {
                let label = format!("layers.{layer}.mlp");
                Feed::Dense(Box::new(SwiGlu::new(gpu, &label, widths.hidden, widths.ffn, weights)))
            }
        };
        let names =
            ["input_layernorm", "post_attention_layernorm"].map(|part| gpu.name(&format!("layers.{layer}.{part}")));
        let norms = names.map(|name| RmsNorm::new(weights.named(gpu, widths.hidden, name), widths.hidden, name));
        Layer { attention, feed, norms, names, name: gpu.name(&format!("layers.{layer}")) }
    }

    /// Every linear layer that can have an adapter, in the order in which they are made: those of the attention first.
    pub(super) fn projections(&mut self) -> Vec<&mut Projection> {
        let mut projections: Vec<&mut Projection> = match &mut self.attention {
            Mixer::Heads(attention) => attention.projections().into(),
            Mixer::Latent(attention) => attention.projections().into(),
        };
        match &mut self.feed {
            Feed::Dense(mlp) => projections.extend(mlp.projections()),
            Feed::Experts(mixture) => projections.extend(mixture.projections()),
        }
        projections
    }

    pub(super) fn convert(&mut self, gpu: &Gpu, dtype: Dtype) {
        match &mut self.attention {
            Mixer::Heads(attention) => attention.projections().into_iter().for_each(|one| one.convert(gpu, dtype)),
            Mixer::Latent(attention) => attention.convert(gpu, dtype),
        }
        match &mut self.feed {
            Feed::Dense(mlp) => mlp.projections().into_iter().for_each(|one| one.convert(gpu, dtype)),
            Feed::Experts(mixture) => mixture.convert(gpu, dtype),
        }
        for (norm, name) in self.norms.iter().zip(self.names) {
            convert(gpu, &norm.weight, dtype, name);
        }
    }

    pub(super) fn collect(&mut self, parameters: &mut Vec<Parameter>) {
        match &mut self.attention {
            Mixer::Heads(attention) => attention.projections().into_iter().for_each(|one| one.collect(parameters)),
            Mixer::Latent(attention) => attention.collect(parameters),
        }
        match &mut self.feed {
            Feed::Dense(mlp) => mlp.projections().into_iter().for_each(|one| one.collect(parameters)),
            Feed::Experts(mixture) => mixture.collect(parameters),
        }
        parameters.extend(self.norms.iter().map(|norm| norm.weight.clone()));
    }

    pub(super) fn forward(&self, cx: &Cx, x: &Tensor, shared: &Shared, cache: Option<&KvCache>) -> Tensor {
        let hidden = {
            let normed = self.norms[0].forward(cx, x);
            let attended = cx.module(&[], &normed, |normed| match &self.attention {
                Mixer::Latent(attention) => attention.forward(cx, normed, shared, cache),
                Mixer::Heads(attention) => attention.forward(cx, normed, shared, cache),
            });
            drop(normed);
            add(&cx.gpu, x, &attended, self.name)
        };
        let fed = {
            let normed = self.norms[1].forward(cx, &hidden);
            cx.module(&[], &normed, |normed| match &self.feed {
                Feed::Dense(mlp) => mlp.forward(cx, normed),
                Feed::Experts(mixture) => mixture.forward(cx, normed),
            })
        };
        let out = add(&cx.gpu, &hidden, &fed, self.name);
        drop((fed, hidden));
        out
    }
}
