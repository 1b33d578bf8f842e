//! Attention by cuDNN, which PyTorch prefers for 16 bits on Hopper.

use super::Heads;
use crate::tensor::{Dtype, Gpu, Name, Role, Tensor};

/// The fused kernel.
///
/// The forward pass makes the output and the logarithm of each row's sum. The backward pass adds up the queries' gradient in 32 bits, and,
/// where several heads share their keys and values, makes the gradients of those for each head.
pub(super) fn cudnn(gpu: &Gpu, [q, k, v]: [&Tensor; 3], heads: Heads, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[q, k, v]);
    let is_recording = tape.is_recording();
    let inputs = [tape.save(k), tape.save(q), tape.save(v)];
    let rows = q.elements() / heads.width;
    let scalar = || gpu.tensor(1, Dtype::I64, Role::Activation, name);
    let (seed, offset) = (scalar(), scalar());
    // Values may have a width of their own.
    let value = v.elements() * heads.width / k.elements();
    let out = gpu.tensor(rows * value, q.dtype(), Role::Activation, name);
    let sums = is_recording.then(|| gpu.tensor(rows, Dtype::F32, Role::Activation, name));
    gpu.scratch(workspace([q, k], heads), Role::Workspace, name);
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

/// What cuDNN takes for the forward pass.
///
/// A query that comes alone, to keys that lie before it, would keep a processor busy for each head of the keys and leave the others idle.
/// So long keys are split: each part leaves an output and two sums in 32 bits for each head of the queries. Sizes and limits are those
/// that an H200 shows for 8 to 1024 heads and 17 to 8192 keys.
fn workspace([q, k]: [&Tensor; 2], heads: Heads) -> u64 {
    let (queries, keys) = (q.elements() / (heads.heads * heads.width), k.elements() / (heads.shared * heads.width));
    if keys <= queries {
        return 256;
    }
    let length = keys / queries;
    let parts = (1 << length.ilog2()) / KEYS_OF_A_PART;
    let room = (BLOCKS / (queries * heads.shared)).checked_ilog2().map_or(0, |power| 1 << power);
    let parts: u64 = parts.min(room);
    if length <= SHORT_KEYS || parts < FEWEST_PARTS {
        return 0;
    }
    let rows = queries * heads.heads * parts;
    rows * heads.width * 4 + 2 * (rows * 4).next_multiple_of(128) + 128
}

/// Keys are not split up to this length.
const SHORT_KEYS: u64 = 512;
/// Keys of a part, if there is room for that many parts.
const KEYS_OF_A_PART: u64 = 128;
/// Splitting into fewer parts is not worth it.
const FEWEST_PARTS: u64 = 4;
/// Parts that run at the same time: two on each of 132 multiprocessors.
const BLOCKS: u64 = 2 * 132;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{Batch, Sink, run};

    struct Nobody;

    impl Sink for Nobody {
        fn take(&mut self, _: &Batch) -> bool {
            true
        }
    }

    /// What an H200 was seen to take for a token of each sequence: sequences, heads, heads of the keys, width, keys and bytes.
    const SEEN: &[[u64; 6]] = &[
        [1, 12, 12, 64, 512, 0],
        [1, 12, 12, 64, 513, 12_928],
        [1, 12, 12, 64, 1024, 25_472],
        [1, 12, 12, 64, 8192, 50_816],
        [3, 12, 12, 64, 700, 38_272],
        [8, 12, 12, 64, 8192, 0],
        [2, 16, 16, 64, 1000, 33_920],
        [1, 32, 8, 128, 4096, 532_608],
        [3, 32, 8, 128, 8192, 399_488],
        [16, 32, 8, 128, 8192, 0],
        [1, 16, 4, 128, 8192, 532_608],
        [4, 64, 8, 128, 700, 532_608],
        [16, 12, 4, 64, 8192, 202_880],
    ];

    #[test]
    fn keys_are_split_as_on_an_h200() {
        let job = |gpu: &Gpu| {
            let name = gpu.name("x");
            for &[batch, heads, shared, width, keys, bytes] in SEEN {
                let tensor = |elements: u64| gpu.tensor(elements, Dtype::Bf16, Role::Activation, name);
                let (q, k) = (tensor(batch * heads * width), tensor(batch * shared * width * keys));
                let seen = workspace([&q, &k], Heads { heads, shared, width, has_dropout: false });
                assert_eq!(seen, bytes, "{batch} x {heads} ({shared}) x {width}, {keys} keys");
            }
        };
        run(job, &mut Nobody);
    }
}
