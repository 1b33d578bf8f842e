//! What transformers looks at before it makes a causal mask, which attention needs no tensor for if there is nothing special
//! (`masking_utils.py`).

use super::Tokens;
use crate::ops::{cumsum, to};
use crate::tensor::{Dtype, Gpu, Name, Role, Tensor};

/// transformers looks whether positions start anew within a row, which would mean several sequences in it.
pub(super) fn look_for_packing(gpu: &Gpu, tokens: &Tokens, name: Name) {
    let (batch, length) = (tokens.rows, tokens.columns);
    let make = |elements: u64, dtype: Dtype| gpu.tensor(elements, dtype, Role::Temporary, name);
    let before = make(batch, Dtype::I64);
    let differences = {
        let _joined = make(batch * (length + 1), Dtype::I64);
        make(batch * length, Dtype::I64)
    };
    let numbers = {
        let jumps = make(batch * length, Dtype::U8);
        cumsum(gpu, &jumps, Dtype::I64, batch, name)
    };
    let last = make(batch, Dtype::U8);
    let all = make(1, Dtype::U8);
    drop((last, all, before, differences, numbers));
}

/// transformers looks whether any token is padding; if none is, attention needs no mask.
pub(super) fn look_for_padding(gpu: &Gpu, mask: &Tensor, name: Name) {
    let bits = to(gpu, mask, Dtype::U8, Role::Temporary, name);
    let sum = gpu.tensor(1, Dtype::I64, Role::Temporary, name);
    gpu.scratch(bits.elements() * 8, Role::Temporary, name);
    let is_full = gpu.tensor(1, Dtype::U8, Role::Temporary, name);
    gpu.sync();
    drop((sum, is_full, bits));
}

/// Which tokens each token sees that has a window over those before it.
pub(super) fn window_mask(gpu: &Gpu, tokens: &Tokens, name: Name) -> Tensor {
    let numbers = |elements: u64| gpu.tensor(elements, Dtype::I64, Role::Temporary, name);
    let square = || gpu.tensor(tokens.columns * tokens.columns, Dtype::U8, Role::Temporary, name);
    let (rows, heads) = (numbers(tokens.rows), numbers(1));
    let from_zero = || {
        let range = numbers(tokens.columns);
        let shifted = gpu.like(&range, Role::Temporary, name);
        drop(range);
        shifted
    };
    let (queries, keys) = (from_zero(), from_zero());
    let all = gpu.tensor(1, Dtype::U8, Role::Temporary, name);
    let near = {
        let edges = numbers(tokens.columns);
        let near = square();
        drop(edges);
        near
    };
    let mut mask = square();
    drop((near, all));
    mask = {
        let earlier = square();
        let both = gpu.tensor(mask.elements(), Dtype::U8, Role::Input, name);
        drop(earlier);
        both
    };
    drop((rows, heads, queries, keys));
    mask
}
