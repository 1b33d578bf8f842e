//! A batch: forward, backward, and the step if it is due.

use super::build;
use super::parallel::{Parallel, share};
use super::plan::{Leak, Plan, Sharing};
use crate::lengths::BatchShape;
use crate::models::{Model, Tokens, all_parameters, run_layer};
use crate::ops::{Checkpoint, Cx, release_list, scale};
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor, backward};
use std::rc::Rc;

/// A model in training, and what the training loop's names stand for.
pub(super) struct Trainer<'p> {
    plan: &'p Plan,
    model: Rc<dyn Model>,
    weights: Vec<Parameter>,
    parallel: Box<dyn Parallel>,
    input: Option<Tensor>,
    loss: Option<Tensor>,
    names: Names,
}

struct Names {
    input: Name,
    loss: Name,
    save: Name,
    recomputed: Name,
}

impl<'p> Trainer<'p> {
    /// Puts the model on the device.
    pub(super) fn new(gpu: &Gpu, plan: &'p Plan) -> Trainer<'p> {
        // Weights that ranks share from the start are made one by one.
        let is_apart = plan.sharing == Sharing::Weights;
        let model = if is_apart { gpu.without_memory(|| build::model(gpu, plan)) } else { build::model(gpu, plan) };
        let weights = all_parameters(&*model);
        let parallel = share(gpu, plan, &*model);
        let names = Names {
            input: gpu.name("batch"),
            loss: gpu.name("loss"),
            save: gpu.name("checkpoint"),
            recomputed: gpu.name("recomputed"),
        };
        Trainer { plan, model, weights, parallel, input: None, loss: None, names }
    }

    /// Trains on a batch and returns its loss.
    pub(super) fn batch(&mut self, gpu: &Gpu, shape: BatchShape, number: u64, buffer: &mut Option<Tensor>) -> Tensor {
        let (rows, columns) = (shape.rows, shape.columns);
        let ids = match shape.sliced_from {
            Some(elements) => {
                let make = || gpu.tensor(elements, Dtype::I64, Role::Input, self.names.input);
                buffer.get_or_insert_with(make).view(rows * columns)
            }
            None => gpu.tensor(rows * columns, Dtype::I64, Role::Input, self.names.input),
        };
        // A name that is set again lets go of what it stood for when the new value is there.
        self.input = Some(ids.clone());
        let tokens = Tokens { ids, rows, columns };
        let loss = {
            let cx = self.cx(gpu, self.plan.autocast).with_dropout(self.plan.has_dropout);
            self.forward(&cx, &tokens)
        };
        self.loss = Some(loss.clone());
        let is_last = (number + 1).is_multiple_of(self.plan.accumulate);
        self.parallel.before_backward(is_last);
        // DeepSpeed's engine divides by the number of batches in any case, and multiplies by the loss's scale.
        let is_deepspeed = self.plan.sharing.is_deepspeed();
        let factors = if is_deepspeed { 2 } else { usize::from(self.plan.accumulate > 1) };
        let mut losses = vec![loss.clone()];
        for factor in 0..factors {
            losses.push(scale(gpu, &losses[factor], self.names.loss));
        }
        self.backward(gpu, &losses[factors], is_deepspeed);
        release_list(losses);
        if is_last {
            self.parallel.step(gpu, self.plan.is_clipped);
        }
        // The loss is read.
        gpu.sync();
        loss
    }

    /// Walks the graph of a loss. What ends a pass runs within it, as a hook, or after it.
    fn backward(&self, gpu: &Gpu, loss: &Tensor, ends_after: bool) {
        let one = gpu.like(loss, Role::Gradient, self.names.loss);
        backward(gpu, loss, one.clone());
        let kept = (!ends_after).then_some(one);
        self.parallel.finish(gpu);
        drop(kept);
    }

    fn cx(&self, gpu: &Gpu, autocast: Option<Dtype>) -> Cx {
        autocast.map_or_else(|| Cx::plain(gpu), |dtype| Cx::autocast(gpu, dtype))
    }

    fn forward(&self, cx: &Cx, tokens: &Tokens) -> Tensor {
        let (gpu, parallel) = (&cx.gpu, &*self.parallel);
        let cx = &cx.clone().with_modules(parallel.modules());
        // The newer form does not get along with the functions that DeepSpeed's third stage puts around products.
        let form = if self.plan.sharing == Sharing::Weights { Checkpoint::Reentrant } else { Checkpoint::Nested };
        let recomputed = (self.plan.is_recomputed && gpu.is_recording()).then_some((form, self.names.recomputed));
        parallel.begin(gpu, tokens.count());
        // What is called is the model with its head, or with adapters peft's two modules, which call its function themselves.
        let around = if self.plan.lora > 0 { 2 } else { 1 };
        cx.enter(around, &tokens.ids);
        let mut flow = self.model.embed(cx, tokens);
        for layer in 0..self.model.layers() {
            let output = {
                let x = parallel.enter(gpu, layer, &flow.hidden);
                run_layer(&self.model, cx, layer, &x, &flow, recomputed)
            };
            flow.hidden = parallel.leave(gpu, layer, output);
        }
        parallel.end(gpu, cx.leave(around, self.model.loss(cx, flow, tokens)))
    }

    /// Evaluates a batch and returns its loss. `input` is the loop's name for the batch.
    pub(super) fn evaluate(&self, gpu: &Gpu, shape: BatchShape, input: &mut Option<Tensor>) -> Tensor {
        let ids = gpu.tensor(shape.rows * shape.columns, Dtype::I64, Role::Input, self.names.input);
        *input = Some(ids.clone());
        let tokens = Tokens { ids, rows: shape.rows, columns: shape.columns };
        let cx = self.cx(gpu, self.plan.eval_autocast).with_dropout(self.plan.eval_dropout);
        let loss = match self.plan.leak {
            Leak::Graph => self.forward(&cx, &tokens),
            Leak::Nothing | Leak::Loss => gpu.no_grad(|| self.forward(&cx, &tokens)),
        };
        gpu.sync();
        loss
    }

    /// Saves a checkpoint: each weight is copied in 16 bits, and the copy goes to the host.
    pub(super) fn save(&self, gpu: &Gpu) {
        for weight in &self.weights {
            gpu.scratch(weight.elements() * Dtype::Bf16.bytes(), Role::Temporary, self.names.save);
        }
        gpu.sync();
    }

    /// The loop's names stand for nothing any more.
    pub(super) fn forget(&mut self) {
        (self.input, self.loss) = (None, None);
    }
}
