//! Attention, as `scaled_dot_product_attention` runs it.

use crate::tensor::{Dtype, Gpu, Name, Role, Tensor};

/// Heads of an attention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heads {
    /// Heads of the queries.
    pub heads: u64,
    /// Elements of a head.
    pub width: u64,
    /// Whether probabilities are dropped out.
    pub has_dropout: bool,
}

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

/// A copy in another order, such as keys put behind those of a cache that is empty. The gradient is put back into the old order, which is
/// a copy, too.
pub fn repack(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let out = gpu.like(x, Role::Activation, name);
    tape.record(out, move |gpu, grad| vec![Some(gpu.like(&grad, Role::Gradient, name))])
}

/// Attention by cuDNN, which PyTorch prefers on Hopper for 16-bit inputs.
///
/// The forward pass makes the output and the logarithm of each row's sum; the backward pass adds up the queries' gradient in 32 bits.
pub fn attention(gpu: &Gpu, [q, k, v]: [&Tensor; 3], heads: Heads, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[q, k, v]);
    let is_recording = tape.is_recording();
    let saved = [tape.save(q), tape.save(k), tape.save(v)];
    let rows = q.elements() / heads.width;
    let scalar = || gpu.tensor(1, Dtype::I64, Role::Activation, name);
    let random = (scalar(), scalar());
    let out = gpu.like(q, Role::Activation, name);
    let sums = if is_recording { Some(gpu.tensor(rows, Dtype::F32, Role::Activation, name)) } else { None };
    gpu.scratch(256, Role::Workspace, name);
    let saved_sums = sums.as_ref().map(|sums| tape.save(sums));
    let rest = [tape.save(&out), tape.save(&random.0), tape.save(&random.1)];
    let (sizes, width) = ([q, k, v].map(|x| (x.elements(), x.dtype())), heads.width);
    tape.record(out, move |gpu, grad| {
        let _saved = saved.map(|one| one.unpack(gpu));
        let _sums = saved_sums.map(|one| one.unpack(gpu));
        let _rest = rest.map(|one| one.unpack(gpu));
        let grads = sizes.map(|(elements, dtype)| Some(gpu.tensor(elements, dtype, Role::Gradient, name)));
        gpu.scratch(rows * (width + 1) * 4 + 256, Role::Workspace, name);
        drop(grad);
        grads.into()
    })
}
