//! Operations on images: normalisation, pooling, enlarging, and putting channels together.

use super::cast::Cx;
use super::conv::Images;
use super::reduce::Reduction;
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};

/// `torch.nn.GroupNorm`.
#[derive(Clone)]
pub struct GroupNorm {
    /// The factor of each channel.
    pub weight: Parameter,
    /// What is added to each channel.
    pub bias: Parameter,
    /// Groups of channels.
    pub groups: u64,
    /// The place in the model.
    pub name: Name,
}

impl GroupNorm {
    /// The normalised images, in 32 bits under autocast. Mean and deviation of each group are kept for the backward pass.
    pub fn forward(&self, cx: &Cx, x: &Tensor, images: Images) -> Tensor {
        let (gpu, name) = (&cx.gpu, self.name);
        let x = &cx.float(x, name);
        let (weight, bias) = (self.weight.tensor(), self.bias.tensor());
        let tape = gpu.tape(name, &[x, &weight, &bias]);
        let needs = [tape.needs(0), tape.needs(1), tape.needs(2)];
        let saved = (tape.save(x), tape.save(&weight));
        let (elements, dtype, channels) = (x.elements(), x.dtype(), weight.elements());
        let groups = images.count * self.groups;
        let of_channels = move |gpu: &Gpu| gpu.tensor(images.count * channels, Dtype::F32, Role::Temporary, name);
        let of_groups = move |gpu: &Gpu, role| gpu.tensor(groups, Dtype::F32, role, name);
        let out = gpu.like(x, Role::Activation, name);
        let mean = of_groups(gpu, Role::Activation);
        let deviation = of_groups(gpu, Role::Activation);
        let statistics = (tape.save(&mean), tape.save(&deviation));
        let factor = of_channels(gpu);
        drop(of_channels(gpu));
        drop(factor);
        tape.record(out, move |gpu, _grad| {
            let _saved = (saved.0.unpack(gpu), saved.1.unpack(gpu));
            let _statistics = (statistics.0.unpack(gpu), statistics.1.unpack(gpu));
            let x = needs[0].then(|| gpu.tensor(elements, dtype, Role::Gradient, name));
            let weight = needs[1].then(|| gpu.tensor(channels, dtype, Role::Gradient, name));
            let bias = needs[2].then(|| gpu.tensor(channels, dtype, Role::Gradient, name));
            let (products, sums) = (of_channels(gpu), of_channels(gpu));
            let second = of_groups(gpu, Role::Temporary);
            let third = of_groups(gpu, Role::Temporary);
            let first = of_channels(gpu);
            drop(third);
            drop(second);
            drop(first);
            drop(sums);
            drop(products);
            vec![x, weight, bias]
        })
    }
}

/// `torch.nn.BatchNorm2d` in training, by cuDNN.
#[derive(Clone)]
pub struct BatchNorm {
    /// The factor of each channel.
    pub weight: Parameter,
    /// What is added to each channel.
    pub bias: Parameter,
    /// The place in the model.
    pub name: Name,
    /// Running means and variances, and the number of batches that they are of.
    pub running: [Tensor; 3],
}

impl BatchNorm {
    /// The normalised images. The batch's own statistics are kept for the backward pass.
    pub fn forward(&self, gpu: &Gpu, x: &Tensor) -> Tensor {
        let name = self.name;
        let (weight, bias) = (self.weight.tensor(), self.bias.tensor());
        let tape = gpu.tape(name, &[x, &weight, &bias]);
        let needs = [tape.needs(0), tape.needs(1), tape.needs(2)];
        let saved = (tape.save(x), tape.save(&weight));
        let (elements, dtype, channels) = (x.elements(), x.dtype(), weight.elements());
        let out = gpu.like(x, Role::Activation, name);
        let mean = gpu.tensor(channels, Dtype::F32, Role::Activation, name);
        let deviation = gpu.tensor(channels, Dtype::F32, Role::Activation, name);
        let statistics = (tape.save(&mean), tape.save(&deviation));
        tape.record(out, move |gpu, _grad| {
            let _saved = (saved.0.unpack(gpu), saved.1.unpack(gpu));
            let _statistics = (statistics.0.unpack(gpu), statistics.1.unpack(gpu));
            let x = needs[0].then(|| gpu.tensor(elements, dtype, Role::Gradient, name));
            let weight = needs[1].then(|| gpu.tensor(channels, Dtype::F32, Role::Gradient, name));
            let bias = needs[2].then(|| gpu.tensor(channels, Dtype::F32, Role::Gradient, name));
            vec![x, weight, bias]
        })
    }
}

