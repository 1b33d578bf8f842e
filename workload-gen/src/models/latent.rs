//! Multi-head latent attention: keys and values are made of a short vector for each token, which is all that a cache keeps
//! (`DeepseekV2Attention` of transformers 5.17).

use super::decoder::{KvCache, Widths};
use super::projection::{Projection, convert};
use super::shapes::Latent;
use super::{Shared, Weights};
use crate::ops::{Cx, Heads, Layout, Queries, RmsNorm, attention, cat, product, to};
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};

/// The attention of a layer.
pub(super) struct LatentAttention {
    q: Projection,
    down: Projection,
    norm: RmsNorm,
    up: Projection,
    o: Projection,
    heads: u64,
    latent: Latent,
    layer: usize,
    name: Name,
    norm_name: Name,
}

impl LatentAttention {
    pub(super) fn new(gpu: &Gpu, layer: usize, widths: &Widths, latent: Latent, weights: Weights) -> LatentAttention {
        let (hidden, heads) = (widths.hidden, widths.heads.heads);
        let label = format!("layers.{layer}.self_attn");
        let new =
            |part: &str, inputs, outputs| Projection::new(gpu, format!("{label}.{part}"), inputs, outputs, weights);
        let norm_name = gpu.name(&format!("{label}.kv_a_layernorm"));
        let q = new("q_proj", hidden, heads * (latent.plain + latent.turned));
        let down = new("kv_a_proj_with_mqa", hidden, latent.rank + latent.turned);
        let norm = RmsNorm::new(weights.named(gpu, latent.rank, norm_name), latent.rank, norm_name);
        let up = new("kv_b_proj", latent.rank, heads * (latent.plain + latent.value));
        let o = new("o_proj", heads * latent.value, hidden);
        LatentAttention { q, down, norm, up, o, heads, latent, layer, name: gpu.name(&label), norm_name }
    }

    pub(super) fn projections(&mut self) -> [&mut Projection; 4] {
        [&mut self.q, &mut self.down, &mut self.up, &mut self.o]
    }

    pub(super) fn convert(&mut self, gpu: &Gpu, dtype: Dtype) {
        self.q.convert(gpu, dtype);
        self.down.convert(gpu, dtype);
        convert(gpu, &self.norm.weight, dtype, self.norm_name);
        self.up.convert(gpu, dtype);
        self.o.convert(gpu, dtype);
    }

    pub(super) fn collect(&mut self, parameters: &mut Vec<Parameter>) {
        self.q.collect(parameters);
        self.down.collect(parameters);
        parameters.push(self.norm.weight.clone());
        self.up.collect(parameters);
        self.o.collect(parameters);
    }

    pub(super) fn forward(&self, cx: &Cx, x: &Tensor, shared: &Shared, cache: Option<&KvCache>) -> Tensor {
        let (gpu, name, heads) = (&cx.gpu, self.name, self.heads);
        let Latent { rank, plain, turned, value } = self.latent;
        let query = self.q.forward(cx, x);
        let tokens = query.elements() / (heads * (plain + turned));
        let [q_plain, q_turned] = cut(gpu, &query, [tokens * heads * plain, tokens * heads * turned], true, name);
        let both = self.down.forward(cx, x);
        let [short, k_turned] = cut(gpu, &both, [tokens * rank, tokens * turned], false, name);
        let mut short_normed = self.norm.forward(cx, &short);
        let [q_turned, mut k_turned] = rotate(gpu, [&q_turned, &k_turned], shared.turns.as_ref(), name);
        if let Some(cache) = cache {
            let [whole, turned] = cache.update(gpu, self.layer, [&short_normed, &k_turned], name);
            (short_normed, k_turned) = (whole, turned);
        }
        let queries = cat(gpu, [&q_plain, &q_turned], name);
        let [keys, values] = {
            let wide = self.up.forward(cx, &short_normed);
            let [k_plain, values] = cut(gpu, &wide, [tokens * heads * plain, tokens * heads * value], true, name);
            let repeated = expand(gpu, &k_turned, tokens * heads * turned, name);
            [put_together(gpu, [&k_plain, &repeated], name), values]
        };
        let shape = Heads { heads, shared: heads, width: plain + turned, has_dropout: false };
        let lie = Queries { length: shared.length, layout: Layout::ByHead };
        let out = attention(cx, [&queries, &keys, &values], shape, lie, name);
        let projected = self.o.forward(cx, &out);
        drop((query, q_plain, q_turned, both, short, k_turned, short_normed, queries, keys, values, out));
        projected
    }
}

