//! Models: their weights, and what their forward passes do, written as their authors wrote them.
//!
//! A model is cut where training cuts it: what comes before the layers, each layer, and what comes after. So recomputation, sharding and
//! pipelines are written once, around layers, and not in any model.

mod blocks;
mod decoder;
mod gpt;
mod latent;
mod llama;
mod mask;
pub mod megatron;
mod moe;
mod neox;
mod opt;
mod projection;
mod resnet;
pub mod routing;
pub mod shapes;
mod stack;
mod unet;

pub use decoder::{KvCache, Parts};
pub use gpt::gpt2;
pub use llama::{Llama, LlamaShape};
pub use moe::{ExpertsForm, Mixed};
pub use neox::gpt_neox;
pub use opt::opt;
pub use projection::{Adapted, Lora};
pub use resnet::{Resnet, ResnetShape};
pub use unet::{Unet, UnetShape};

use crate::ops::{Checkpoint, Cx, Form, Linear, Rotary, checkpoint};
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};
use std::rc::Rc;

/// A batch of token sequences, all of one length.
#[derive(Clone, Debug)]
pub struct Tokens {
    /// The tokens' numbers.
    pub ids: Tensor,
    /// Sequences.
    pub rows: u64,
    /// Tokens of each, padding included.
    pub columns: u64,
}

impl Tokens {
    /// All tokens.
    pub fn count(&self) -> u64 {
        self.rows * self.columns
    }
}

/// What every layer uses. Each checkpoint owns it, too. Fields go in this order.
#[derive(Default)]
pub struct Shared {
    /// Rotary positions as complex numbers.
    pub turns: Option<Tensor>,
    /// Rotary positions.
    pub rotary: Option<Rotary>,
    /// What they were made of.
    pub _positions: Option<Tensor>,
    /// Tokens of a sequence.
    pub length: u64,
}

/// What goes from layer to layer.
pub struct Flow {
    /// The hidden states.
    pub hidden: Tensor,
    /// What every layer uses.
    pub shared: Rc<Shared>,
    /// What the forward function keeps until its layers are done, for no other reason than that its names still stand for it.
    pub locals: Vec<Tensor>,
    /// Keys and values of all layers, which live until the caller has let go of the output.
    pub cache: Option<Rc<KvCache>>,
}

/// Runs a layer on `x`. With a checkpoint, it keeps its input alone and runs again in the backward pass.
pub fn run_layer(
    model: &Rc<dyn Model>,
    cx: &Cx,
    layer: usize,
    x: &Tensor,
    flow: &Flow,
    recomputed: Option<(Checkpoint, Name)>,
) -> Tensor {
    if let Some((form, name)) = recomputed {
        let (model, shared) = (model.clone(), flow.shared.clone());
        return checkpoint(cx, form, x, name, move |cx, x| model.layer(cx, layer, x, &shared, None));
    }
    model.layer(cx, layer, x, &flow.shared, flow.cache.as_deref())
}

/// A part of a model that is cut nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// What comes before the layers.
    Embedding,
    /// A layer.
    Layer(usize),
    /// What comes after the layers.
    Head,
}

/// A language model.
pub trait Model {
    /// Puts adapters beside linear layers. The model's own weights are frozen.
    fn adapt(&mut self, gpu: &Gpu, lora: &Lora);
    /// How many layers it has.
    fn layers(&self) -> usize;
    /// The weights of a part, in the order in which the framework lists them. A weight that two parts share belongs to the first.
    fn parameters(&self, part: Part) -> &[Parameter];
    /// What comes before the layers.
    fn embed(&self, cx: &Cx, tokens: &Tokens) -> Flow;
    /// A layer. Keys and values go behind those of `cache`.
    fn layer(&self, cx: &Cx, layer: usize, hidden: &Tensor, shared: &Shared, cache: Option<&KvCache>) -> Tensor;
    /// What comes after the layers, and the loss.
    fn loss(&self, cx: &Cx, flow: Flow, tokens: &Tokens) -> Tensor;
}

/// All weights of a model, in the framework's order.
pub fn all_parameters(model: &dyn Model) -> Vec<Parameter> {
    let layers = (0..model.layers()).map(Part::Layer);
    let parts = std::iter::once(Part::Embedding).chain(layers).chain([Part::Head]);
    parts.flat_map(|part| model.parameters(part).iter().cloned()).collect()
}

/// Puts all weights of a model into another type, as `to` does: the old memory goes when the new is there.
pub fn convert_all(gpu: &Gpu, model: &dyn Model, dtype: Dtype) {
    let frozen = gpu.name("frozen weights");
    for weight in all_parameters(model) {
        projection::convert(gpu, &weight, dtype, weight.name().unwrap_or(frozen));
    }
}

/// Weights in 32 bits that are trained.
pub const TRAINED: Weights = Weights { dtype: Dtype::F32, are_trained: true };

/// How a model of the GPT family is made.
#[derive(Clone, Copy, Debug)]
pub struct Making {
    /// Its weights.
    pub weights: Weights,
    /// The type of its buffers.
    pub buffers: Dtype,
    /// Whether the forward pass fills a cache of keys and values, as transformers does unless told otherwise.
    pub has_cache: bool,
    /// Whether it gets adapters.
    pub is_adapted: bool,
}

/// How weights are made.
#[derive(Clone, Copy, Debug)]
pub struct Weights {
    /// Their type.
    pub dtype: Dtype,
    /// Whether they are trained.
    pub are_trained: bool,
}

impl Weights {
    /// Makes a weight.
    pub fn make(&self, gpu: &Gpu, elements: u64, name: &str) -> Parameter {
        self.named(gpu, elements, gpu.name(name))
    }

    /// Makes a weight of a name that there is.
    pub fn named(&self, gpu: &Gpu, elements: u64, name: Name) -> Parameter {
        let tensor = gpu.tensor(elements, self.dtype, Role::Parameter, name);
        if self.are_trained { Parameter::trained(gpu, tensor, name) } else { Parameter::frozen(tensor).named(name) }
    }

    /// Makes `torch.nn.Linear`.
    pub fn linear(&self, gpu: &Gpu, inputs: u64, outputs: u64, has_bias: bool, path: &str) -> Linear {
        let weight = self.make(gpu, inputs * outputs, &format!("{path}.weight"));
        let bias = has_bias.then(|| self.make(gpu, outputs, &format!("{path}.bias")));
        Linear::new(Form::Linear, weight, bias, inputs, outputs, gpu.name(path))
    }
}
