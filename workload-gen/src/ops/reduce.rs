//! Sums over the rows of a matrix, and the memory that blocks of a kernel meet in.

use crate::tensor::{Dtype, Gpu, Name, Role, Tensor};

/// Streaming multiprocessors of an H100 or H200.
const MULTIPROCESSORS: u64 = 132;
/// Threads that one of them holds.
const THREADS: u64 = 2048;

/// Bytes of the staging memory and of the semaphores that PyTorch's reduction takes for the sums of `columns` columns of
/// `rows` 16- or 32-bit numbers: `setReduceConfig` of `aten/src/ATen/native/cuda/Reduce.cuh`, for a sum over the slow dimension with outputs
/// in vectors of four. Nothing if one block can do a column.
fn staging(rows: u64, columns: u64) -> Option<(u64, u64)> {
    const VECTOR: u64 = 4;
    let vector = if columns >= 128 && columns.is_multiple_of(VECTOR) { VECTOR } else { 1 };
    let threads = 512 / vector;
    let pow2 = |n: u64| 1u64 << n.max(1).ilog2();
    let (across, down) = (pow2(columns / vector).min(threads), pow2(rows).min(threads));
    let width = across.min(32);
    let height = down.min(threads / width);
    let width = across.min(threads / height);
    if rows < height * 16 && rows < 256 {
        return None;
    }
    let per_thread = rows.div_ceil(height);
    let grid = columns.div_ceil(width * vector);
    let room = MULTIPROCESSORS * (THREADS / (width * height));
    if per_thread < 256 || grid > room {
        return None;
    }
    let blocks = room.div_ceil(grid).min(per_thread.div_ceil(16)).max(per_thread.div_ceil(256));
    (blocks > 1).then(|| (4 * columns * blocks * width * height, 4 * grid))
}

/// The mean of each row of `width` elements. A row is a block's work.
pub fn row_mean(gpu: &Gpu, x: &Tensor, width: u64, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let elements = x.elements();
    let out = gpu.tensor(elements / width, x.dtype(), Role::Activation, name);
    tape.record(out, move |gpu, grad| vec![Some(gpu.tensor(elements, grad.dtype(), Role::Gradient, name))])
}

/// The sum of each column.
pub fn column_sum(gpu: &Gpu, columns: u64, rows: u64, dtype: Dtype, role: Role, name: Name) -> Tensor {
    let sum = gpu.tensor(columns, dtype, role, name);
    if let Some((bytes, semaphores)) = staging(rows, columns) {
        let staging = gpu.storage(bytes, Role::Workspace, name);
        gpu.scratch(semaphores, Role::Workspace, name);
        drop(staging);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::staging;

    /// What a GPT-2 on an H200 was seen to take.
    #[test]
    fn staging_memory_is_what_the_card_was_seen_to_take() {
        assert_eq!(staging(1896, 768), Some((11_796_480, 24)));
        assert_eq!(staging(1896, 3072), Some((47_185_920, 96)));
        assert_eq!(staging(1896, 2304), Some((35_389_440, 72)));
        assert_eq!(staging(736, 768), None);
        assert_eq!(staging(928, 3072), None);
        assert!(staging(1024, 768).is_some());
    }
}
