//! A part of a decoder as Megatron-LM runs it: the layers of one pipeline stage, each split among the ranks of a tensor-parallel group.
//!
//! Megatron's own layers differ from those of transformers: products whose weights' gradients are added to one buffer in 32 bits, norms,
//! rotations and activations that are one kernel each, attention fused or written out, and, with sequence parallelism, tensors that are gathered
//! before a product and scattered after it. The facts are those of megatron/core (tensor_parallel, transformer, fusions, pipeline_parallel).

mod attention;
mod ends;
mod layer;
mod linear;
mod moe;

use super::routing::Loads;
use super::shapes::{Family, Shape};
use crate::ops::{Cx, LayerNorm};
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor, reentrant_checkpoint};
use ends::{Embedding, Head};
use layer::Layer;
use std::rc::Rc;

pub use linear::Gathered;

/// What is made again in the backward pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recompute {
    /// Nothing.
    Nothing,
    /// What attention makes of queries, keys and values.
    Attention,
    /// Each layer.
    Layers,
}

/// How a model is run.
#[derive(Clone, Copy, Debug)]
pub struct MegatronConfig {
    /// The whole model.
    pub shape: Shape,
    /// Ranks that split each layer.
    pub tensor_parallel: u64,
    /// Whether what those ranks would hold alike, between the products, is split along the sequence.
    pub is_sequence_parallel: bool,
    /// Ranks among which experts are spread.
    pub expert_parallel: u64,
    /// Whether attention is one kernel.
    pub is_fused: bool,
    /// Whether activations are dropped out.
    pub has_dropout: bool,
    /// What is made again.
    pub recompute: Recompute,
}

/// A micro-batch.
#[derive(Clone, Copy, Debug)]
pub struct Micro {
    /// Its number since the beginning.
    pub number: u64,
    /// Sequences.
    pub rows: u64,
    /// Tokens of each.
    pub columns: u64,
}

impl MegatronConfig {
    /// The vocabulary is padded to a multiple of this, times the ranks.
    const VOCAB_MULTIPLE: u64 = 128;

    /// Tokens in the table of each rank.
    fn vocab(&self) -> u64 {
        let multiple = MegatronConfig::VOCAB_MULTIPLE * self.tensor_parallel;
        self.shape.vocab.next_multiple_of(multiple) / self.tensor_parallel
    }

    fn has_biases(&self) -> bool {
        matches!(self.shape.family, Family::Gpt2 | Family::Opt | Family::Neox)
    }

    /// Ranks that share what lies between the products.
    fn sequence_shards(&self) -> u64 {
        if self.is_sequence_parallel { self.tensor_parallel } else { 1 }
    }

    /// Elements of the hidden states that go from stage to stage.
    pub fn hidden_elements(&self, micro: Micro) -> u64 {
        micro.rows * micro.columns * self.shape.hidden / self.sequence_shards()
    }
}

/// A norm in one kernel.
enum Norm {
    Layer(LayerNorm),
    RootMeanSquare { weight: Parameter, width: u64, name: Name },
}

impl Norm {
    fn new(maker: &mut Maker<'_>, name: &str) -> Norm {
        let width = maker.config.shape.hidden;
        let weight = maker.weight(width, &format!("{name}.weight"));
        let label = maker.gpu.name(name);
        if !maker.config.has_biases() {
            return Norm::RootMeanSquare { weight, width, name: label };
        }
        let bias = maker.weight(width, &format!("{name}.bias"));
        Norm::Layer(LayerNorm::new(weight, bias, width, label))
    }

    fn forward(&self, gpu: &Gpu, x: &Tensor) -> Tensor {
        let (weight, width, name) = match self {
            Norm::Layer(norm) => return norm.forward(&Cx::plain(gpu), x),
            Norm::RootMeanSquare { weight, width, name } => (weight.tensor(), *width, *name),
        };
        let tape = gpu.tape(name, &[x, &weight]);
        let saved = (tape.save(x), tape.save(&weight));
        let out = gpu.like(x, Role::Activation, name);
        let deviations = gpu.tensor(x.elements() / width, Dtype::F32, Role::Activation, name);
        let saved_deviations = tape.save(&deviations);
        let dtype = weight.dtype();
        tape.record(out, move |gpu, grad| {
            let _saved = (saved.0.unpack(gpu), saved.1.unpack(gpu), saved_deviations.unpack(gpu));
            let x = gpu.like(&grad, Role::Gradient, name);
            vec![Some(x), Some(gpu.tensor(width, dtype, Role::Gradient, name))]
        })
    }
}

/// Makes weights and keeps a list of them.
struct Maker<'a> {
    gpu: &'a Gpu,
    config: MegatronConfig,
    weights: Vec<Parameter>,
}

