//! The model: its weights, and what a pass over some tokens allocates.
//!
//! The pass is that of a serving engine with fused kernels (vLLM's `LlamaForCausalLM`): norms add the residual in place, queries,
//! keys and values are one product, gate and up another. Nothing is kept for a backward pass; a tensor lives as long as a
//! Python name of the pass holds it.

use crate::models::shapes;
use crate::ops::matmul;
use crate::spec::Values;
use crate::tensor::{Dtype, Gpu, Name, Role, Tensor};

/// The model as one device has it.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub layers: u64,
    pub hidden: u64,
    /// This device's heads.
    pub heads: u64,
    pub kv_heads: u64,
    pub head_dim: u64,
    /// This device's part of the feed-forward layers.
    ffn: u64,
    vocab: u64,
    /// This device's part of the vocabulary.
    vocab_part: u64,
    pub dtype: Dtype,
    pub kv_dtype: Dtype,
    weight_bits: u64,
    tp: u64,
    pub writes_scores: bool,
    sorts: bool,
    pub max_length: u64,
}

impl Shape {
    /// The shape, or which numbers do not go together.
    pub fn new(values: &Values) -> Result<Shape, String> {
        let name = values.text("model");
        let model = shapes::shape(name).ok_or_else(|| format!("model={name} is unknown"))?;
        let (layers, hidden) = (values.int_or("layers", model.layers), values.int_or("hidden", model.hidden));
        let (heads, kv_heads) = (values.int_or("heads", model.heads), values.int_or("kv-heads", model.kv_heads));
        let (ffn, vocab, tp) = (values.int_or("ffn", model.ffn), values.int_or("vocab", model.vocab), values.int("tp"));
        if !values.is_given("head-dim") && hidden % heads != 0 {
            return Err(format!("hidden={hidden} is no multiple of heads={heads}; say head-dim"));
        }
        if heads % kv_heads != 0 {
            return Err(format!("heads={heads} is no multiple of kv-heads={kv_heads}"));
        }
        if heads % tp != 0 || ffn % tp != 0 {
            return Err(format!("tp={tp} does not divide heads={heads} and ffn={ffn}"));
        }
        if kv_heads % tp != 0 && tp % kv_heads != 0 {
            return Err(format!("tp={tp} and kv-heads={kv_heads}: neither divides the other"));
        }
        let dtype = match values.text("dtype") {
            "f32" => Dtype::F32,
            "f16" => Dtype::F16,
            _ => Dtype::Bf16,
        };
        // Padded, so that the parts are alike.
        let vocab_part = vocab.next_multiple_of(64).div_ceil(tp);
        Ok(Shape {
            layers,
            hidden,
            heads: heads / tp,
            kv_heads: (kv_heads / tp).max(1),
            head_dim: values.int_or("head-dim", hidden / heads),
            ffn: ffn / tp,
            vocab,
            vocab_part,
            dtype,
            kv_dtype: if values.text("kv-dtype") == "fp8" { Dtype::U8 } else { dtype },
            weight_bits: values.int_or("weight-bits", dtype.bytes() * 8),
            tp,
            writes_scores: values.text("attention") == "math",
            sorts: values.text("sampling") == "top-p",
            max_length: values.int_or("max-length", model.positions),
        })
    }

    /// Elements of the queries of a token.
    fn queries(&self) -> u64 {
        self.heads * self.head_dim
    }

    /// Elements of the keys of a token, or of its values.
    pub fn keys(&self) -> u64 {
        self.kv_heads * self.head_dim
    }

    /// Bytes that a token's keys and values take in all layers.
    pub fn token_bytes(&self) -> u64 {
        2 * self.layers * self.keys() * self.kv_dtype.bytes()
    }

    /// The matrices of a layer: inputs and outputs of each.
    pub fn matrices(&self) -> [(u64, u64); 4] {
        let (hidden, queries, ffn) = (self.hidden, self.queries(), self.ffn);
        [(hidden, queries + 2 * self.keys()), (queries, hidden), (hidden, 2 * ffn), (ffn, hidden)]
    }
}

