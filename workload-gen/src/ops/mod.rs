//! Operations: what the framework allocates for each, forward and backward, and what its graph keeps.
//!
//! Shapes and orders are those of PyTorch 2.11 on a Hopper card, as its sources and recordings show them: inputs are saved before the
//! output is made, arguments are cast from the last to the first, gradients come in the order of the generated code,
//! and a node lets go of the gradient that came to it before it lets go of what it saved.

mod attention;
mod cast;
mod cat;
mod checkpoint;
mod conv;
mod elementwise;
mod embedding;
mod image;
mod index;
mod linear;
mod loss;
mod many;
mod module;
mod multihead;
mod norm;
mod optimizer;
mod reduce;
mod rms_norm;
mod rotary;
mod route;
mod workspace;

pub use attention::{Heads, Kernel, Layout, Queries, attention};
pub use cast::{Autocast, Cx, to};
pub use cat::{cat, gather, reshape, slice, split3};
pub use checkpoint::{Checkpoint, checkpoint};
pub use conv::{Conv2d, Images, Shape};
pub use elementwise::{
    add, add_in_place, dropout, float, gelu, mul, mul_rows, neg, new_gelu, pow, relu, relu_in_place, rsqrt, scale,
    shift, silu, tanh,
};
pub use embedding::{embedding, embedding_as_leaf};
pub use image::{BatchNorm, GroupNorm, avg_pool, concat, max_pool, mse_loss, upsample};
pub use index::{index_add, index_select, masked_columns, nonzero, scatter_add, sort, take_elements, take_rows};
pub(crate) use linear::product;
pub use linear::{Form, Linear, batched_matmul, matmul};
pub use loss::{backward_from, causal_loss, cross_entropy};
pub use many::{chunk_cat, split_copy};
pub use module::Modules;
pub use multihead::MultiheadAttention;
pub use norm::LayerNorm;
pub use optimizer::{AdamW, Sgd, clip_grad_norm, release_list, zero_grad};
pub use reduce::{Reduction, column_sum, cumsum, mean, row_mean};
pub use rms_norm::RmsNorm;
pub use rotary::{Rotary, split_heads};
pub use route::{grouped_matmul, masked_fill, normalize, offsets, sigmoid, softmax, split2, sum_groups, topk};
