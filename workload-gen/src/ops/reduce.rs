//! Sums, means, norms and the like: what a reduction that is split among thread blocks needs beside its result.
//!
//! The blocks leave partial results in global memory, and the last of them, found by a counter for each group of outputs,
//! adds them up. How far a reduction is split follows from its shape and the card by the rules of PyTorch's
//! `aten/src/ATen/native/cuda/Reduce.cuh`, which are restated here.

use super::cast::to;
use super::embedding::SCAN;
use crate::tensor::{Dtype, Gpu, Name, Role, Tensor};

/// Multiprocessors of the card: an H100 or H200.
pub(super) const MULTIPROCESSORS: u64 = 132;

/// Threads that a multiprocessor holds.
pub(super) const THREADS_PER_MULTIPROCESSOR: u64 = 2048;

/// Threads of a block, at most.
const MOST_THREADS: u64 = 512;

const WARP: u64 = 32;

/// Values that a thread adds up: fewer are not worth a block, more are too slow.
const FEW_VALUES: u64 = 16;
const MANY_VALUES: u64 = 256;

/// A reduction of a contiguous tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reduction {
    /// How many results there are.
    pub outputs: u64,
    /// How many values each is made of.
    pub inputs: u64,
    /// Whether the values of one result lie side by side: a sum of rows, not of columns.
    pub is_inner: bool,
    /// Bytes of a partial result: 4 for sums and norms, more for a variance.
    pub partial: u64,
}

/// What it needs beside its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scratch {
    /// Bytes of partial results.
    pub partials: u64,
    /// Bytes of counters.
    pub counters: u64,
}

impl Reduction {
    /// Bytes of a partial variance: a mean, a sum of squares, and two counts.
    pub const VARIANCE: u64 = 16;

    /// Everything becomes one value.
    pub fn whole(inputs: u64) -> Reduction {
        Reduction { outputs: 1, inputs, is_inner: true, partial: 4 }
    }

    /// `rows` rows become one, as for the gradient of a bias.
    pub fn columns(rows: u64, columns: u64) -> Reduction {
        Reduction { outputs: columns, inputs: rows, is_inner: false, partial: 4 }
    }

    /// The same with partial results of so many bytes.
    pub fn with_partial(self, partial: u64) -> Reduction {
        Reduction { partial, ..self }
    }

    /// What it needs; `None` if its blocks need nothing of each other.
    pub fn scratch(&self) -> Option<Scratch> {
        // Loads are of four values: along the input if all of it is one line, along the outputs if those lie side by side.
        let is_line = self.is_inner && self.outputs == 1;
        let vector =
            if self.is_inner { 1 } else { [4, 2, 1].into_iter().find(|by| self.outputs.is_multiple_of(*by))? };
        let (wide, high) = match self.is_inner {
            true if is_line && self.inputs > 128 => (self.inputs / 4, self.outputs),
            true => (self.inputs, self.outputs),
            false => (self.outputs / vector, self.inputs),
        };

        let threads = MOST_THREADS / vector;
        let (wide, high) = (last_power(wide.min(threads)), last_power(high.min(threads)));
        let height = high.min(threads / wide.min(WARP));
        let width = wide.min(threads / height);

        let mut values = self.inputs;
        let mut outputs_per_block = 1;
        match self.is_inner {
            true => values = values.div_ceil(width),
            false => outputs_per_block *= width,
        }
        let is_split = values >= (height * 16).min(MANY_VALUES);
        match is_split {
            true => values = values.div_ceil(height),
            false => outputs_per_block *= height,
        }

        let grid = (self.outputs / vector).div_ceil(outputs_per_block);
        let most_blocks = MULTIPROCESSORS * (THREADS_PER_MULTIPROCESSOR / (width * height));
        if !is_split || values < MANY_VALUES || grid > most_blocks {
            return None;
        }
        let blocks = most_blocks.div_ceil(grid).min(values.div_ceil(FEW_VALUES)).max(values.div_ceil(MANY_VALUES));
        if blocks <= 1 {
            return None;
        }
        let columns = if self.is_inner { 1 } else { width * vector };
        Some(Scratch { partials: self.partial * self.outputs * blocks * columns, counters: 4 * grid })
    }

