//! CUDA graphs of decode passes.
//!
//! A captured pass runs with the memory it was captured in. So that memory comes from a private pool, to which it returns
//! only for other captures into the same pool: in one pool a capture uses what the one before has freed, and the order of
//! sizes decides how well that fits. The output of each graph stays.

use crate::spec::Values;
use crate::tensor::{Dtype, Gpu, Name, Role, Tensor};
use allocator_core::{PoolId, StreamId};

/// What is captured.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Batch sizes in the order of their captures.
    batches: Vec<u64>,
    has_many_pools: bool,
    /// The stream that captures run on.
    stream: StreamId,
}

/// A captured pass.
pub(super) struct Graph {
    pub batch: u64,
    pub output: Tensor,
    /// What all graphs read.
    _inputs: [Tensor; 3],
}

impl Plan {
    /// The plan, or `None` if nothing is captured.
    pub fn new(values: &Values, stream: StreamId) -> Result<Option<Plan>, String> {
        let capture = values.text("capture");
        if capture == "none" {
            let given = ["batch-sizes", "graph-pools"].into_iter().find(|key| values.is_changed(key));
            return match given {
                Some(key) => Err(format!("{key} says how graphs are captured, and capture=none captures none")),
                None => Ok(None),
            };
        }
        if values.text("kv") == "contiguous" {
            return Err(format!(
                "capture={capture}: a graph's memory stays where it is, and with kv=contiguous caches move; take kv=paged"
            ));
        }
        let mut batches = values.ints("batch-sizes");
        batches.sort_unstable();
        batches.dedup();
        if capture == "descending" {
            batches.reverse();
        }
        Ok(Some(Plan { batches, has_many_pools: values.text("graph-pools") == "many", stream }))
    }

    /// Captures `pass` for each batch size. Graphs are returned from the smallest to the largest.
    pub fn capture(&self, gpu: &Gpu, name: Name, pools: &mut u32, pass: impl Fn(u64) -> Tensor) -> Vec<Graph> {
        let largest = self.batches.iter().copied().max().unwrap_or(0);
        let inputs = [(); 3].map(|()| gpu.tensor(largest, Dtype::I64, Role::Input, name));
        let mut graphs: Vec<Graph> = Vec::with_capacity(self.batches.len());
        for &batch in &self.batches {
            drop(pass(batch));
            // `torch.cuda.graph` waits for the device and empties the cache before it captures.
            gpu.sync();
            gpu.empty_cache();
            if graphs.is_empty() || self.has_many_pools {
                *pools += 1;
            }
            let output = gpu.on_stream(self.stream, || gpu.in_pool(PoolId(*pools), || pass(batch)));
            graphs.push(Graph { batch, output, _inputs: inputs.clone() });
        }
        graphs.sort_by_key(|graph| graph.batch);
        graphs
    }
}
