//! What happens between two steps.

use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};

/// `torch.optim.AdamW` with its default, the implementation over lists of tensors.
pub struct AdamW {
    states: Vec<Option<(Tensor, Tensor)>>,
    /// Whether one kernel does it all, without temporaries.
    is_fused: bool,
    name: Name,
}

impl AdamW {
    /// An optimizer without states: they are made at the first step.
    pub fn new(gpu: &Gpu, parameters: usize) -> AdamW {
        let mut states = Vec::new();
        states.resize_with(parameters, || None);
        AdamW { states, is_fused: false, name: gpu.name("adamw") }
    }

    /// The same as a kernel that needs no memory of its own, such as DeepSpeed's.
    pub fn fused(gpu: &Gpu, parameters: usize) -> AdamW {
        AdamW { is_fused: true, ..AdamW::new(gpu, parameters) }
    }

    /// A step over the parameters that have a gradient. The square roots of all second moments live at the same time.
    pub fn step(&mut self, gpu: &Gpu, parameters: &[Parameter]) {
        let like = |parameter: &Parameter, role| {
            let tensor = parameter.tensor();
            gpu.like(&tensor, role, self.name)
        };
        for (parameter, state) in parameters.iter().zip(&mut self.states) {
            if state.is_none() && parameter.grad().is_some() {
                let first = like(parameter, Role::Optimizer);
                *state = Some((first, like(parameter, Role::Optimizer)));
            }
        }
        if self.is_fused {
            return;
        }
        let updated = parameters.iter().filter(|parameter| parameter.grad().is_some());
        release_list(updated.map(|parameter| like(parameter, Role::Temporary)).collect());
    }
}

/// `torch.optim.SGD` with momentum, the implementation over lists of tensors.
pub struct Sgd {
    momenta: Vec<Option<Tensor>>,
    has_decay: bool,
    name: Name,
}

impl Sgd {
    /// An optimizer without momenta: they are made at the first step.
    pub fn new(gpu: &Gpu, parameters: usize, has_decay: bool) -> Sgd {
        let mut momenta = Vec::new();
        momenta.resize_with(parameters, || None);
        Sgd { momenta, has_decay, name: gpu.name("sgd") }
    }

    /// A step over the parameters that have a gradient. Decay makes new gradients, all at the same time; the first of them are copied
    /// to be the momenta.
    pub fn step(&mut self, gpu: &Gpu, parameters: &[Parameter]) {
        let updated = || parameters.iter().enumerate().filter_map(|(at, parameter)| Some((at, parameter.grad()?)));
        let decayed = updated().filter(|_| self.has_decay).map(|(_, grad)| gpu.like(&grad, Role::Temporary, self.name));
        let decayed = decayed.collect();
        for (at, grad) in updated() {
            if self.momenta[at].is_none() {
                self.momenta[at] = Some(gpu.like(&grad, Role::Optimizer, self.name));
            }
        }
        release_list(decayed);
    }
}

/// `zero_grad(set_to_none=True)`.
pub fn zero_grad(parameters: &[Parameter]) {
    for parameter in parameters {
        drop(parameter.replace_grad(None));
    }
}

/// Elements that a block of a kernel over lists of tensors works on (`kChunkSize` of `MultiTensorApply.cuh`).
const CHUNK: u64 = 65_536;

/// `torch.nn.utils.clip_grad_norm_`: a norm for each gradient, then theirs, then a factor for all. Of the norms of shards each rank has a
/// part: their squares are added up over the ranks first.
pub fn clip_grad_norm(gpu: &Gpu, parameters: &[Parameter], are_shards: bool, name: Name) {
    let scalar = || gpu.tensor(1, Dtype::F32, Role::Temporary, name);
    let grads: Vec<Tensor> = parameters.iter().filter_map(Parameter::grad).collect();
    let chunks = grads.iter().map(|grad| grad.elements().div_ceil(CHUNK)).max().unwrap_or(0);
    let partial = gpu.tensor(grads.len() as u64 * chunks, Dtype::F32, Role::Temporary, name);
    let norms: Vec<Tensor> = grads.iter().map(|_| scalar()).collect();
    drop(partial);
    let stacked = gpu.tensor(norms.len() as u64, Dtype::F32, Role::Temporary, name);
    let roots = are_shards.then(|| {
        let squares = gpu.like(&stacked, Role::Temporary, name);
        let sums = gpu.like(&stacked, Role::Communication, name);
        let roots = gpu.like(&stacked, Role::Temporary, name);
        drop((squares, sums));
        roots
    });
    let total = scalar();
    drop((roots, stacked));
    release_list(norms);
    let factor = {
        let sum = scalar();
        let inverse = scalar();
        let factor = scalar();
        drop((inverse, sum));
        factor
    };
    let clamped = scalar();
    drop((factor, clamped, total));
}

/// A Python list lets go of its items from the last to the first.
pub fn release_list(mut list: Vec<Tensor>) {
    while list.pop().is_some() {}
}
