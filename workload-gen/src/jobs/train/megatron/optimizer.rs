//! What happens after the backward passes of a step: gradients in one buffer, weights in 32 bits, and their update.

use crate::models::megatron::Chunk;
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};

/// `Float16OptimizerWithFloat16Params` around a fused Adam, and the buffers of the data-parallel wrapper.
pub(super) struct Optimizer {
    /// The gradients in 32 bits of each part of the model, which live as long as it.
    _gradients: Vec<Tensor>,
    masters: Vec<Tensor>,
    moments: Vec<[Tensor; 2]>,
    name: Name,
    norm: Name,
}

impl Optimizer {
    /// Wraps the parts of a model. A weight's own gradient dies as soon as it was added to the buffer.
    pub(super) fn new(gpu: &Gpu, chunks: &[Chunk]) -> Optimizer {
        let buffer = gpu.name("main_grad");
        let elements = |chunk: &Chunk| chunk.weights().iter().map(Parameter::elements).sum();
        let gradients =
            chunks.iter().map(|chunk| gpu.tensor(elements(chunk), Dtype::F32, Role::Gradient, buffer)).collect();
        let name = gpu.name("adam");
        let weights = chunks.iter().flat_map(Chunk::weights);
        let masters = weights
            .map(|weight| {
                weight.on_gradient(|_, weight| drop(weight.replace_grad(None)));
                let copy = gpu.like(&weight.tensor(), Role::Temporary, name);
                gpu.tensor(copy.elements(), Dtype::F32, Role::Optimizer, name)
            })
            .collect();
        Optimizer { _gradients: gradients, masters, moments: Vec::new(), name, norm: gpu.name("grad_norm") }
    }

    /// A step: the norm of the gradients if they are clipped, and the update, which is in place but for its states at the first time.
    pub(super) fn step(&mut self, gpu: &Gpu, is_clipped: bool) {
        if is_clipped {
            self.clip(gpu);
        }
        if self.moments.is_empty() {
            let (masters, name) = (&self.masters, self.name);
            let moments = |master: &Tensor| [0, 1].map(|_: u8| gpu.like(master, Role::Optimizer, name));
            self.moments = masters.iter().map(moments).collect();
        }
    }

    /// `clip_grad_by_total_norm_fp32`: the blocks of a kernel over all gradients leave a part each.
    fn clip(&self, gpu: &Gpu) {
        const PARTS: u64 = 320;
        let scalar = |dtype| gpu.tensor(1, dtype, Role::Temporary, self.norm);
        let flag = scalar(Dtype::I32);
        let parts = gpu.tensor(PARTS, Dtype::F32, Role::Temporary, self.norm);
        let norm = scalar(Dtype::F32);
        drop(parts);
        let square = scalar(Dtype::F32);
        drop((norm, flag));
        // The host reads it.
        gpu.sync();
        drop(square);
    }
}
