//! Choosing, gathering and scattering rows, as graph networks and routers of experts do.

use super::embedding::radix_sort;
use crate::tensor::{Dtype, Gpu, Name, Role, Tensor};

/// Elements of a tile of CUB's selection, and bytes of its state. As many states as a warp has threads come before the first.
const TILE: u64 = 384 * 11;
const TILE_STATE: u64 = 8;
const PADDING: u64 = 32;

/// CUB puts each of its temporaries on a multiple of this, and asks for one byte less than another one more.
const CUB_ALIGNMENT: u64 = 256;

/// CUB's reduction has a partial count for each block that the card can be given: 8 blocks on each of 132 multiprocessors,
/// five times over.
const COUNTS: u64 = 132 * 8 * 5 * 4;

/// What CUB asks for to hold temporaries of these sizes.
fn cub(sizes: &[u64]) -> u64 {
    sizes.iter().map(|size| size.next_multiple_of(CUB_ALIGNMENT)).sum::<u64>() + CUB_ALIGNMENT - 1
}

/// Elements that one block counts in its own memory, for which CUB asks for one byte.
const ONE_BLOCK: u64 = 256 * 16;

/// What CUB's scan of a few numbers asks for.
pub(super) fn scan(elements: u64) -> u64 {
    cub(&[(elements.div_ceil(TILE) + PADDING) * TILE_STATE, 1])
}

/// `nonzero` of a mask: `numbers` in all say where those elements are that are set. The host waits for how many these are.
pub fn nonzero(gpu: &Gpu, mask: &Tensor, numbers: u64, name: Name) -> Tensor {
    let total = gpu.storage(4, Role::Temporary, name);
    let partial = if mask.elements() > ONE_BLOCK { cub(&[COUNTS]) } else { 1 };
    gpu.scratch(partial, Role::Temporary, name);
    gpu.sync_stream();
    let places = gpu.tensor(numbers, Dtype::I64, Role::Temporary, name);
    gpu.scratch(scan(mask.elements()), Role::Temporary, name);
    drop(total);
    places
}

/// `x[:, mask]`, of `rows` rows and of the `count` columns that are set in the mask, without a graph.
pub fn masked_columns(gpu: &Gpu, mask: &Tensor, rows: u64, count: u64, name: Name) -> Tensor {
    let places = nonzero(gpu, mask, count, name);
    let chosen = gpu.tensor(rows * count, Dtype::I64, Role::Temporary, name);
    drop(places);
    chosen
}

/// `x.index_select(0, index)`: a row of `width` elements for each element of the index, which it keeps. The gradient is
/// scattered into zeros.
pub fn index_select(gpu: &Gpu, x: &Tensor, index: &Tensor, width: u64, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let (elements, dtype) = (x.elements(), x.dtype());
    let saved = tape.save(index);
    let result = gpu.tensor(index.elements() * width, dtype, Role::Activation, name);
    tape.record(result, move |gpu, _grad| {
        let _index = saved.unpack(gpu);
        vec![Some(gpu.tensor(elements, dtype, Role::Gradient, name))]
    })
}

/// Where an indexed assignment puts what it adds: `numbers` many, by `indices` tensors, into `rows` rows. It sorts them.
fn sort_places(gpu: &Gpu, numbers: u64, indices: usize, rows: u64, name: Name) {
    let make = || gpu.tensor(numbers, Dtype::I64, Role::Temporary, name);
    let within = || {
        let wrapped = make();
        let strided = make();
        drop(wrapped);
        strided
    };
    let linear = within();
    for _ in 1..indices {
        drop(within());
    }
    let (sorted, origin, range) = (make(), make(), make());
    let bits = u64::from(u64::BITS - rows.saturating_sub(1).leading_zeros());
    gpu.scratch(radix_sort(numbers, bits), Role::Workspace, name);
    drop((range, origin, sorted, linear));
}

