//! Models: their weights, and what their forward passes do, written as their authors wrote them.
//!
//! A model is cut where training cuts it: what comes before the layers, each layer, and what comes after. So recomputation, sharding and
//! pipelines are written once, around layers, and not in any model.

mod gpt;

pub use gpt::{Activation, Gpt, GptConfig, Positions};

use crate::ops::Cx;
use crate::tensor::{Dtype, Gpu, Parameter, Tensor};

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

/// What goes from layer to layer.
#[derive(Debug)]
pub struct Flow {
    /// The hidden states.
    pub hidden: Tensor,
    /// What every layer uses: positions, masks.
    pub shared: Vec<Tensor>,
    /// What the forward function keeps until its layers are done, for no other reason than that its names still stand for it.
    pub locals: Vec<Tensor>,
    /// Keys and values of all layers, which live until the caller has let go of the output.
    pub cache: Vec<Tensor>,
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
    /// How many layers it has.
    fn layers(&self) -> usize;
    /// The weights of a part, in the order in which the framework lists them. A weight that two parts share belongs to the first.
    fn parameters(&self, part: Part) -> &[Parameter];
    /// What comes before the layers.
    fn embed(&self, cx: &Cx, tokens: &Tokens) -> Flow;
    /// A layer. Keys and values are pushed to `cache`.
    fn layer(&self, cx: &Cx, layer: usize, hidden: &Tensor, shared: &[Tensor], cache: &mut Vec<Tensor>) -> Tensor;
    /// What comes after the layers, and the loss.
    fn loss(&self, cx: &Cx, flow: Flow, tokens: &Tokens) -> Tensor;
}

/// All weights of a model, in the framework's order.
pub fn all_parameters(model: &dyn Model) -> Vec<Parameter> {
    let layers = (0..model.layers()).map(Part::Layer);
    let parts = std::iter::once(Part::Embedding).chain(layers).chain([Part::Head]);
    parts.flat_map(|part| model.parameters(part).iter().cloned()).collect()
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
        let name = gpu.name(name);
        let tensor = gpu.tensor(elements, self.dtype, crate::tensor::Role::Parameter, name);
        if self.are_trained { Parameter::trained(gpu, tensor, name) } else { Parameter::frozen(tensor) }
    }
}
