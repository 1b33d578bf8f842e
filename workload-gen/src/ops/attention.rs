//! Attention, as `scaled_dot_product_attention` runs it.

use crate::tensor::{Dtype, Gpu, Name, Role, Tensor};

/// Heads of an attention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heads {
    /// Heads of the queries.
    pub heads: u64,
    /// Heads of the keys and values; fewer where several heads share them.
    pub shared: u64,
    /// Elements of a head.
    pub width: u64,
    /// Whether probabilities are dropped out.
    pub has_dropout: bool,
}

impl Heads {
    /// Whether several heads share keys and values.
    pub fn is_shared(&self) -> bool {
        self.shared < self.heads
    }
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

/// A copy that lies as the input does seen head by head, such as keys that were turned put behind those of a cache that is empty. The
/// gradient is a part of what comes.
pub fn gather(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let out = gpu.like(x, Role::Activation, name);
    tape.record(out, |_, grad| vec![Some(grad)])
}

/// Attention of queries, keys and values: in 16 bits by cuDNN, which PyTorch prefers on Hopper, in 32 bits by the memory-efficient kernel.
pub fn attention(gpu: &Gpu, qkv: [&Tensor; 3], heads: Heads, name: Name) -> Tensor {
    if qkv[0].dtype() == Dtype::F32 { efficient(gpu, qkv, heads, name) } else { cudnn(gpu, qkv, heads, name) }
}

/// The memory-efficient kernel: its random state is the host's, and sums of rows come in blocks of 32.
fn efficient(gpu: &Gpu, [q, k, v]: [&Tensor; 3], heads: Heads, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[q, k, v]);
    let inputs = [tape.save(q), tape.save(k), tape.save(v)];
    let rows = q.elements() / heads.width;
    let out = gpu.like(q, Role::Activation, name);
    let sums = tape.is_recording().then(|| gpu.tensor(rows.next_multiple_of(32), Dtype::F32, Role::Activation, name));
    let outputs = [Some(tape.save(&out)), sums.as_ref().map(|sums| tape.save(sums))];
    let sizes = [q, k, v].map(|x| (x.elements(), x.dtype()));
    tape.record(out, move |gpu, grad| {
        let _saved = (inputs.map(|one| one.unpack(gpu)), outputs.map(|one| one.and_then(|one| one.unpack(gpu))));
        let grads = sizes.map(|(elements, dtype)| Some(gpu.tensor(elements, dtype, Role::Gradient, name)));
        // Each row's product of output and gradient.
        gpu.scratch(rows * 4, Role::Temporary, name);
        drop(grad);
        grads.into()
    })
}

/// Attention by cuDNN.
///
/// The forward pass makes the output and the logarithm of each row's sum. The backward pass adds up the queries' gradient in 32 bits, and,
/// where several heads share their keys and values, makes the gradients of those for each head.
fn cudnn(gpu: &Gpu, [q, k, v]: [&Tensor; 3], heads: Heads, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[q, k, v]);
    let is_recording = tape.is_recording();
    let inputs = [tape.save(k), tape.save(q), tape.save(v)];
    let rows = q.elements() / heads.width;
    let scalar = || gpu.tensor(1, Dtype::I64, Role::Activation, name);
    let (seed, offset) = (scalar(), scalar());
    let out = gpu.like(q, Role::Activation, name);
    let sums = is_recording.then(|| gpu.tensor(rows, Dtype::F32, Role::Activation, name));
    gpu.scratch(256, Role::Workspace, name);
    let sums = sums.map(|sums| tape.save(&sums));
    let outputs = [tape.save(&out), tape.save(&offset), tape.save(&seed)];
    drop((seed, offset));
    let (sizes, width) = ([q, k, v].map(|x| (x.elements(), x.dtype())), heads.width);
    let shared = if heads.is_shared() { heads.heads / heads.shared * (k.bytes() + v.bytes()) } else { 0 };
    tape.record(out, move |gpu, grad| {
        // Given up from the last to the first.
        let mut saved: Vec<_> = inputs.into_iter().chain(sums).chain(outputs).map(|one| one.unpack(gpu)).collect();
        let grads = sizes.map(|(elements, dtype)| Some(gpu.tensor(elements, dtype, Role::Gradient, name)));
        gpu.scratch(rows * (width + 1) * 4 + 256 + shared, Role::Workspace, name);
        while saved.pop().is_some() {}
        drop(grad);
        grads.into()
    })
}
