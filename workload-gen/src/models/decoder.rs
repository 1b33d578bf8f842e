//! A decoder layer as Llama has it, in parts that other models share.

use super::projection::{Projection, convert};
use super::{Shared, Weights};
use crate::ops::{Cx, Heads, Kernel, Layout, Queries, RmsNorm, add, attention, gather, mul, silu, split_heads, to};
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};
use std::cell::RefCell;

/// Widths of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Widths {
    pub hidden: u64,
    pub ffn: u64,
    pub heads: Heads,
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
    pub(super) fn new(gpu: &Gpu, layer: usize, widths: &Widths, weights: Weights) -> Attention {
        let Widths { hidden, heads, .. } = *widths;
        let label = format!("layers.{layer}.self_attn");
        let new = |part: &str, inputs, outputs| {
            Projection::new(gpu, format!("{label}.{part}_proj"), inputs, outputs, weights)
        };
        let (queries, keys) = (heads.heads * heads.width, heads.shared * heads.width);
        Attention {
            q: new("q", hidden, queries),
            k: new("k", hidden, keys),
            v: new("v", hidden, keys),
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
            let gate = silu(gpu, &self.gate.forward(cx, x), name);
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
    pub(super) attention: Attention,
    pub(super) feed: SwiGlu,
    norms: [RmsNorm; 2],
    names: [Name; 2],
    name: Name,
}

impl Layer {
    pub(super) fn new(gpu: &Gpu, layer: usize, widths: &Widths, weights: Weights) -> Layer {
        let attention = Attention::new(gpu, layer, widths, weights);
        let label = format!("layers.{layer}.mlp");
        let feed = SwiGlu::new(gpu, &label, widths.hidden, widths.ffn, weights);
        let names =
            ["input_layernorm", "post_attention_layernorm"].map(|part| gpu.name(&format!("layers.{layer}.{part}")));
        let norms = names.map(|name| RmsNorm::new(weights.named(gpu, widths.hidden, name), widths.hidden, name));
        Layer { attention, feed, norms, names, name: gpu.name(&format!("layers.{layer}")) }
    }

    /// Every linear layer, in the order in which they are made.
    pub(super) fn projections(&mut self) -> impl Iterator<Item = &mut Projection> {
        self.attention.projections().into_iter().chain(self.feed.projections())
    }

    pub(super) fn convert(&mut self, gpu: &Gpu, dtype: Dtype) {
        for projection in self.projections() {
            projection.convert(gpu, dtype);
        }
        for (norm, name) in self.norms.iter().zip(self.names) {
            convert(gpu, &norm.weight, dtype, name);
        }
    }

    pub(super) fn collect(&mut self, parameters: &mut Vec<Parameter>) {
        for projection in self.projections() {
            projection.collect(parameters);
        }
        parameters.extend(self.norms.iter().map(|norm| norm.weight.clone()));
    }

    pub(super) fn forward(&self, cx: &Cx, x: &Tensor, shared: &Shared, cache: Option<&KvCache>) -> Tensor {
        let hidden = {
            let normed = self.norms[0].forward(cx, x);
            let attended = self.attention.forward(cx, &normed, shared, cache);
            drop(normed);
            add(&cx.gpu, x, &attended, self.name)
        };
        let fed = {
            let normed = self.norms[1].forward(cx, &hidden);
            self.feed.forward(cx, &normed)
        };
        let out = add(&cx.gpu, &hidden, &fed, self.name);
        drop((fed, hidden));
        out
    }
}
