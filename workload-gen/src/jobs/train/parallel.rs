//! How a model is shared between ranks, as the training step sees it: what happens around the parts of a forward and backward pass, and
//! how the weights are updated.

use super::fsdp::Fsdp;
use super::plan::{Plan, Sharing};
use super::replicas::Replicas;
use super::zero::Zero;
use super::zero3::Zero3;
use crate::models::{Model, all_parameters};
use crate::ops::{AdamW, Modules, clip_grad_norm, zero_grad};
use crate::tensor::{Gpu, Name, Parameter, Tensor};
use std::cell::RefCell;
use std::rc::Rc;

/// A way to share a model.
pub(super) trait Parallel {
    /// The forward pass of so many tokens begins.
    fn begin(&self, _gpu: &Gpu, _tokens: u64) {}

    /// What is to do around each module that owns weights.
    fn modules(&self) -> Option<Rc<dyn Modules>> {
        None
    }

    /// A layer is about to run on `x`. Returns what it runs on.
    fn enter(&self, _gpu: &Gpu, _layer: usize, x: &Tensor) -> Tensor {
        x.clone()
    }

    /// A layer has run.
    fn leave(&self, _gpu: &Gpu, _layer: usize, output: Tensor) -> Tensor {
        output
    }

    /// The model has run.
    fn end(&self, _gpu: &Gpu, loss: Tensor) -> Tensor {
        loss
    }

    /// A backward pass is about to begin. After the last of several whose gradients are added up, there is a step.
    fn before_backward(&self, _is_last: bool) {}

    /// The backward pass has walked the graph.
    fn finish(&self, _gpu: &Gpu) {}

    /// Updates the weights, and lets go of the gradients.
    fn step(&self, gpu: &Gpu, is_clipped: bool);
}

/// Shares `model` as the plan says.
pub(super) fn share(gpu: &Gpu, plan: &Plan, model: &dyn Model) -> Box<dyn Parallel> {
    match plan.sharing {
        Sharing::Alone => Box::new(Update::new(gpu, trained(model), false)),
        Sharing::Replicas => Box::new(Replicas::new(gpu, model, plan.ranks)),
        Sharing::States | Sharing::Gradients => Box::new(Zero::new(gpu, plan, model)),
        Sharing::Weights => Box::new(Zero3::new(gpu, plan, model)),
        Sharing::Fsdp => Box::new(Fsdp::new(gpu, plan, model)),
    }
}

/// The weights of a model that are trained.
pub(super) fn trained(model: &dyn Model) -> Vec<Parameter> {
    all_parameters(model).into_iter().filter(Parameter::is_trained).collect()
}

/// AdamW on weights that are there, which is all that a model needs that nobody shares.
pub(super) struct Update {
    trained: Vec<Parameter>,
    are_shards: bool,
    optimizer: RefCell<AdamW>,
    clip: Name,
}

impl Update {
    pub(super) fn new(gpu: &Gpu, trained: Vec<Parameter>, are_shards: bool) -> Update {
        let optimizer = RefCell::new(AdamW::new(gpu, trained.len()));
        Update { trained, are_shards, optimizer, clip: gpu.name("clip_grad_norm") }
    }
}

impl Parallel for Update {
    fn step(&self, gpu: &Gpu, is_clipped: bool) {
        if is_clipped {
            clip_grad_norm(gpu, &self.trained, self.are_shards, self.clip);
        }
        self.optimizer.borrow_mut().step(gpu, &self.trained);
        zero_grad(&self.trained);
    }
}
