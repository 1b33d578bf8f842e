//! Rows of a table by number.

use super::cast::Cx;
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor, leaf};

/// Up to so many numbers, the gradient's kernel needs no sorting (`embedding_dense_backward_cuda`).
const UNSORTED: u64 = 3072;

/// `torch.nn.functional.embedding`: a row of `width` for each number in `ids`.
pub fn embedding(cx: &Cx, ids: &Tensor, table: &Parameter, width: u64, name: Name) -> Tensor {
    cx.module(&[table], ids, |ids| look_up(&cx.gpu, ids, table, width, name))
}

/// The same, but what comes out is given a gradient of its own, as if it were a weight. peft sees to that where a model has adapters and
/// is recomputed: otherwise the first layer that runs again would have no input that needs a gradient.
pub fn embedding_as_leaf(cx: &Cx, ids: &Tensor, table: &Parameter, width: u64, name: Name) -> Tensor {
    cx.module(&[table], ids, |ids| {
        let rows = look_up(&cx.gpu, ids, table, width, name);
        if cx.gpu.is_recording() { leaf(&cx.gpu, rows, name) } else { rows }
    })
}

fn look_up(gpu: &Gpu, ids: &Tensor, table: &Parameter, width: u64, name: Name) -> Tensor {
    let weight = table.tensor();
    let tape = gpu.tape(name, &[&weight]);
    let saved = tape.save(ids);
    let (count, elements, dtype) = (ids.elements(), weight.elements(), weight.dtype());
    let out = gpu.tensor(count * width, dtype, Role::Activation, name);
    tape.record(out, move |gpu, grad| {
        let _ids = saved.unpack(gpu);
        let table = scatter(gpu, count, elements, width, dtype, name);
        drop(grad);
        vec![Some(table)]
    })
}

/// The gradient of the table: zeros, to which each row of the output's gradient is added.
fn scatter(gpu: &Gpu, count: u64, elements: u64, width: u64, dtype: Dtype, name: Name) -> Tensor {
    if count <= UNSORTED {
        return gpu.tensor(elements, dtype, Role::Gradient, name);
    }
    let numbers = |count: u64| gpu.tensor(count, Dtype::I64, Role::Temporary, name);
    let (sorted, origin) = (numbers(count), numbers(count));
    let range = numbers(count);
    gpu.scratch(radix_sort(count, 64), Role::Workspace, name);
    drop(range);
    let table = gpu.tensor(elements, dtype, Role::Gradient, name);
    // `embedding_backward_cuda_kernel`: runs of equal numbers are cut into parts of ten rows.
    let segments = numbers(count);
    let found = numbers(1);
    let ones = numbers(count);
    gpu.scratch(SCAN, Role::Workspace, name);
    drop(ones);
    let (parts, offsets) = (numbers(count), numbers(count));
    gpu.scratch(SCAN, Role::Workspace, name);
    let total = numbers(1);
    let most = count / 10 + count.min(elements / width);
    let starts = numbers(most);
    gpu.scratch(most * width.next_multiple_of(32) * 4, Role::Workspace, name);
    drop((starts, total, offsets, parts, found, segments, origin, sorted));
    table
}

/// What CUB's scans of some thousand numbers take.
pub(super) const SCAN: u64 = 1279;

/// What CUB's radix sort of pairs of 64-bit numbers takes that have so many bits: a second copy of both, a histogram of each digit of eight
/// bits, and a row for each tile. Read off an H200: tiles of 4608 pairs agree with every length seen there. Few pairs are sorted by one block
/// in its own memory, and CUB asks for one byte.
pub(super) fn radix_sort(pairs: u64, bits: u64) -> u64 {
    const ONE_BLOCK: u64 = 2304;
    if pairs <= ONE_BLOCK {
        return 1;
    }
    2 * (8 * pairs).next_multiple_of(256) + 8 * 256 * bits.div_ceil(8) + 1024 * pairs.div_ceil(4608) + 511
}

#[cfg(test)]
mod tests {
    use super::radix_sort;

    /// What GPT-2's embedding on an H200 was seen to take.
    #[test]
    fn a_sort_takes_what_the_card_was_seen_to_take() {
        for (pairs, bytes) in [(3352, 71_679), (3528, 74_751), (4912, 97_791), (7008, 131_071), (12_080, 213_503)] {
            assert_eq!(radix_sort(pairs, 64), bytes);
        }
        for (pairs, bytes) in [(2261, 1), (2399, 44_031), (3996, 69_631), (4800, 83_455), (24_000, 394_751)] {
            assert_eq!(radix_sort(pairs, 15), bytes);
        }
    }
}
