//! Attention by the memory-efficient kernel (`mem_eff_attention` in PyTorch's sources), which does 32 bits.

use super::{Heads, Queries};
use crate::tensor::{Dtype, Gpu, Name, Role, Tensor};

/// Sums of rows are padded to a multiple of this (`kAlignLSE`).
const ROWS: u64 = 32;

/// The backward pass works on squares of so many queries and columns in 32 bits.
const BLOCK: u64 = 64;

/// What leads a square of the queries' gradient: a lock, a counter, and what pads them to 16 bytes.
const HEADER: u64 = 16;

/// The fused kernel. Its random state is the host's. Gradients are written token by token.
pub(super) fn efficient(gpu: &Gpu, [q, k, v]: [&Tensor; 3], heads: Heads, queries: Queries, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[q, k, v]);
    let inputs = [tape.save(q), tape.save(k), tape.save(v)];
    let rows = q.elements() / heads.width;
    let sequences = rows / queries.length;
    let out = gpu.like(q, Role::Activation, name);
    let sum = || gpu.tensor(sequences * queries.length.next_multiple_of(ROWS), Dtype::F32, Role::Activation, name);
    let sums = tape.is_recording().then(sum);
    let outputs = [Some(tape.save(&out)), sums.as_ref().map(|sums| tape.save(sums))];
    let sizes = [q, k, v].map(|x| (x.elements(), x.dtype()));
    let squares = queries.length.div_ceil(BLOCK) * heads.width.div_ceil(BLOCK);
    tape.record(out, move |gpu, grad| {
        let _saved = (inputs.map(|one| one.unpack(gpu)), outputs.map(|one| one.and_then(|one| one.unpack(gpu))));
        let grads = sizes.map(|(elements, dtype)| Some(gpu.tensor(elements, dtype, Role::Gradient, name)));
        // Each row's product of output and gradient, summed up and turned to lie head by head.
        let products = gpu.like(&grad, Role::Temporary, name);
        let deltas = gpu.tensor(rows, Dtype::F32, Role::Temporary, name);
        let turned = gpu.like(&deltas, Role::Temporary, name);
        drop((deltas, products));
        gpu.scratch(sequences * squares * (HEADER + BLOCK * BLOCK * 4), Role::Workspace, name);
        drop((turned, grad));
        grads.into()
    })
}
