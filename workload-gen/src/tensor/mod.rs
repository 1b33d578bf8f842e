//! The tensor-lifetime layer: when memory is asked for and when it dies.
//!
//! Jobs are written as an eager framework runs them. A [`Storage`] is memory with an owner count: making it is an
//! allocation, dropping the last owner a free. A [`Tensor`] owns its storage and the graph behind it, and a graph's node
//! owns what its operation saved for the backward pass. So "the graph keeps it alive until backward" is nobody's
//! statement: it follows from who owns what, as in PyTorch, and an error of a job's author (a loss that is kept) has the
//! consequences that it has there.
//!
//! ```text
//! job ── Tensor ──► Storage ──(made: a, dropped: f)──► Gpu ──► Batch ──► Sink
//!           │           ▲
//!           ▼           │ saved
//!         Node ─────────┘          Node ─► Node ─► … ─► Parameter (its gradient)
//! ```

mod checkpoint;
mod gpu;
mod graph;
mod label;
mod sink;
mod storage;

pub use checkpoint::{checkpoint, reentrant_checkpoint};
pub use gpu::{Gpu, run};
pub use graph::{Grads, Node, Parameter, Saved, Tape, backward, leaf};
pub use label::{Name, Role};
pub use sink::{Batch, Sink, Totals};
pub use storage::{Dtype, Storage, Tensor};
