//! Kernels that copy many tensors at once, and take memory for the list of their addresses and of what each block does
//! (`aten/src/ATen/native/cuda/TensorShape.cu`).

use super::reduce::{MULTIPROCESSORS, THREADS_PER_MULTIPROCESSOR};
use crate::tensor::{Dtype, Gpu, Name, Role};

/// Bytes that a block copies: 128 threads of 16 each.
const TILE: u64 = 2048;
/// Threads of a block.
const BLOCK: u64 = 128;

/// `split_with_sizes_copy`: pieces of these bytes are taken out of each of `rows` rows.
pub fn split_copy(gpu: &Gpu, pieces: &[u64], rows: u64, name: Name) {
    gpu.scratch(split_list(pieces, rows), Role::Workspace, name);
}

/// Addresses from and to, sizes, the piece of each block, and the first block of each piece and of none.
fn split_list(pieces: &[u64], rows: u64) -> u64 {
    let tiles = |tile: u64| pieces.iter().map(|bytes| bytes.div_ceil(tile)).sum::<u64>();
    let room = MULTIPROCESSORS * THREADS_PER_MULTIPROCESSOR / BLOCK * 2;
    // A thread does several tiles where the card has no room for as many blocks, partly of other rows and partly of its own.
    let each = (tiles(TILE) * rows).div_ceil(room);
    let of_rows = (each.isqrt() + u64::from(each.isqrt().pow(2) < each)).clamp(1, rows.max(1));
    let own = each.div_ceil(of_rows).max(1);
    Dtype::I64.bytes() * (4 * pieces.len() as u64 + 1 + tiles(TILE * own))
}

/// `_chunk_cat`: tensors, of which each has these bytes in a chunk, are put together chunk by chunk.
pub fn chunk_cat(gpu: &Gpu, chunks: &[u64], name: Name) {
    gpu.scratch(chunk_list(chunks), Role::Workspace, name);
}

/// Addresses, whole and padded sizes, blocks of each, where each begins in bytes and in blocks, and the tensor of each block.
fn chunk_list(chunks: &[u64]) -> u64 {
    let tiles: u64 = chunks.iter().map(|bytes| bytes.div_ceil(TILE)).sum();
    Dtype::I64.bytes() * (6 * chunks.len() as u64 + 2 + tiles)
}

#[cfg(test)]
mod tests {
    use super::{chunk_list, split_list};

    /// A layer of GPT-2 of that width in two shards, and what is around the layers.
    fn pieces(hidden: u64) -> (Vec<u64>, Vec<u64>) {
        let bytes = |elements: u64| elements / 2 * 2;
        let square = hidden * hidden;
        let layer =
            [1, 1, 3 * hidden, 3, hidden, 1, 1, 1, 4 * hidden, 4, 4 * hidden, 1].map(|times| bytes(times * hidden));
        assert_eq!(layer.iter().sum::<u64>(), 12 * square + 13 * hidden);
        (layer.into(), vec![25_129 * hidden * 2, bytes(1024 * hidden), bytes(hidden), bytes(hidden)])
    }

    /// What an H200 was seen to take.
    #[test]
    fn lists_take_what_the_card_was_seen_to_take() {
        let (layer, around) = pieces(768);
        assert_eq!([split_list(&layer, 2), split_list(&around, 2)], [28_120, 30_928]);
        assert_eq!([chunk_list(&layer), chunk_list(&around)], [28_320, 154_072]);
        let (layer, _) = pieces(1024);
        assert_eq!([split_list(&layer, 2), chunk_list(&layer)], [25_032, 49_824]);
    }
}
