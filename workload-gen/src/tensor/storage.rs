//! Memory with owners.

use super::gpu::Gpu;
use super::graph::Edge;
use std::rc::Rc;

/// The type of a tensor's elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dtype {
    /// 64-bit float.
    F64,
    /// 32-bit float.
    F32,
    /// 16-bit float.
    F16,
    /// 16-bit float with the range of 32.
    Bf16,
    /// 64-bit integer.
    I64,
    /// 32-bit integer.
    I32,
    /// Byte or boolean.
    U8,
}

impl Dtype {
    /// Bytes of an element.
    pub const fn bytes(self) -> u64 {
        match self {
            Dtype::F64 | Dtype::I64 => 8,
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::U8 => 1,
        }
    }
}

/// An allocation. The last owner's drop is its free.
#[derive(Debug)]
pub struct Storage {
    /// `None` if it has no bytes: nothing is allocated for those.
    slot: Option<u32>,
    bytes: u64,
    gpu: Gpu,
}

impl Storage {
    pub(super) fn new(gpu: Gpu, slot: Option<u32>, bytes: u64) -> Rc<Storage> {
        Rc::new(Storage { slot, bytes, gpu })
    }

    /// Where a trace keeps it; `None` if nothing was allocated.
    pub fn slot(&self) -> Option<u32> {
        self.slot
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.gpu.free(slot, self.bytes);
        }
    }
}

/// A tensor: storage, how much of it, and the graph that made it.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Before the memory, as it goes first when a tensor dies.
    pub(super) edge: Option<Edge>,
    pub(super) storage: Rc<Storage>,
    elements: u64,
    dtype: Dtype,
    is_view: bool,
    is_matrix: bool,
}

impl Tensor {
    pub(super) fn new(storage: Rc<Storage>, elements: u64, dtype: Dtype) -> Tensor {
        Tensor { edge: None, storage, elements, dtype, is_view: false, is_matrix: false }
    }

    /// The number of elements.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// Their type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Bytes of the elements. The storage may be larger.
    pub fn bytes(&self) -> u64 {
        self.elements * self.dtype.bytes()
    }

    /// Its memory.
    pub fn storage(&self) -> &Rc<Storage> {
        &self.storage
    }

    /// Whether a backward pass reaches it.
    pub fn requires_grad(&self) -> bool {
        self.edge.is_some()
    }

    /// The same memory without the graph.
    pub fn detach(&self) -> Tensor {
        Tensor { edge: None, ..self.clone() }
    }

    /// The same memory and graph, another number of elements: a part, or a broadcast view.
    pub fn view(&self, elements: u64) -> Tensor {
        Tensor { elements, is_view: true, ..self.clone() }
    }

    /// Whether it is a part or another shape of a tensor.
    pub fn is_view(&self) -> bool {
        self.is_view
    }

    /// The same tensor seen as rows alone, where otherwise rows belong to sequences: a product's gradient is no view then.
    pub(crate) fn as_matrix(&self) -> Tensor {
        Tensor { is_matrix: true, ..self.clone() }
    }

    pub(crate) fn is_matrix(&self) -> bool {
        self.is_matrix
    }

    /// The same graph with the memory of another tensor, as after `output.data = scalar`.
    pub fn with_data(&self, data: &Tensor) -> Tensor {
        Tensor { edge: self.edge.clone(), ..data.clone() }
    }

    pub(super) fn with_edge(self, edge: Option<Edge>) -> Tensor {
        Tensor { edge, ..self }
    }

    /// Whether nobody else owns the memory, so that an operation may write its result there. A view never does: it keeps
    /// the tensor that it is a view of.
    pub(crate) fn is_sole_owner(&self) -> bool {
        !self.is_view && self.is_sole_handle()
    }

    /// Whether no other tensor owns the memory, apart from one that this is a view of.
    pub(super) fn is_sole_handle(&self) -> bool {
        Rc::strong_count(&self.storage) == 1
    }
}