    /// Allocates what it needs while it runs, after its result was made.
    pub fn run(&self, gpu: &Gpu, name: Name) {
        if let Some(Scratch { partials, counters }) = self.scratch() {
            let partials = gpu.storage(partials, Role::Workspace, name);
            gpu.scratch(counters, Role::Workspace, name);
            drop(partials);
        }
    }
}

/// The running sums of each row of `x` in `dtype`. A single row is CUB's work.
pub fn cumsum(gpu: &Gpu, x: &Tensor, dtype: Dtype, rows: u64, name: Name) -> Tensor {
    let sums = gpu.tensor(x.elements(), dtype, Role::Temporary, name);
    let numbers = to(gpu, x, dtype, Role::Temporary, name);
    if rows == 1 {
        gpu.scratch(SCAN, Role::Workspace, name);
    }
    drop(numbers);
    sums
}

/// The mean of each row of `width` elements. A row is a block's work.
pub fn row_mean(gpu: &Gpu, x: &Tensor, width: u64, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let elements = x.elements();
    let out = gpu.tensor(elements / width, x.dtype(), Role::Activation, name);
    tape.record(out, move |gpu, grad| vec![Some(gpu.tensor(elements, grad.dtype(), Role::Gradient, name))])
}

/// The sum of each column, as the gradient of a bias.
pub fn column_sum(gpu: &Gpu, columns: u64, rows: u64, dtype: Dtype, role: Role, name: Name) -> Tensor {
    let sum = gpu.tensor(columns, dtype, role, name);
    Reduction::columns(rows, columns).run(gpu, name);
    sum
}

/// The mean of all elements. Its gradient is spread over them.
pub fn mean(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let (elements, dtype) = (x.elements(), x.dtype());
    let out = gpu.tensor(1, dtype, Role::Activation, name);
    Reduction::whole(elements).run(gpu, name);
    tape.record(out, move |gpu, _grad| vec![Some(gpu.tensor(elements, dtype, Role::Gradient, name))])
}

/// The greatest power of two that is not greater.
fn last_power(number: u64) -> u64 {
    1 << number.max(1).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(reduction: Reduction) -> Option<(u64, u64)> {
        reduction.scratch().map(|scratch| (scratch.partials, scratch.counters))
    }

    /// Shapes whose scratch memory is seen in recordings made on an H200.
    #[test]
    fn scratch_memory_is_what_an_h200_showed() {
        assert_eq!(scratch(Reduction::columns(11_322, 256)), Some((23_199_744, 8)));
        assert_eq!(scratch(Reduction::columns(10_242, 256)), Some((21_102_592, 8)));
        assert_eq!(scratch(Reduction::columns(11_322, 16)), Some((23_552, 4)));
        assert_eq!(scratch(Reduction::columns(8_022, 16)), None);
        assert_eq!(scratch(Reduction::columns(8_201, 16)).map(|scratch| scratch.1), Some(4));
        assert_eq!(scratch(Reduction::whole(574 * 2048)), Some((576, 4)));
        assert_eq!(scratch(Reduction::whole(574 * 2048).with_partial(Reduction::VARIANCE)), Some((2_304, 4)));
        assert_eq!(scratch(Reduction::whole(2048 * 4096)), Some((2_112, 4)));
        assert_eq!(scratch(Reduction::whole(4096)), None);
        assert_eq!(scratch(Reduction::columns(574, 2048)), None);
        assert_eq!(scratch(Reduction::columns(1896, 768)), Some((11_796_480, 24)));
        assert_eq!(scratch(Reduction::columns(1896, 3072)), Some((47_185_920, 96)));
        assert_eq!(scratch(Reduction::columns(1896, 2304)), Some((35_389_440, 72)));
        assert_eq!(scratch(Reduction::columns(736, 768)), None);
        assert_eq!(scratch(Reduction::columns(928, 3072)), None);
        assert!(Reduction::columns(1024, 768).scratch().is_some());
    }
}