/// Cosines and sines of the positions as complex numbers.
pub(super) fn turns(gpu: &Gpu, frequencies: &Tensor, positions: &Tensor, name: Name) -> Tensor {
    let float = |x: &Tensor| to(gpu, x, Dtype::F32, Role::Temporary, name);
    let frequencies = float(frequencies);
    let positions = float(positions);
    let elements = frequencies.elements() * positions.elements();
    let angles = gpu.tensor(elements, Dtype::F32, Role::Temporary, name);
    product(gpu);
    let polar = {
        let ones = gpu.like(&angles, Role::Temporary, name);
        let polar = gpu.tensor(2 * elements, Dtype::F32, Role::Temporary, name);
        drop(ones);
        polar
    };
    let scaled = gpu.like(&polar, Role::Input, name);
    drop((polar, frequencies, positions, angles));
    scaled
}

/// Two parts of each head or token, without a copy. Their gradients are put together, and copied where they lie head by head.
fn cut(gpu: &Gpu, x: &Tensor, parts: [u64; 2], is_by_head: bool, name: Name) -> [Tensor; 2] {
    let tape = gpu.tape(name, &[x]);
    let (elements, dtype) = (x.elements(), x.dtype());
    let views = parts.map(|part| x.detach().view(part));
    tape.record_all(views, move |gpu, grads| {
        let whole = gpu.tensor(elements, dtype, Role::Gradient, name);
        drop(grads);
        let whole = if is_by_head { gpu.like(&whole, Role::Gradient, name) } else { whole };
        vec![Some(whole)]
    })
}

/// Turns queries and keys as complex numbers, in 32 bits.
fn rotate(gpu: &Gpu, x: [&Tensor; 2], turns: Option<&Tensor>, name: Name) -> [Tensor; 2] {
    let floats = x.map(|x| to(gpu, x, Dtype::F32, Role::Activation, name));
    let one = |at: usize| {
        let product = multiply(gpu, &floats[at], turns, name);
        to(gpu, &product, x[at].dtype(), Role::Activation, name)
    };
    let queries = one(0);
    [queries, one(1)]
}

/// The product with complex numbers, which are kept. The backward pass takes their conjugates.
fn multiply(gpu: &Gpu, x: &Tensor, turns: Option<&Tensor>, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let saved = turns.map(|turns| (tape.save(turns), turns.bytes()));
    let out = gpu.like(x, Role::Activation, name);
    tape.record(out, move |gpu, grad| {
        let saved = saved.map(|(turns, bytes)| (turns.unpack(gpu), bytes));
        let conjugate = saved.as_ref().map(|(_, bytes)| gpu.storage(*bytes, Role::Temporary, name));
        let x = gpu.like(&grad, Role::Gradient, name);
        drop(conjugate);
        vec![Some(x)]
    })
}

/// What all heads share, seen once for each. The gradient is the sum.
fn expand(gpu: &Gpu, x: &Tensor, elements: u64, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let (before, dtype) = (x.elements(), x.dtype());
    tape.record(x.detach().view(elements), move |gpu, _grad| {
        vec![Some(gpu.tensor(before, dtype, Role::Gradient, name))]
    })
}

/// Both copied into parts of a new tensor, one after the other. The backward pass of each copy makes one of the whole gradient, and one of
/// its part.
fn put_together(gpu: &Gpu, x: [&Tensor; 2], name: Name) -> Tensor {
    let [first, second] = x.map(Tensor::elements);
    let empty = gpu.tensor(first + second, x[0].dtype(), Role::Activation, name);
    let begun = put(gpu, &empty, x[0], name);
    put(gpu, &begun, x[1], name)
}

fn put(gpu: &Gpu, base: &Tensor, part: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[base, part]);
    let (elements, needs_base) = (part.elements(), tape.needs(0));
    tape.record(base.detach(), move |gpu, grad| {
        let whole = gpu.like(&grad, Role::Gradient, name);
        let part = gpu.tensor(elements, grad.dtype(), Role::Gradient, name);
        if needs_base {
            // What was there before is zero in the part's place.
            drop(gpu.like(&part, Role::Temporary, name));
        }
        vec![needs_base.then_some(whole), Some(part)]
    })
}