impl Maker<'_> {
    fn weight(&mut self, elements: u64, name: &str) -> Parameter {
        let name = self.gpu.name(name);
        let tensor = self.gpu.tensor(elements, Dtype::Bf16, Role::Parameter, name);
        let weight = Parameter::trained(self.gpu, tensor, name);
        self.weights.push(weight.clone());
        weight
    }
}

/// Consecutive layers on a device, with what comes before the first and after the last of the model where those are among them.
pub struct Chunk {
    config: MegatronConfig,
    embedding: Option<Embedding>,
    layers: Vec<Rc<Layer>>,
    head: Option<Head>,
    rotary: Option<Name>,
    weights: Vec<Parameter>,
}

/// Which part of a model a chunk is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The number of its first layer.
    pub first: u64,
    /// Layers.
    pub layers: u64,
}

impl Chunk {
    /// Makes the weights of a part of the model. All chunks of a device share what products gather their inputs in.
    pub fn new(gpu: &Gpu, config: MegatronConfig, place: Place, gathered: &Rc<Gathered>, loads: &Rc<Loads>) -> Chunk {
        let (is_first, is_last) = (place.first == 0, place.first + place.layers == config.shape.layers);
        let mut maker = Maker { gpu, config, weights: Vec::new() };
        let embedding = is_first.then(|| Embedding::new(&mut maker));
        let numbers = place.first..place.first + place.layers;
        let layers = numbers.map(|number| Rc::new(Layer::new(&mut maker, number, gathered, loads))).collect();
        let head = is_last.then(|| Head::new(&mut maker, embedding.as_ref(), gathered));
        let rotary = (config.shape.position_rows() == 0).then(|| gpu.name("rotary_pos_emb"));
        Chunk { config, embedding, layers, head, rotary, weights: maker.weights }
    }

    /// Its weights, as they were made.
    pub fn weights(&self) -> &[Parameter] {
        &self.weights
    }

    /// Whether tokens go in, and not hidden states.
    pub fn is_first(&self) -> bool {
        self.embedding.is_some()
    }

    /// Whether a loss comes out, and not hidden states.
    pub fn is_last(&self) -> bool {
        self.head.is_some()
    }

    /// Weights that each rank has for itself although all compute them alike: with sequence parallelism their gradients are summed.
    pub fn replicated_elements(&self) -> u64 {
        let norms = self.layers.len() as u64 * 2 + u64::from(self.is_last());
        norms * self.config.shape.hidden * if self.config.has_biases() { 2 } else { 1 }
    }

    /// The forward pass of a micro-batch: hidden states, or the loss and what is kept of it for the log. `input` is what the stage before
    /// has sent.
    pub fn forward(&self, gpu: &Gpu, micro: Micro, input: Option<Tensor>) -> (Tensor, Option<Tensor>) {
        let batch = self.batch(gpu, micro);
        let mut hidden = match (&self.embedding, input) {
            (Some(embedding), _) => embedding.forward(gpu, micro, &batch[0]),
            (None, Some(input)) => input,
            (None, None) => unreachable!("a chunk without an embedding gets its input from another"),
        };
        let positions = self.rotary.map(|name| {
            let width = self.config.shape.head_width;
            Rc::new(gpu.tensor(micro.columns * width, Dtype::F32, Role::Input, name))
        });
        for layer in &self.layers {
            let next = match self.config.recompute {
                Recompute::Layers => {
                    let (layer, positions) = (layer.clone(), positions.clone());
                    reentrant_checkpoint(gpu, &[&hidden], layer.name, move |gpu, inputs| {
                        layer.forward(gpu, micro, &inputs[0], positions.as_deref())
                    })
                }
                Recompute::Nothing | Recompute::Attention => layer.forward(gpu, micro, &hidden, positions.as_deref()),
            };
            hidden = next;
        }
        match &self.head {
            Some(head) => {
                let labels_and_mask = if self.is_first() { &batch[1..3] } else { &batch[..] };
                let (loss, report) = head.forward(gpu, micro, hidden, labels_and_mask);
                (loss, Some(report))
            }
            None => (hidden, None),
        }
    }

    /// What the first and the last stage read of a micro-batch: tokens, labels, the loss's mask and positions.
    fn batch(&self, gpu: &Gpu, micro: Micro) -> Vec<Tensor> {
        if !self.is_first() && !self.is_last() {
            return Vec::new();
        }
        let name = gpu.name("batch");
        let tensor = |dtype| gpu.tensor(micro.rows * micro.columns, dtype, Role::Input, name);
        match (self.is_first(), self.is_last()) {
            (true, false) => vec![tensor(Dtype::I64), tensor(Dtype::I64)],
            (false, true) => vec![tensor(Dtype::I64), tensor(Dtype::F32)],
            _ => [Dtype::I64, Dtype::I64, Dtype::F32, Dtype::I64].map(tensor).into(),
        }
    }
}
