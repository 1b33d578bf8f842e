//! A stage of a pipeline: its parts of the model, and what it sends and receives.

use super::super::plan::Plan;
use super::layout::Layout;
use super::optimizer::Optimizer;
use crate::lengths::Rng;
use crate::models::megatron::{Chunk, Gathered, MegatronConfig, Micro, Place};
use crate::models::routing::Loads;
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor, backward};
use std::rc::Rc;

/// A stage.
pub(super) struct Stage {
    pub(super) stages: u64,
    pub(super) stage: u64,
    pub(super) chunks: Vec<Chunk>,
    config: MegatronConfig,
    optimizer: Optimizer,
    names: Names,
}

struct Names {
    received: Name,
    received_gradient: Name,
    released: Name,
    loss: Name,
    norms: Name,
}

impl Stage {
    /// Puts the stage's parts of the model on the device.
    pub(super) fn new(gpu: &Gpu, plan: &Plan, layout: &Layout, rng: &Rng) -> Stage {
        let config = MegatronConfig {
            shape: plan.shape,
            tensor_parallel: layout.tensor_parallel,
            is_sequence_parallel: layout.is_sequence_parallel && layout.tensor_parallel > 1,
            expert_parallel: layout.expert_parallel,
            is_fused: layout.is_fused,
            has_dropout: plan.has_dropout && plan.shape.has_dropout(),
            recompute: layout.recompute,
        };
        let (gathered, layers) = (Rc::new(Gathered::default()), plan.shape.layers / (layout.stages * layout.chunks));
        let (experts, per_token) = plan.shape.experts.map_or((0, 0), |experts| (experts.count, experts.per_token));
        let loads = Rc::new(Loads::new(rng.clone(), experts, per_token, plan.skew, plan.drift));
        let place = |chunk: u64| Place { first: (chunk * layout.stages + layout.stage) * layers, layers };
        let chunks: Vec<Chunk> =
            (0..layout.chunks).map(|chunk| Chunk::new(gpu, config, place(chunk), &gathered, &loads)).collect();
        let optimizer = Optimizer::new(gpu, &chunks);
        let names = Names {
            received: gpu.name("pipeline.input"),
            received_gradient: gpu.name("pipeline.output_gradient"),
            released: gpu.name("pipeline.released"),
            loss: gpu.name("loss"),
            norms: gpu.name("layernorm_gradients"),
        };
        Stage { stages: layout.stages, stage: layout.stage, chunks, config, optimizer, names }
    }

    /// A step over some micro-batches.
    pub(super) fn step(&mut self, gpu: &Gpu, micros: &[Micro], is_clipped: bool) {
        let reports = self.run(gpu, micros);
        if self.config.is_sequence_parallel {
            // The norms' gradients are put into one tensor, added up and copied back.
            for chunk in &self.chunks {
                let elements = chunk.replicated_elements();
                gpu.scratch(elements * Dtype::F32.bytes(), Role::Communication, self.names.norms);
            }
        }
        self.optimizer.step(gpu, is_clipped);
        drop(reports);
    }

    /// Memory for what the stage before sends.
    pub(super) fn receive(&self, gpu: &Gpu, micro: Micro) -> Parameter {
        let elements = self.config.hidden_elements(micro);
        let tensor = gpu.tensor(elements, Dtype::Bf16, Role::Communication, self.names.received);
        Parameter::trained(gpu, tensor, self.names.received)
    }

    /// Memory for the gradient that the stage behind sends.
    pub(super) fn receive_gradient(&self, gpu: &Gpu, micro: Micro) -> Tensor {
        let elements = self.config.hidden_elements(micro);
        gpu.tensor(elements, Dtype::Bf16, Role::Communication, self.names.received_gradient)
    }

    /// An output whose graph stays, with the memory of one element.
    pub(super) fn release(&self, gpu: &Gpu, output: &Tensor) -> Tensor {
        output.with_data(&gpu.tensor(1, output.dtype(), Role::Temporary, self.names.released))
    }

    /// The backward pass of a micro-batch. Returns the gradient of its input.
    pub(super) fn backward(
        &self,
        gpu: &Gpu,
        input: Option<&Parameter>,
        output: &Tensor,
        gradient: Option<&Tensor>,
    ) -> Option<Tensor> {
        match gradient {
            Some(gradient) => backward(gpu, output, gradient.clone()),
            None => {
                let one = gpu.like(output, Role::Gradient, self.names.loss);
                backward(gpu, output, one.clone());
            }
        }
        input.and_then(Parameter::grad)
    }
}
