//! Training that is spread over ranks as Megatron-LM spreads it: stages of a pipeline, parts of each layer, experts. One rank's memory is
//! what is generated.

mod layout;
mod optimizer;
mod schedule;
mod stage;

pub(super) use layout::{Layout, PARAMS};

use super::ROUTING;
use super::plan::{Empties, Plan};
use crate::lengths::{BatchShape, Batches, Rng};
use crate::models::megatron::Micro;
use crate::tensor::Gpu;
use stage::Stage;

/// Runs a rank. `batches` are micro-batches.
pub(super) fn run(gpu: &Gpu, plan: &Plan, layout: &Layout, batches: Batches, rng: &Rng) {
    let mut stage = Stage::new(gpu, plan, layout, &rng.fork(ROUTING));
    let mut micros = (0..).zip(batches).map(|(number, shape)| layout.micro(plan, number, shape));
    for iteration in 0.. {
        let mut of_step: Vec<Micro> = micros.by_ref().take(plan.accumulate as usize).collect();
        if layout.chunks > 1 {
            // Interleaved stages take micro-batches in groups, one for each stage.
            of_step.truncate(of_step.len() - of_step.len() % layout.stages as usize);
        }
        if of_step.is_empty() || gpu.is_stopped() {
            break;
        }
        gpu.mark(format!("iteration {iteration}"));
        stage.step(gpu, &of_step, plan.is_clipped);
        if plan.empties == Empties::Step {
            gpu.empty_cache();
        }
    }
    gpu.exit();
}

impl Layout {
    /// A micro-batch as the stage sees it: what is split along the sequence goes evenly into its parts.
    fn micro(&self, plan: &Plan, number: u64, shape: BatchShape) -> Micro {
        let parts = if self.is_sequence_parallel { self.tensor_parallel } else { 1 };
        Micro { number, rows: shape.rows, columns: plan.cut(shape).columns.next_multiple_of(parts) }
    }
}
