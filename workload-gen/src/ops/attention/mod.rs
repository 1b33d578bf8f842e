//! Attention, as transformers calls `scaled_dot_product_attention`.

mod cudnn;
mod efficient;
mod math;

use super::cast::Cx;
use super::cat::gather;
use crate::tensor::{Dtype, Name, Tensor};

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

/// How the elements of a tensor that is seen head by head lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// As a projection returned them: all heads of a token, then those of the next.
    ByToken,
    /// All tokens of a head, then those of the next.
    ByHead,
}

/// The queries of an attention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Queries {
    /// Tokens of a sequence.
    pub length: u64,
    /// How they lie.
    pub layout: Layout,
}

/// What PyTorch runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kernel {
    /// The fused kernel for 16 bits.
    Cudnn,
    /// The fused kernel for 32 bits.
    Efficient,
    /// Its products and its softmax one by one: no fused kernel has shared keys in 32 bits.
    Math,
}

impl Kernel {
    /// The kernel for queries that a layer has in `dtype`.
    pub fn new(cx: &Cx, dtype: Dtype, heads: Heads) -> Kernel {
        match cx.autocast_dtype().unwrap_or(dtype) {
            Dtype::F32 if heads.is_shared() => Kernel::Math,
            Dtype::F32 => Kernel::Efficient,
            _ => Kernel::Cudnn,
        }
    }

    /// How the gradient of keys or values lies that lie as `input`.
    pub fn gradient(self, input: Layout) -> Layout {
        match self {
            Kernel::Cudnn => input,
            Kernel::Efficient => Layout::ByToken,
            Kernel::Math => Layout::ByHead,
        }
    }
}

/// Attention of queries, keys and values. What it returns lies token by token.
pub fn attention(cx: &Cx, [q, k, v]: [&Tensor; 3], heads: Heads, queries: Queries, name: Name) -> Tensor {
    let gpu = &cx.gpu;
    let (out, layout) = {
        // Arguments are cast from the last to the first.
        let v = cx.input(v, name);
        let k = cx.input(k, name);
        let qkv = [&cx.input(q, name), &k, &v];
        match Kernel::new(cx, q.dtype(), heads) {
            Kernel::Cudnn => (cudnn::cudnn(gpu, qkv, heads, name), queries.layout),
            Kernel::Efficient => (efficient::efficient(gpu, qkv, heads, queries, name), Layout::ByToken),
            Kernel::Math => (math::math(gpu, qkv, heads, queries, name), Layout::ByHead),
        }
    };
    match layout {
        Layout::ByToken => out,
        Layout::ByHead => gather(gpu, &out, name),
    }
}
