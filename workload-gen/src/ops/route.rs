//! What a router of experts does with its logits, and products of many matrices in one call.

use super::cast::Cx;
use super::index::scan;
use super::linear::product;
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};

/// `softmax(x, dtype=float32)` over rows: a copy in 32 bits if need be, and the output, which is kept.
pub fn softmax(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let x = super::elementwise::float(gpu, x, name);
    let tape = gpu.tape(name, &[&x]);
    let out = gpu.like(&x, Role::Activation, name);
    let saved = tape.save(&out);
    tape.record(out, move |gpu, grad| {
        let _out = saved.unpack(gpu);
        let x = gpu.like(&grad, Role::Gradient, name);
        drop(gpu.like(&grad, Role::Temporary, name));
        vec![Some(x)]
    })
}

/// `torch.topk` of each row: `count` values, and where they stand.
pub fn topk(gpu: &Gpu, x: &Tensor, count: u64, name: Name) -> (Tensor, Tensor) {
    let tape = gpu.tape(name, &[x]);
    let elements = x.elements();
    let values = gpu.tensor(count, x.dtype(), Role::Activation, name);
    let places = gpu.tensor(count, Dtype::I64, Role::Activation, name);
    let saved = tape.save(&places);
    let values = tape.record(values, move |gpu, grad| {
        let _places = saved.unpack(gpu);
        vec![Some(gpu.tensor(elements, grad.dtype(), Role::Gradient, name))]
    });
    (values, places)
}

/// `x /= x.sum(-1, keepdim=True)` over `rows` rows: where `x` lies, though the graph keeps a copy of what it was.
pub fn normalize(gpu: &Gpu, x: Tensor, rows: u64, name: Name) -> Tensor {
    let elements = x.elements();
    let sums = {
        let tape = gpu.tape(name, &[&x]);
        let sums = gpu.tensor(rows, x.dtype(), Role::Activation, name);
        tape.record(sums, move |_, grad| vec![Some(grad.view(elements))])
    };
    let tape = gpu.tape(name, &[&x, &sums]);
    let before = tape.is_recording().then(|| gpu.like(&x, Role::Activation, name));
    let saved = (before.map(|before| tape.save(&before)), tape.save(&sums));
    tape.record(x.detach(), move |gpu, grad| {
        let (x, times) = {
            let _saved = (saved.0.and_then(|before| before.unpack(gpu)), saved.1.unpack(gpu));
            let times = {
                let once = gpu.like(&grad, Role::Temporary, name);
                let twice = gpu.like(&grad, Role::Temporary, name);
                let negative = gpu.like(&grad, Role::Temporary, name);
                let times = gpu.like(&grad, Role::Temporary, name);
                drop((negative, twice, once));
                times
            };
            (gpu.like(&grad, Role::Gradient, name), times)
        };
        // Nobody's formula: the pass itself sums up what is larger than the input.
        let sums = gpu.tensor(rows, grad.dtype(), Role::Gradient, name);
        drop(times);
        vec![Some(x), Some(sums)]
    })
}

/// `masked_fill` with a number: a copy, and one of the gradient. The mask is kept.
pub fn masked_fill(gpu: &Gpu, x: &Tensor, mask: &Tensor, is_in_place: bool, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let saved = tape.save(mask);
    let out = if is_in_place { x.detach() } else { gpu.like(x, Role::Activation, name) };
    tape.record(out, move |gpu, grad| {
        let _mask = saved.unpack(gpu);
        vec![Some(gpu.like(&grad, Role::Gradient, name))]
    })
}

/// Bytes of pointers, sizes and strides that the grouped product has for each matrix, and of its workspace: 512 for each of 132
/// multiprocessors.
const GROUP: u64 = 60;
const WORKSPACE: u64 = 132 * 512;

/// `torch.nn.functional.grouped_mm`: the rows of `x` times `groups` matrices of `inputs` × `outputs`, so many rows for each as `offsets` say.
pub fn grouped_matmul(
    gpu: &Gpu,
    x: &Tensor,
    weights: &Parameter,
    offsets: &Tensor,
    [inputs, outputs]: [u64; 2],
    name: Name,
) -> Tensor {
    let weights = weights.tensor();
    let groups = offsets.elements();
    let tape = gpu.tape(name, &[x, &weights]);
    let saved = (tape.save(x), tape.save(&weights), tape.save(offsets));
    let shapes = [x, &weights].map(Tensor::elements);
    let dtype = x.dtype();
    let multiply = move |gpu: &Gpu, elements: u64, role: Role| {
        let out = gpu.tensor(elements, dtype, role, name);
        if dtype == Dtype::Bf16 {
            let sizes = gpu.storage(GROUP * groups, Role::Workspace, name);
            gpu.scratch(WORKSPACE, Role::Workspace, name);
            drop(sizes);
        } else {
            // One product after another.
            product(gpu);
        }
        out
    };
    let out = multiply(gpu, x.elements() / inputs * outputs, Role::Activation);
    tape.record(out, move |gpu, _grad| {
        let _saved = (saved.0.unpack(gpu), saved.1.unpack(gpu), saved.2.unpack(gpu));
        let weights = multiply(gpu, shapes[1], Role::Gradient);
        vec![Some(multiply(gpu, shapes[0], Role::Gradient)), Some(weights)]
    })
}

/// `x.view(rows, count, width).sum(1)`, in 32 bits under autocast. The gradient is repeated, in memory of its own.
pub fn sum_groups(cx: &Cx, x: &Tensor, elements: u64, name: Name) -> Tensor {
    let gpu = &cx.gpu;
    let tape = gpu.tape(name, &[x]);
    let (before, dtype) = (x.elements(), x.dtype());
    let summed = if cx.is_autocast() { Dtype::F32 } else { dtype };
    let out = gpu.tensor(elements, summed, Role::Activation, name);
    tape.record(out, move |gpu, _grad| vec![Some(gpu.tensor(before, dtype, Role::Gradient, name))])
}

/// `torch.cumsum` of a few numbers, in 32 bits.
pub fn offsets(gpu: &Gpu, counts: &Tensor, name: Name) -> Tensor {
    let out = gpu.tensor(counts.elements(), Dtype::I32, Role::Activation, name);
    gpu.scratch(scan(counts.elements()), Role::Workspace, name);
    out
}

/// A matrix of two halves side by side (`chunk`), taken apart without a copy. The gradients are put together again.
pub fn split2(gpu: &Gpu, x: &Tensor, name: Name) -> [Tensor; 2] {
    let tape = gpu.tape(name, &[x]);
    let (elements, dtype) = (x.elements(), x.dtype());
    let views = [0, 1].map(|_: u8| x.detach().view(elements / 2));
    tape.record_all(views, move |gpu, _grads| vec![Some(gpu.tensor(elements, dtype, Role::Gradient, name))])
}

/// The sigmoid, whose result is kept.
pub fn sigmoid(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    super::elementwise::tanh(gpu, x, name)
}
