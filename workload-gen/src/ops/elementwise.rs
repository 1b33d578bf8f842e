//! Operations on each element.

use super::cast::{Cx, to};
use super::reduce::column_sum;
use crate::tensor::{Dtype, Gpu, Name, Role, Tensor};

/// Times a number.
pub fn scale(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let out = gpu.like(x, Role::Activation, name);
    tape.record(out, move |gpu, grad| vec![Some(gpu.like(&grad, Role::Gradient, name))])
}

/// Plus a number.
pub fn shift(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let out = gpu.like(x, Role::Activation, name);
    tape.record(out, |_, grad| vec![Some(grad)])
}

/// The larger of two types.
pub(super) fn promoted(a: Dtype, b: Dtype) -> Dtype {
    if a.bytes() >= b.bytes() { a } else { b }
}

/// What a smaller factor has one element for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Each {
    Column,
    Row,
}

/// The gradient of an input of `elements` elements of `dtype`: `grad` itself, or what has to be made of it.
fn fitted(gpu: &Gpu, grad: Tensor, (elements, dtype): (u64, Dtype), each: Each, name: Name) -> Tensor {
    let summed = if elements == grad.elements() {
        grad
    } else if each == Each::Row {
        gpu.tensor(elements, grad.dtype(), Role::Gradient, name)
    } else {
        column_sum(gpu, elements, grad.elements() / elements, grad.dtype(), Role::Gradient, name)
    };
    if summed.dtype() == dtype { summed } else { gpu.tensor(elements, dtype, Role::Gradient, name) }
}

/// The sum. One of them may be smaller, and is then repeated.
pub fn add(gpu: &Gpu, a: &Tensor, b: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[a, b]);
    let needs = [tape.needs(0), tape.needs(1)];
    let shapes = [a, b].map(|x| (x.elements(), x.dtype()));
    let elements = a.elements().max(b.elements());
    let out = gpu.tensor(elements, promoted(a.dtype(), b.dtype()), Role::Activation, name);
    tape.record(out, move |gpu, grad| {
        let one = |at: usize| needs[at].then(|| fitted(gpu, grad.clone(), shapes[at], Each::Column, name));
        let second = one(1);
        vec![one(0), second]
    })
}

/// The product. One of them may be smaller, such as a factor of each column, and is then repeated.
pub fn mul(gpu: &Gpu, a: &Tensor, b: &Tensor, name: Name) -> Tensor {
    product(gpu, a, b, Each::Column, name)
}

/// The product of each row with a factor of its own. Either may be the factors.
pub fn mul_rows(gpu: &Gpu, x: &Tensor, factors: &Tensor, name: Name) -> Tensor {
    product(gpu, x, factors, Each::Row, name)
}

fn product(gpu: &Gpu, a: &Tensor, b: &Tensor, each: Each, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[a, b]);
    let needs = [tape.needs(0), tape.needs(1)];
    let saved_b = needs[0].then(|| tape.save(b));
    let saved_a = needs[1].then(|| tape.save(a));
    let shapes = [a, b].map(|x| (x.elements(), x.dtype()));
    let whole = (a.elements().max(b.elements()), promoted(a.dtype(), b.dtype()));
    let out = gpu.tensor(whole.0, whole.1, Role::Activation, name);
    tape.record(out, move |gpu, grad| {
        let (to_a, to_b) = {
            let _b = saved_b.and_then(|b| b.unpack(gpu));
            let _a = saved_a.and_then(|a| a.unpack(gpu));
            let one = |at: usize| needs[at].then(|| gpu.like(&grad, Role::Gradient, name));
            // The generated code computes the second factor's gradient first.
            let to_b = one(1);
            (one(0), to_b)
        };
        let to_a = to_a.map(|to_a| fitted(gpu, to_a, shapes[0], each, name));
        vec![to_a, to_b.map(|to_b| fitted(gpu, to_b, shapes[1], each, name))]
    })
}

