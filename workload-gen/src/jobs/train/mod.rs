//! Training of a language model: batches, steps and what comes between them.

mod build;
mod fetch;
mod fsdp;
mod megatron;
mod norm;
mod pace;
mod parallel;
mod plan;
mod replicas;
mod step;
mod zero;
mod zero3;

use super::{COMMON, Generator, Job};
use crate::lengths::{BatchShape, Batches, Rng, Shaping};
use crate::spec::Values;
use crate::tensor::{Gpu, Tensor};
pub(super) use plan::shape;
use plan::{Empties, Leak, Plan};
use step::Trainer;

pub(super) const GENERATOR: Generator = Generator {
    name: "train",
    about: "training of a language model, as PyTorch and transformers run it",
    version: 1,
    params: &[plan::PARAMS, megatron::PARAMS, COMMON],
    build,
};

fn build(values: &Values) -> Result<Box<dyn Job>, String> {
    Ok(Box::new(Plan::new(values)?))
}

/// Purposes that random numbers are drawn for.
const TRAINING: u64 = 1;
const EVALUATION: u64 = 2;
const ROUTING: u64 = 3;

impl Job for Plan {
    fn run(&self, gpu: &Gpu) {
        let rng = Rng::new(self.seed);
        let batches = Batches::new(&self.lengths, self.shaping, self.batch, self.steps, rng.fork(TRAINING));
        if let Some(layout) = &self.layout {
            return megatron::run(gpu, self, layout, batches, &rng);
        }
        let mut trainer = Trainer::new(gpu, self);
        let rounds = self.steps.checked_div(self.epoch).unwrap_or(1).max(1);
        let shaping = if self.shaping == Shaping::Alike { Shaping::Alike } else { Shaping::Pad };
        let evals = self.evals.saturating_mul(rounds);
        let mut evaluated = Batches::new(&self.eval_lengths, shaping, self.eval_batch, evals, rng.fork(EVALUATION));
        let mut buffer = None;
        let mut kept = Kept::default();
        for (number, shape) in (0..).zip(batches) {
            if gpu.is_stopped() {
                break;
            }
            gpu.mark(format!("iteration {number}"));
            let loss = trainer.batch(gpu, self.cut(shape), number, &mut buffer);
            if self.leak == Leak::Loss {
                kept.losses.push(loss.detach());
            }
            drop(loss);
            if self.empties == Empties::Step {
                gpu.empty_cache();
            }
            if self.save > 0 && (number + 1) % (self.save * self.accumulate) == 0 {
                trainer.save(gpu);
            }
            let is_end = (self.epoch > 0 && (number + 1) % self.epoch == 0) || number + 1 == self.steps;
            if is_end {
                // The function that trains an epoch returns, and its names with it.
                trainer.forget();
                self.after_epoch(gpu, &mut trainer, &mut evaluated, &mut kept);
            }
        }
        gpu.exit();
    }
}

/// What is kept by mistake, and what a name still stands for.
#[derive(Default)]
struct Kept {
    losses: Vec<Tensor>,
    input: Option<Tensor>,
}

impl Plan {
    fn cut(&self, shape: BatchShape) -> BatchShape {
        BatchShape { columns: shape.columns.min(self.shape.positions), ..shape }
    }

    fn after_epoch(&self, gpu: &Gpu, trainer: &mut Trainer<'_>, batches: &mut Batches, kept: &mut Kept) {
        if self.empties == Empties::Phase {
            gpu.empty_cache();
        }
        for (number, shape) in (0..self.evals).zip(batches) {
            if gpu.is_stopped() {
                return;
            }
            gpu.mark(format!("evaluation {number}"));
            let loss = trainer.evaluate(gpu, self.cut(shape), &mut kept.input);
            if self.leak == Leak::Graph {
                kept.losses.push(loss);
            }
        }
        if self.empties == Empties::Phase && self.evals > 0 {
            gpu.empty_cache();
        }
    }
}
