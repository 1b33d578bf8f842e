//! How a model is shared between ranks, as the training step sees it: what happens around the parts of a forward and backward pass, and
//! which weights the optimizer has.

use super::fsdp::Fsdp;
use super::plan::{Plan, Sharing};
use crate::models::Model;
use crate::ops::clip_grad_norm;
use crate::tensor::{Gpu, Name, Parameter, Tensor};

/// A way to share a model.
pub(super) trait Parallel {
    /// What the optimizer updates: the model's own weights, or this rank's shards of them.
    fn trained(&self) -> &[Parameter];
    /// The forward pass of so many tokens begins.
    fn begin(&self, gpu: &Gpu, tokens: u64);
    /// A layer is about to run on `x`. Returns what it runs on.
    fn enter(&self, gpu: &Gpu, layer: usize, x: &Tensor) -> Tensor;
    /// A layer has run.
    fn leave(&self, gpu: &Gpu, layer: usize, output: Tensor) -> Tensor;
    /// The model has run.
    fn end(&self, gpu: &Gpu, loss: Tensor) -> Tensor;
    /// The backward pass has walked the graph.
    fn finish(&self, gpu: &Gpu);
    /// Gradients are clipped by their norm.
    fn clip(&self, gpu: &Gpu, name: Name);
}

/// Shares `model` as the plan says.
pub(super) fn share(gpu: &Gpu, plan: &Plan, model: &dyn Model) -> Box<dyn Parallel> {
    match plan.sharing {
        Sharing::Alone => Box::new(Alone::new(model)),
        Sharing::Fsdp => Box::new(Fsdp::new(gpu, plan, model)),
    }
}

/// A model that nobody shares.
struct Alone {
    trained: Vec<Parameter>,
}

impl Alone {
    fn new(model: &dyn Model) -> Alone {
        let weights = crate::models::all_parameters(model);
        Alone { trained: weights.into_iter().filter(Parameter::is_trained).collect() }
    }
}

impl Parallel for Alone {
    fn trained(&self) -> &[Parameter] {
        &self.trained
    }

    fn begin(&self, _gpu: &Gpu, _tokens: u64) {}

    fn enter(&self, _gpu: &Gpu, _layer: usize, x: &Tensor) -> Tensor {
        x.clone()
    }

    fn leave(&self, _gpu: &Gpu, _layer: usize, output: Tensor) -> Tensor {
        output
    }

    fn end(&self, _gpu: &Gpu, loss: Tensor) -> Tensor {
        loss
    }

    fn finish(&self, _gpu: &Gpu) {}

    fn clip(&self, gpu: &Gpu, name: Name) {
        clip_grad_norm(gpu, &self.trained, false, name);
    }
}
