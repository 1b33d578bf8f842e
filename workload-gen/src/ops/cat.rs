//! Tensors taken apart and put together.

use super::elementwise::promoted;
use crate::tensor::{Dtype, Gpu, Name, Role, Tensor};

/// A matrix of three parts side by side, taken apart without a copy. The gradients are put together again.
pub fn split3(gpu: &Gpu, qkv: &Tensor, parts: [u64; 3], name: Name) -> [Tensor; 3] {
    let tape = gpu.tape(name, &[qkv]);
    let (elements, dtype) = (qkv.elements(), qkv.dtype());
    let views = parts.map(|part| qkv.detach().view(part));
    tape.record_all(views, move |gpu, grads| {
        let whole = gpu.tensor(elements, dtype, Role::Gradient, name);
        drop(grads);
        vec![Some(whole)]
    })
}

/// The same elements in another shape, without a copy. So is the gradient, which nobody adds to in place then.
pub fn reshape(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let elements = x.elements();
    tape.record(x.detach().view(elements), move |_, grad| vec![Some(grad.view(elements))])
}

/// A part of each row, without a copy. Its gradient is put into zeros of the whole.
pub fn slice(gpu: &Gpu, x: &Tensor, part: u64, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let (elements, dtype) = (x.elements(), x.dtype());
    tape.record(x.detach().view(part), move |gpu, _grad| vec![Some(gpu.tensor(elements, dtype, Role::Gradient, name))])
}

/// Two tensors side by side, in the larger of their types. The gradient of each is a part of what comes, cast if need be.
pub fn cat(gpu: &Gpu, [a, b]: [&Tensor; 2], name: Name) -> Tensor {
    let tape = gpu.tape(name, &[a, b]);
    let shapes = [a, b].map(|x| (x.elements(), x.dtype()));
    let dtype = promoted(a.dtype(), b.dtype());
    let out = gpu.tensor(a.elements() + b.elements(), dtype, Role::Activation, name);
    tape.record(out, move |gpu, grad| {
        let part = |(elements, dtype): (u64, Dtype)| match dtype == grad.dtype() {
            true => grad.view(elements),
            false => gpu.tensor(elements, dtype, Role::Gradient, name),
        };
        shapes.map(|shape| Some(part(shape))).into()
    })
}

/// A copy that lies as the input does seen head by head, such as keys that were turned put behind those of a cache that is empty, or the
/// other way round. The gradient is what comes, or a part of it.
pub fn gather(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let out = gpu.like(x, if tape.is_recording() { Role::Activation } else { Role::KvCache }, name);
    tape.record(out, |_, grad| vec![Some(grad)])
}
