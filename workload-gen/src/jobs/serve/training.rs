//! The training phase between two phases of serving: what a step of full recomputation allocates, without a graph.
//!
//! Weights are there whole; gradients and the optimizer's state are this device's part of them. A micro-batch keeps the input of each
//! layer, and runs the layer again when the backward pass comes to it.

use super::model::{Model, Names, Shape};
use crate::spec::Values;
use crate::tensor::{Dtype, Gpu, Name, Role, Tensor};

/// A training phase.
#[derive(Clone, Debug)]
pub(super) struct Training {
    /// Decode steps between two phases.
    pub every: u64,
    batches: u64,
    tokens: u64,
    shards: u64,
}

impl Training {
    /// The phase, or `None` if the server never sleeps.
    pub fn new(values: &Values) -> Result<Option<Training>, String> {
        let [every, batches, tokens, shards] =
            ["sleep-every", "train-batches", "train-tokens", "train-shards"].map(|key| values.int(key));
        let given = ["train-batches", "train-tokens", "train-shards"].into_iter().find(|key| values.is_changed(key));
        match (every, given) {
            (0, Some(key)) => Err(format!("{key} says how training goes, and with sleep-every=0 there is none")),
            (0, None) => Ok(None),
            _ => Ok(Some(Training { every, batches, tokens, shards })),
        }
    }

    /// Runs it. Everything is freed in the end.
    pub fn run(&self, gpu: &Gpu, shape: &Shape, names: &Names) {
        let model = Model::load(gpu, shape, names);
        let mut grads: Vec<Vec<Tensor>> = (0..shape.layers).map(|_| Vec::new()).collect();
        for _ in 0..self.batches {
            self.micro_batch(gpu, shape, names, &model, &mut grads);
        }
        // First moment, second moment and the weights in 32 bits.
        let mut state = Vec::new();
        for (layer, grads) in grads.iter().enumerate() {
            for (number, grad) in grads.iter().enumerate() {
                let name = names.matrix(layer, number);
                state.push([(); 3].map(|()| gpu.tensor(grad.elements(), Dtype::F32, Role::Optimizer, name)));
                gpu.scratch(grad.elements() * Dtype::F32.bytes(), Role::Temporary, name);
            }
        }
    }

    fn micro_batch(&self, gpu: &Gpu, shape: &Shape, names: &Names, model: &Model, grads: &mut [Vec<Tensor>]) {
        let tokens = self.tokens;
        let tensor = |elements, role, name: Name| gpu.tensor(tokens * elements, shape.dtype, role, name);
        let mut inputs = Vec::new();
        let mut keep = |layer| inputs.push(tensor(shape.hidden, Role::Activation, names.matrix(layer, 0)));
        let hidden = model.forward(gpu, shape, names, tokens, &mut keep);
        model.loss(gpu, shape, names, &hidden);
        drop(hidden);
        let mut grad = tensor(shape.hidden, Role::Gradient, names.input);
        for layer in (0..grads.len()).rev() {
            let outputs: Vec<Tensor> = (0..4)
                .map(|number| tensor(shape.matrices()[number].1, Role::Activation, names.matrix(layer, number)))
                .collect();
            for (number, output) in (0..4).zip(outputs).rev() {
                let ((rows, columns), name) = (shape.matrices()[number], names.matrix(layer, number));
                let whole = gpu.tensor(rows * columns, shape.dtype, Role::Gradient, name);
                let next = tensor(rows, Role::Gradient, name);
                // The first micro-batch's part stays, and later ones are added to it.
                let part = (rows * columns).div_ceil(self.shards);
                if grads[layer].len() < 4 {
                    grads[layer].push(gpu.tensor(part, Dtype::F32, Role::Gradient, name));
                } else {
                    gpu.scratch(part * Dtype::F32.bytes(), Role::Communication, name);
                }
                drop((whole, output));
                grad = next;
            }
            inputs.pop();
        }
        drop(grad);
    }
}