/// `x[rows]`: as many rows of `width` elements as the index has numbers; the index is kept. Gradients of the same row are added up in order.
pub fn take_rows(gpu: &Gpu, x: &Tensor, rows: &Tensor, width: u64, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let saved = tape.save(rows);
    let (elements, dtype, numbers) = (x.elements(), x.dtype(), rows.elements());
    let out = gpu.tensor(numbers * width, dtype, Role::Activation, name);
    tape.record(out, move |gpu, _grad| {
        let _rows = saved.unpack(gpu);
        let x = gpu.tensor(elements, dtype, Role::Gradient, name);
        sort_places(gpu, numbers, 1, elements / width, name);
        vec![Some(x)]
    })
}

/// `x[rows, columns]` of so many elements, both from one tensor of places, which is kept.
pub fn take_elements(gpu: &Gpu, x: &Tensor, places: &Tensor, numbers: u64, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let saved = tape.save(places);
    let (elements, dtype) = (x.elements(), x.dtype());
    let out = gpu.tensor(numbers, dtype, Role::Activation, name);
    tape.record(out, move |gpu, _grad| {
        let _places = saved.unpack(gpu);
        let x = gpu.tensor(elements, dtype, Role::Gradient, name);
        sort_places(gpu, numbers, 2, elements, name);
        // The engine does not add the next one to it where it lies.
        vec![Some(x.view(elements))]
    })
}

/// `base.index_add_(0, rows, x)`: where `base` lies. What is added is kept, and the rows.
pub fn index_add(gpu: &Gpu, base: &Tensor, x: &Tensor, rows: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[base, x]);
    let saved = (tape.save(rows), tape.save(x));
    let (elements, dtype) = (x.elements(), x.dtype());
    tape.record(base.detach(), move |gpu, grad| {
        let _saved = (saved.0.unpack(gpu), saved.1.unpack(gpu));
        let x = gpu.tensor(elements, dtype, Role::Gradient, name);
        vec![Some(grad), Some(x)]
    })
}

/// `torch.sort` of numbers that need no gradient: them in order, and where they stood.
pub fn sort(gpu: &Gpu, numbers: u64, name: Name) -> (Tensor, Tensor) {
    /// Up to so many are sorted in one block's memory.
    const SMALL: u64 = 4096;
    let make = || gpu.tensor(numbers, Dtype::I64, Role::Temporary, name);
    let (values, places) = (make(), make());
    let range = make();
    if numbers > SMALL {
        gpu.scratch(radix_sort(numbers, 64), Role::Workspace, name);
    }
    drop(range);
    (values, places)
}

/// `zeros.scatter_add_(0, index, x)` with `rows` rows of `width` elements; it keeps the index. The gradient is gathered.
pub fn scatter_add(gpu: &Gpu, x: &Tensor, index: &Tensor, rows: u64, width: u64, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let elements = x.elements();
    let result = gpu.tensor(rows * width, x.dtype(), Role::Activation, name);
    let saved = tape.save(index);
    tape.record(result, move |gpu, grad| {
        let _index = saved.unpack(gpu);
        vec![Some(gpu.tensor(elements, grad.dtype(), Role::Gradient, name))]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes that recordings made on an H200 show, for masks of so many elements.
    #[test]
    fn cub_asks_for_what_an_h200_showed() {
        assert_eq!(cub(&[COUNTS]), 21_503);
        let selection = |elements: u64| cub(&[(elements.div_ceil(TILE) + PADDING) * TILE_STATE, 1]);
        for (elements, bytes) in [
            (6_708, 1_023),
            (133_704, 1_023),
            (155_016, 1_279),
            (253_737, 1_279),
            (272_220, 1_535),
            (387_110, 1_535),
            (411_312, 1_791),
            (531_855, 1_791),
            (582_681, 2_047),
            (682_317, 2_303),
        ] {
            assert_eq!(selection(elements), bytes, "{elements} elements");
        }
    }
}