/// What the places of a layer are called.
struct LayerNames {
    matrices: [Name; 4],
    norms: [Name; 2],
    attention: Name,
    activation: Name,
    cache: Name,
}

/// What the places of a model are called.
pub(super) struct Names {
    layers: Vec<LayerNames>,
    embedding: Name,
    rotary: Name,
    norm: Name,
    head: Name,
    sampler: Name,
    pub input: Name,
}

impl Names {
    pub fn new(gpu: &Gpu, prefix: &str, layers: u64) -> Names {
        let name = |text: &str| gpu.name(&format!("{prefix}{text}"));
        let layer = |number: u64| {
            let name = |text: &str| name(&format!("layers.{number}.{text}"));
            LayerNames {
                matrices: ["attn.qkv_proj", "attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"].map(name),
                norms: ["input_norm", "post_attention_norm"].map(name),
                attention: name("attn"),
                activation: name("mlp.act_fn"),
                cache: name("attn.cache"),
            }
        };
        Names {
            layers: (0..layers).map(layer).collect(),
            embedding: name("embed_tokens"),
            rotary: name("rotary"),
            norm: name("norm"),
            head: name("lm_head"),
            sampler: name("sampler"),
            input: name("batch"),
        }
    }

    /// The name of a layer's cache.
    pub fn cache_of(&self, layer: usize) -> Name {
        self.layers[layer].cache
    }

    /// The name of a layer's matrix.
    pub fn matrix(&self, layer: usize, number: usize) -> Name {
        self.layers[layer].matrices[number]
    }
}

struct Layer {
    matrices: [Tensor; 4],
    _norms: [Tensor; 2],
}

/// Weights.
pub(super) struct Model {
    layers: Vec<Layer>,
    head: Tensor,
    _rest: [Tensor; 3],
}

impl Model {
    /// Allocates the weights, in the order in which the modules are made.
    pub fn load(gpu: &Gpu, shape: &Shape, names: &Names) -> Model {
        let weight = |elements, name| gpu.tensor(elements, shape.dtype, Role::Parameter, name);
        let matrix = |(inputs, outputs): (u64, u64), name| match shape.weight_bits {
            bits if bits == shape.dtype.bytes() * 8 => weight(inputs * outputs, name),
            bits => gpu.tensor((inputs * outputs * bits).div_ceil(8), Dtype::U8, Role::Parameter, name),
        };
        let embedding = weight(shape.vocab_part * shape.hidden, names.embedding);
        let rotary = gpu.tensor(shape.max_length * shape.head_dim, shape.dtype, Role::Buffer, names.rotary);
        let layer = |names: &LayerNames| {
            let mut matrices = shape.matrices().into_iter().zip(names.matrices);
            Layer {
                matrices: std::array::from_fn(|_| {
                    let (shape, name) = matrices.next().expect("four matrices");
                    matrix(shape, name)
                }),
                _norms: names.norms.map(|name| weight(shape.hidden, name)),
            }
        };
        let layers = names.layers.iter().map(layer).collect();
        let norm = weight(shape.hidden, names.norm);
        let head = weight(shape.vocab_part * shape.hidden, names.head);
        Model { layers, head, _rest: [embedding, rotary, norm] }
    }

    /// A pass over so many tokens; what it returns is before the last layer's logits. `attend` is called for each layer when its queries,
    /// keys and values are there.
    pub fn forward(
        &self,
        gpu: &Gpu,
        shape: &Shape,
        names: &Names,
        tokens: u64,
        attend: &mut dyn FnMut(usize),
    ) -> Tensor {
        let mut hidden = gpu.tensor(tokens * shape.hidden, shape.dtype, Role::Activation, names.embedding);
        hidden = shape.all_reduce(gpu, hidden, names.embedding);
        let mut residual = None;
        for number in 0..self.layers.len() {
            // The caller's name holds the old until the layer returns.
            hidden = self.layer(gpu, shape, names, number, &hidden, &mut residual, attend);
        }
        hidden
    }