/// Means of squares of two by two pixels; the input is kept.
pub fn avg_pool(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let saved = tape.save(x);
    let (elements, dtype) = (x.elements(), x.dtype());
    let out = gpu.tensor(elements / 4, dtype, Role::Activation, name);
    tape.record(out, move |gpu, _grad| {
        let _x = saved.unpack(gpu);
        vec![Some(gpu.tensor(elements, dtype, Role::Gradient, name))]
    })
}

/// The greatest pixels of windows, `out` elements of them; the input is kept, and where they were found.
pub fn max_pool(gpu: &Gpu, x: &Tensor, out: u64, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let saved = tape.save(x);
    let (elements, dtype) = (x.elements(), x.dtype());
    let out = gpu.tensor(out, dtype, Role::Activation, name);
    let places = gpu.tensor(out.elements(), Dtype::I64, Role::Activation, name);
    let saved_places = tape.save(&places);
    tape.record(out, move |gpu, _grad| {
        let _saved = (saved.unpack(gpu), saved_places.unpack(gpu));
        vec![Some(gpu.tensor(elements, dtype, Role::Gradient, name))]
    })
}

/// Images of twice the height and width, in 32 bits under autocast. A gradient that is a part of another is copied first.
pub fn upsample(cx: &Cx, x: &Tensor, name: Name) -> Tensor {
    let gpu = &cx.gpu;
    let x = &cx.float(x, name);
    let tape = gpu.tape(name, &[x]);
    let (elements, dtype) = (x.elements(), x.dtype());
    let out = gpu.tensor(4 * elements, dtype, Role::Activation, name);
    tape.record(out, move |gpu, grad| {
        let x = gpu.tensor(elements, dtype, Role::Gradient, name);
        if grad.is_view() {
            gpu.scratch(grad.bytes(), Role::Temporary, name);
        }
        vec![Some(x)]
    })
}

/// The channels of both, in the wider of their types. Their gradients are parts of the whole's, in their own types.
pub fn concat(gpu: &Gpu, a: &Tensor, b: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[a, b]);
    let parts = [a, b].map(|part| (part.elements(), part.dtype()));
    let dtype = if a.dtype().bytes() >= b.dtype().bytes() { a.dtype() } else { b.dtype() };
    let out = gpu.tensor(a.elements() + b.elements(), dtype, Role::Activation, name);
    tape.record(out, move |gpu, grad| {
        let part = |(elements, dtype)| match grad.dtype() == dtype {
            true => grad.view(elements),
            false => gpu.tensor(elements, dtype, Role::Gradient, name),
        };
        parts.map(|shape| Some(part(shape))).into()
    })
}

/// `torch.nn.functional.mse_loss`, in 32 bits under autocast. The loss has the memory of all differences: PyTorch makes it as large as
/// them and then makes it smaller, which gives nothing back.
pub fn mse_loss(cx: &Cx, x: &Tensor, target: &Tensor, name: Name) -> Tensor {
    let gpu = &cx.gpu;
    let x = &cx.float(x, name);
    let tape = gpu.tape(name, &[x]);
    let saved = (tape.save(x), tape.save(target));
    let (elements, dtype) = (x.elements(), x.dtype());
    let loss = gpu.like(x, Role::Activation, name).view(1);
    let squares = gpu.like(x, Role::Temporary, name);
    Reduction::whole(elements).run(gpu, name);
    drop(squares);
    tape.record(loss, move |gpu, _grad| {
        let _saved = (saved.0.unpack(gpu), saved.1.unpack(gpu));
        vec![Some(gpu.tensor(elements, dtype, Role::Gradient, name))]
    })
}
