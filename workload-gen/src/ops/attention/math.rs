//! Attention written out (`_scaled_dot_product_attention_math`): scores, mask, softmax and sums, each a tensor.

use super::super::cat::gather;
use super::super::elementwise::scale;
use super::super::linear::batched_matmul;
use super::super::rotary::split_heads;
use super::{Heads, Layout, Queries};
use crate::tensor::{Dtype, Gpu, Name, Role, Tensor};

/// Attention whose output lies head by head.
pub(super) fn math(gpu: &Gpu, [q, k, v]: [&Tensor; 3], heads: Heads, queries: Queries, name: Name) -> Tensor {
    let rows = q.elements() / heads.width;
    let keys = k.elements() / heads.width * queries.length / (rows / heads.heads * heads.shared);
    let scaled = scale(gpu, q, name);
    let mask = (queries.length > 1).then(|| causal_mask(gpu, queries.length * keys, q.dtype(), name));
    let times = heads.heads / heads.shared;
    let (k, v) = {
        let k = repeat(gpu, k, times, name);
        (k, repeat(gpu, v, times, name))
    };
    let mut attended = {
        let scaled_keys = scale(gpu, &k, name);
        let q = if queries.layout == Layout::ByToken { gather(gpu, &scaled, name) } else { scaled.clone() };
        batched_matmul(gpu, &q, &scaled_keys, rows * keys, name)
    };
    attended = safe_softmax(gpu, &attended, rows, name);
    let out = {
        let out = batched_matmul(gpu, &attended, &v, q.elements(), name);
        // The gradient comes token by token, and is copied to be multiplied head by head.
        split_heads(gpu, &out, name)
    };
    drop((attended, v, k, mask, scaled));
    out
}

/// What is added to the scores: zero where a query may look, minus infinity elsewhere.
fn causal_mask(gpu: &Gpu, elements: u64, dtype: Dtype, name: Name) -> Tensor {
    let bits = || gpu.tensor(elements, Dtype::U8, Role::Temporary, name);
    let lower = {
        let _all = bits();
        bits()
    };
    let number = || gpu.tensor(1, dtype, Role::Temporary, name);
    let (zero, infinity) = (number(), number());
    let mask = gpu.tensor(elements, dtype, Role::Temporary, name);
    drop((zero, infinity, lower));
    mask
}

/// Keys or values, once for each head that shares them. The gradient is the sum of theirs.
fn repeat(gpu: &Gpu, x: &Tensor, times: u64, name: Name) -> Tensor {
    if times == 1 {
        return x.clone();
    }
    let tape = gpu.tape(name, &[x]);
    let (elements, dtype) = (x.elements(), x.dtype());
    let out = gpu.tensor(elements * times, dtype, Role::Activation, name);
    tape.record(out, move |gpu, _grad| vec![Some(gpu.tensor(elements, dtype, Role::Gradient, name))])
}

/// A softmax of each row, which is zero where a row is masked altogether.
fn safe_softmax(gpu: &Gpu, scores: &Tensor, rows: u64, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[scores]);
    let out = gpu.like(scores, Role::Activation, name);
    let saved = tape.save(&out);
    let bits = |elements: u64| gpu.tensor(elements, Dtype::U8, Role::Temporary, name);
    let (are_masked, are_all) = (bits(scores.elements()), bits(rows));
    gpu.scratch(scores.dtype().bytes(), Role::Temporary, name);
    drop((are_all, are_masked));
    tape.record(out, move |gpu, grad| {
        let _out = saved.unpack(gpu);
        let scores = gpu.like(&grad, Role::Gradient, name);
        gpu.scratch(grad.bytes(), Role::Temporary, name);
        vec![Some(scores)]
    })
}