    /// One layer. The first makes the residual of its input; after that, norms work in place.
    #[allow(clippy::too_many_arguments)]
    fn layer(
        &self,
        gpu: &Gpu,
        shape: &Shape,
        names: &Names,
        number: usize,
        hidden: &Tensor,
        residual: &mut Option<Tensor>,
        attend: &mut dyn FnMut(usize),
    ) -> Tensor {
        let (layer, names) = (&self.layers[number], &names.layers[number]);
        let [qkv, out, gate_up, down] =
            [0, 1, 2, 3].map(|at| (&layer.matrices[at], shape.matrices()[at], names.matrices[at]));
        let product = |x: &Tensor, (weight, (inputs, outputs), name): (&Tensor, (u64, u64), Name)| {
            matmul(gpu, x, weight, inputs, outputs, name)
        };
        let tokens = hidden.elements() / shape.hidden;
        let mut x = hidden.clone();
        if residual.is_none() {
            *residual = Some(x);
            x = gpu.like(hidden, Role::Activation, names.norms[0]);
        }
        x = {
            let _qkv = product(&x, qkv);
            attend(number);
            let mixed = gpu.tensor(tokens * shape.queries(), shape.dtype, Role::Activation, names.attention);
            gpu.scratch(tokens * shape.heads * Dtype::F32.bytes(), Role::Temporary, names.attention);
            shape.all_reduce(gpu, product(&mixed, out), names.matrices[1])
        };
        let gate_up = product(&x, gate_up);
        let x = gpu.tensor(tokens * shape.ffn, shape.dtype, Role::Activation, names.activation);
        let x = product(&x, down);
        drop(gate_up);
        shape.all_reduce(gpu, x, names.matrices[3])
    }

    /// The loss of all tokens, and its gradient: three times the logits, twice of them in 32 bits.
    pub fn loss(&self, gpu: &Gpu, shape: &Shape, names: &Names, hidden: &Tensor) {
        let logits = matmul(gpu, hidden, &self.head, shape.hidden, shape.vocab_part, names.head);
        let wide = || gpu.tensor(logits.elements(), Dtype::F32, Role::Activation, names.head);
        let (_wide, _grad) = (wide(), gpu.like(&logits, Role::Gradient, names.head));
        gpu.scratch(logits.elements() * Dtype::F32.bytes(), Role::Temporary, names.head);
    }

    /// The next tokens of so many sequences.
    pub fn sample(&self, gpu: &Gpu, shape: &Shape, names: &Names, hidden: &Tensor, sequences: u64) -> Tensor {
        let last = gpu.tensor(sequences * shape.hidden, hidden.dtype(), Role::Activation, names.norm);
        let mut logits = matmul(gpu, &last, &self.head, shape.hidden, shape.vocab_part, names.head);
        if shape.tp > 1 {
            let all = sequences * shape.vocab_part * shape.tp;
            logits = gpu.tensor(all, shape.dtype, Role::Communication, names.head);
        }
        let like = |dtype| gpu.tensor(sequences * shape.vocab, dtype, Role::Temporary, names.sampler);
        let logits = if logits.dtype() == Dtype::F32 { logits } else { like(Dtype::F32) };
        if shape.sorts {
            let (sorted, order) = (like(Dtype::F32), like(Dtype::I64));
            let sums = {
                let _probabilities = like(Dtype::F32);
                like(Dtype::F32)
            };
            let mask = like(Dtype::U8);
            drop(sums);
            let kept = like(Dtype::F32);
            drop((sorted, order, mask));
            let probabilities = like(Dtype::F32);
            let _noise = like(Dtype::F32);
            drop((kept, probabilities));
        }
        drop(logits);
        gpu.tensor(sequences, Dtype::I64, Role::Temporary, names.sampler)
    }
}

impl Shape {
    /// The sum over the devices, which a custom kernel writes to memory of its own.
    fn all_reduce(&self, gpu: &Gpu, part: Tensor, name: Name) -> Tensor {
        match self.tp {
            1 => part,
            _ => gpu.like(&part, Role::Communication, name),
        }
    }
}
