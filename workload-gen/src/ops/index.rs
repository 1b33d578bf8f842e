//! Choosing, gathering and scattering rows, as graph networks do.

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

/// `nonzero` of a mask: the places of the `count` elements that are set. The host waits for their number.
fn nonzero(gpu: &Gpu, mask: &Tensor, count: u64, name: Name) -> Tensor {
    let total = gpu.storage(4, Role::Temporary, name);
    gpu.scratch(cub(&[COUNTS]), Role::Temporary, name);
    gpu.sync_stream();
    let places = gpu.tensor(count, Dtype::I64, Role::Temporary, name);
    let tiles = mask.elements().div_ceil(TILE);
    gpu.scratch(cub(&[(tiles + PADDING) * TILE_STATE, 1]), Role::Temporary, name);
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
