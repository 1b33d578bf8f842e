//! Decoders of the older kind (GPT-2, OPT, GPT-NeoX): a table, layers, a norm and a head. What training does with such a model is written here;
//! each of them says how it places tokens and what a layer does.

use super::blocks::{Head, embedded};
use super::projection::{Projection, adapt};
use super::{Flow, KvCache, Lora, Making, Model, Part, Shared, Tokens};
use crate::ops::{Cx, LayerNorm};
use crate::tensor::{Gpu, Name, Parameter, Tensor};
use std::rc::Rc;

/// A layer.
pub(super) trait Layer {
    /// The products that adapters are put beside.
    fn adapted(&mut self) -> Vec<&mut Projection>;
    /// Its weights, in their order.
    fn list(&self) -> Vec<Parameter>;
    fn forward(&self, cx: &Cx, hidden: &Tensor, shared: &Shared, cache: Option<&KvCache>) -> Tensor;
}

/// What sets one of these models apart.
pub(super) trait Architecture {
    type Layer: Layer;
    /// Modules around the layers, within the one that has the head.
    const AROUND: usize;
    /// What the layers begin with, from the rows of the table.
    fn place(&self, cx: &Cx, tokens: &Tokens, rows: Tensor, cache: Option<Rc<KvCache>>) -> Flow;
}

/// The parts of a model, as they were made.
pub(super) struct Stack<A: Architecture> {
    pub(super) architecture: A,
    pub(super) width: u64,
    pub(super) name: Name,
    /// What is listed before the layers; first the table of tokens.
    pub(super) before: Vec<Parameter>,
    pub(super) layers: Vec<A::Layer>,
    pub(super) norm: LayerNorm,
    pub(super) head: Head,
    pub(super) after: Vec<Parameter>,
}

/// A model on a device.
struct Decoder<A: Architecture> {
    stack: Stack<A>,
    of_layers: Vec<Vec<Parameter>>,
    has_cache: bool,
    is_leaf: bool,
}

impl<A: Architecture + 'static> Stack<A> {
    /// The model.
    pub(super) fn model(self, making: &Making) -> Box<dyn Model> {
        let is_leaf = making.is_adapted && !making.has_cache;
        let of_layers = self.layers.iter().map(Layer::list).collect();
        Box::new(Decoder { stack: self, of_layers, has_cache: making.has_cache, is_leaf })
    }
}

impl<A: Architecture> Model for Decoder<A> {
    fn adapt(&mut self, gpu: &Gpu, lora: &Lora) {
        adapt(gpu, lora, self.stack.layers.iter_mut().flat_map(Layer::adapted));
        self.of_layers = self.stack.layers.iter().map(Layer::list).collect();
    }

    fn layers(&self) -> usize {
        self.stack.layers.len()
    }

    fn parameters(&self, part: Part) -> &[Parameter] {
        match part {
            Part::Embedding => &self.stack.before,
            Part::Layer(at) => &self.of_layers[at],
            Part::Head => &self.stack.after,
        }
    }

    fn embed(&self, cx: &Cx, tokens: &Tokens) -> Flow {
        let Stack { architecture, width, name, before, layers, .. } = &self.stack;
        let cache = self.has_cache.then(|| Rc::new(KvCache::new(layers.len())));
        cx.enter(A::AROUND, &tokens.ids);
        let rows = embedded(cx, &tokens.ids, &before[0], *width, self.is_leaf, *name);
        architecture.place(cx, tokens, rows, cache)
    }

    fn layer(&self, cx: &Cx, layer: usize, hidden: &Tensor, shared: &Shared, cache: Option<&KvCache>) -> Tensor {
        cx.module(&[], hidden, |hidden| self.stack.layers[layer].forward(cx, hidden, shared, cache))
    }

    fn loss(&self, cx: &Cx, flow: Flow, tokens: &Tokens) -> Tensor {
        let Flow { hidden, shared, locals, cache } = flow;
        let normed = cx.leave(A::AROUND, self.stack.norm.forward(cx, &hidden));
        drop((hidden, shared, locals));
        self.stack.head.loss(cx, normed, [tokens.rows, tokens.columns], cache)
    }
}
