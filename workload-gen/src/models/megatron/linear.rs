//! Products whose weights are split among ranks.

use super::{Maker, MegatronConfig};
use crate::ops::{add, column_sum, product};
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};
use std::cell::RefCell;
use std::rc::Rc;

/// Memory that a device has once for one purpose, and that grows to the largest request (`GlobalMemoryBuffer`): here what products gather
/// their inputs in.
#[derive(Default)]
pub struct Gathered(RefCell<Option<Tensor>>);

impl Gathered {
    /// Sees to it that there is room. New memory is there before the old is gone.
    pub(super) fn reserve(&self, gpu: &Gpu, elements: u64, dtype: Dtype, name: Name) {
        let is_small = self.0.borrow().as_ref().is_none_or(|buffer| buffer.elements() < elements);
        if is_small {
            let buffer = gpu.tensor(elements, dtype, Role::Communication, name);
            let old = self.0.replace(Some(buffer));
            drop(old);
        }
    }
}

/// Which dimension of the weight is split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Split {
    /// Outputs: each rank has some of the columns. With sequence parallelism the input is gathered.
    Columns,
    /// Inputs: each rank has a summand of the output. With sequence parallelism the sum is scattered.
    Rows,
}

/// A layer without its bias: Megatron adds that later, together with something else.
pub(super) struct ParallelLinear {
    split: Split,
    weight: Parameter,
    bias: Option<Parameter>,
    inputs: u64,
    outputs: u64,
    /// Ranks that the sequence is split among.
    shards: u64,
    gathered: Rc<Gathered>,
    name: Name,
}

impl ParallelLinear {
    /// A layer of `inputs` × `outputs` in all, of which this rank has its share.
    pub(super) fn new(
        maker: &mut Maker<'_>,
        split: Split,
        [inputs, outputs]: [u64; 2],
        name: &str,
        gathered: &Rc<Gathered>,
    ) -> ParallelLinear {
        let MegatronConfig { tensor_parallel: ranks, .. } = maker.config;
        let (inputs, outputs) = match split {
            Split::Columns => (inputs, outputs / ranks),
            Split::Rows => (inputs / ranks, outputs),
        };
        let weight = maker.weight(inputs * outputs, &format!("{name}.weight"));
        let bias = maker.config.has_biases().then(|| maker.weight(outputs, &format!("{name}.bias")));
        ParallelLinear {
            split,
            weight,
            bias,
            inputs,
            outputs,
            shards: maker.config.sequence_shards(),
            gathered: gathered.clone(),
            name: maker.gpu.name(name),
        }
    }

    /// A layer whose weight is another's.
    pub(super) fn of(
        config: &MegatronConfig,
        weight: Parameter,
        name: Name,
        gathered: &Rc<Gathered>,
    ) -> ParallelLinear {
        ParallelLinear {
            split: Split::Columns,
            weight,
            bias: None,
            inputs: config.shape.hidden,
            outputs: config.vocab(),
            shards: config.sequence_shards(),
            gathered: gathered.clone(),
            name,
        }
    }

    /// The bias as an operation's input.
    pub(super) fn bias(&self) -> Option<Tensor> {
        self.bias.as_ref().map(Parameter::tensor)
    }

    pub(super) fn forward(&self, gpu: &Gpu, x: &Tensor) -> Tensor {
        match self.split {
            Split::Columns => self.multiply(gpu, x, self.shards),
            Split::Rows => self.scatter(gpu, self.multiply(gpu, x, 1)),
        }
    }

    /// The product with an input that `shards` ranks have a part of each. In the backward pass the input's gradient is scattered again.
    fn multiply(&self, gpu: &Gpu, x: &Tensor, shards: u64) -> Tensor {
        let (name, inputs, outputs, dtype) = (self.name, self.inputs, self.outputs, x.dtype());
        let weight = self.weight.tensor();
        let tape = gpu.tape(name, &[x, &weight]);
        let saved = (tape.save(x), tape.save(&weight));
        let rows = x.elements() / inputs;
        let whole = rows * shards;
        let gathered = (shards > 1).then(|| self.gathered.clone());
        if let Some(gathered) = &gathered {
            gathered.reserve(gpu, whole * inputs, dtype, name);
        }
        let out = gpu.tensor(whole * outputs, dtype, Role::Activation, name);
        product(gpu);
        tape.record(out, move |gpu, _grad| {
            let _saved = (saved.0.unpack(gpu), saved.1.unpack(gpu));
            if let Some(gathered) = &gathered {
                gathered.reserve(gpu, whole * inputs, dtype, name);
            }
            let x = gpu.tensor(whole * inputs, dtype, Role::Gradient, name);
            product(gpu);
            let part = gathered.is_some().then(|| gpu.tensor(rows * inputs, dtype, Role::Communication, name));
            let weight = gpu.tensor(inputs * outputs, dtype, Role::Gradient, name);
            vec![Some(part.unwrap_or(x)), Some(weight)]
        })
    }

    /// Adds up what the ranks have computed. In place, or each rank gets a part of the sum; its gradient is gathered.
    fn scatter(&self, gpu: &Gpu, x: Tensor) -> Tensor {
        if self.shards == 1 {
            return x;
        }
        let name = self.name;
        let tape = gpu.tape(name, &[&x]);
        let (elements, dtype) = (x.elements(), x.dtype());
        let out = gpu.tensor(elements / self.shards, dtype, Role::Communication, name);
        tape.record(out, move |gpu, _grad| vec![Some(gpu.tensor(elements, dtype, Role::Communication, name))])
    }
}

/// The product's output plus the bias, in a tensor of its own.
pub(super) fn add_bias(gpu: &Gpu, x: Tensor, bias: Option<Tensor>, name: Name) -> Tensor {
    match bias {
        Some(bias) => add(gpu, &x, &bias, name),
        None => x,
    }
}

/// `bias_dropout_add`: what goes beside a residual, in one kernel.
pub(super) fn add_to_residual(
    gpu: &Gpu,
    x: &Tensor,
    bias: Option<Tensor>,
    residual: &Tensor,
    has_dropout: bool,
    name: Name,
) -> Tensor {
    let mut inputs = vec![x, residual];
    inputs.extend(bias.as_ref());
    let tape = gpu.tape(name, &inputs);
    let mask = has_dropout.then(|| gpu.tensor(x.elements(), Dtype::U8, Role::Activation, name));
    let saved = mask.as_ref().map(|mask| tape.save(mask));
    let out = gpu.like(residual, Role::Activation, name);
    drop(mask);
    let width = bias.map(|bias| bias.elements());
    tape.record(out, move |gpu, grad| {
        let _mask = saved.and_then(|mask| mask.unpack(gpu));
        let x = if has_dropout { gpu.like(&grad, Role::Gradient, name) } else { grad.clone() };
        let sum = |width| column_sum(gpu, width, grad.elements() / width, grad.dtype(), Role::Gradient, name);
        let bias = width.map(sum);
        vec![Some(x), Some(grad), bias]
    })
}