/// A power, in 32 bits under autocast.
pub fn pow(cx: &Cx, x: &Tensor, name: Name) -> Tensor {
    let gpu = &cx.gpu;
    let x = &cx.float(x, name);
    let tape = gpu.tape(name, &[x]);
    let saved = tape.save(x);
    let out = gpu.like(x, Role::Activation, name);
    tape.record(out, move |gpu, grad| {
        let _x = saved.unpack(gpu);
        let lower = gpu.like(&grad, Role::Temporary, name);
        let times = gpu.like(&grad, Role::Temporary, name);
        let out = gpu.like(&grad, Role::Gradient, name);
        drop((times, lower));
        vec![Some(out)]
    })
}

/// The hyperbolic tangent, whose result is kept.
pub fn tanh(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let out = gpu.like(x, Role::Activation, name);
    let saved = tape.save(&out);
    tape.record(out, move |gpu, grad| {
        let _out = saved.unpack(gpu);
        vec![Some(gpu.like(&grad, Role::Gradient, name))]
    })
}

/// One over the square root.
pub fn rsqrt(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let out = gpu.like(x, Role::Activation, name);
    let saved = tape.save(&out);
    tape.record(out, move |gpu, grad| {
        let _out = saved.unpack(gpu);
        let scaled = gpu.like(&grad, Role::Temporary, name);
        let cube = gpu.like(&grad, Role::Temporary, name);
        let x = gpu.like(&grad, Role::Gradient, name);
        drop((cube, scaled));
        vec![Some(x)]
    })
}

/// The negative.
pub fn neg(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    scale(gpu, x, name)
}

/// A function of one input that keeps its input.
fn unary(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let saved = tape.save(x);
    let out = gpu.like(x, Role::Activation, name);
    tape.record(out, move |gpu, grad| {
        let _x = saved.unpack(gpu);
        vec![Some(gpu.like(&grad, Role::Gradient, name))]
    })
}

/// `torch.nn.functional.gelu`, as one kernel.
pub fn gelu(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    unary(gpu, x, name)
}

/// `torch.nn.functional.silu`.
pub fn silu(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    unary(gpu, x, name)
}

/// `torch.relu`, whose result is kept.
pub fn relu(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    tanh(gpu, x, name)
}

/// `torch.relu_`: the result takes the place of the input, which is what is kept.
pub fn relu_in_place(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let saved = tape.save(x);
    tape.record(x.detach(), move |gpu, grad| {
        let _x = saved.unpack(gpu);
        vec![Some(gpu.like(&grad, Role::Gradient, name))]
    })
}

/// `x += y`, of equally large tensors. Both have the gradient of the sum.
pub fn add_in_place(gpu: &Gpu, x: &Tensor, y: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x, y]);
    tape.record(x.detach(), |_, grad| vec![Some(grad.clone()), Some(grad)])
}

/// GPT-2's activation, `0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))`, written out as its authors did: nine kernels.
pub fn new_gelu(cx: &Cx, x: &Tensor, name: Name) -> Tensor {
    let gpu = &cx.gpu;
    let half = scale(gpu, x, name);
    // A name for all of them: each dies when the next is there.
    let mut inner = pow(cx, x, name);
    inner = scale(gpu, &inner, name);
    inner = add(gpu, x, &inner, name);
    inner = scale(gpu, &inner, name);
    inner = tanh(gpu, &inner, name);
    let factor = shift(gpu, &inner, name);
    drop(inner);
    mul(gpu, &half, &factor, name)
}

/// `torch.nn.functional.dropout` in training: a mask of a byte an element, and the output.
pub fn dropout(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let mask = gpu.tensor(x.elements(), Dtype::U8, Role::Activation, name);
    let out = gpu.like(x, Role::Activation, name);
    let saved = tape.save(&mask);
    tape.record(out, move |gpu, grad| {
        let _mask = saved.unpack(gpu);
        vec![Some(gpu.like(&grad, Role::Gradient, name))]
    })
}

/// The tensor in 32 bits.
pub fn float(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    to(gpu, x, Dtype::F32, Role::Activation, name)
}
