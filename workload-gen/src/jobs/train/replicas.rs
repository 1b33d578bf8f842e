//! Data parallelism as `torch.nn.parallel.DistributedDataParallel` does it: each rank has all of the model, and gradients are copied into
//! buckets, which are summed over the ranks while the backward pass goes on.
//!
//! Facts are those of PyTorch 2.11 (`reducer.cpp`): buckets hold weights in the order of the model at first, and in the order in which
//! gradients came from the second forward pass on. A bucket is full with 25 MiB, the first with 1 MiB.

use super::pace;
use super::parallel::{Parallel, Update, trained};
use crate::models::Model;
use crate::tensor::{Gpu, Name, Parameter, Role, Tensor};
use allocator_core::StreamId;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Where gradients are summed. Nothing is allocated on it.
const REDUCE: StreamId = StreamId(1);
/// Bytes of a full bucket, and of the first.
const BUCKET: u64 = 25 << 20;
const FIRST_BUCKET: u64 = 1 << 20;
/// Bytes of what is sent at once as the ranks agree on the weights, and how many of those are under way.
const BROADCAST: u64 = 250 << 20;
const UNDER_WAY: usize = 2;

/// A model of which each rank has all.
pub(super) struct Replicas {
    update: Update,
    weights: Vec<Parameter>,
    buckets: RefCell<Vec<Tensor>>,
    /// Which weights have had gradients in the first backward pass, in order; `None` once the buckets follow it.
    arrivals: Rc<RefCell<Option<Vec<usize>>>>,
    name: Name,
}

/// Puts weights of these bytes into buckets, in order.
fn buckets(weights: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut buckets = Vec::new();
    let mut filling = 0;
    for bytes in weights {
        filling += bytes;
        let full = if buckets.is_empty() { FIRST_BUCKET } else { BUCKET };
        if filling >= full {
            buckets.push(filling);
            filling = 0;
        }
    }
    buckets.extend((filling > 0).then_some(filling));
    buckets
}

impl Replicas {
    /// Has the ranks agree on the weights, and makes the buckets.
    pub(super) fn new(gpu: &Gpu, model: &dyn Model) -> Replicas {
        let weights = trained(model);
        let name = gpu.name("ddp");
        let arrivals = Rc::new(RefCell::new(Some(Vec::new())));
        for (number, weight) in weights.iter().enumerate() {
            let arrivals = arrivals.clone();
            weight.on_gradient(move |_, _| {
                if let Some(order) = &mut *arrivals.borrow_mut() {
                    order.push(number);
                }
            });
        }
        let replicas = Replicas {
            update: Update::new(gpu, weights.clone(), false),
            weights,
            buckets: RefCell::default(),
            arrivals,
            name,
        };
        replicas.agree(gpu);
        replicas.make_buckets(gpu, &(0..replicas.weights.len()).collect::<Vec<_>>());
        replicas
    }

    fn bytes(&self, weight: usize) -> u64 {
        self.weights[weight].tensor().bytes()
    }

    /// Weights are flattened, sent and copied back.
    fn agree(&self, gpu: &Gpu) {
        let mut under_way: VecDeque<Tensor> = VecDeque::new();
        let mut filling = 0;
        let last = self.weights.len().saturating_sub(1);
        for (number, weight) in self.weights.iter().enumerate() {
            let tensor = weight.tensor();
            filling += tensor.bytes();
            if filling < BROADCAST && number < last {
                continue;
            }
            let elements = std::mem::take(&mut filling) / tensor.dtype().bytes();
            under_way.push_back(gpu.tensor(elements, tensor.dtype(), Role::Communication, self.name));
            if under_way.len() >= UNDER_WAY {
                under_way.pop_front();
            }
        }
        while under_way.pop_front().is_some() {}
    }

    fn make_buckets(&self, gpu: &Gpu, order: &[usize]) {
        drop(self.buckets.take());
        let make = |bytes| {
            let dtype = self.weights[order[0]].tensor().dtype();
            gpu.tensor(bytes / dtype.bytes(), dtype, Role::Communication, self.name)
        };
        let made = buckets(order.iter().map(|&weight| self.bytes(weight))).into_iter().map(make).collect();
        *self.buckets.borrow_mut() = made;
    }
}

impl Parallel for Replicas {
    fn begin(&self, gpu: &Gpu, _tokens: u64) {
        let is_known = self.arrivals.borrow().as_ref().is_some_and(|order| !order.is_empty());
        if !is_known || !gpu.is_recording() {
            return;
        }
        if let Some(order) = self.arrivals.take() {
            self.make_buckets(gpu, &order);
        }
    }

    /// The sums are copied back.
    fn finish(&self, gpu: &Gpu) {
        gpu.on_stream(REDUCE, || {
            gpu.wait_for(StreamId::DEFAULT);
            gpu.work(pace::link(self.buckets.borrow().iter().map(Tensor::bytes).sum()));
        });
        gpu.wait_for(REDUCE);
    }

    fn step(&self, gpu: &Gpu, is_clipped: bool) {
        self.update.step(gpu, is_clipped);
    }
}

#[cfg(test)]
mod tests {
    use super::buckets;

    #[test]
    fn a_bucket_is_full_when_it_has_reached_its_limit() {
        const MIB: u64 = 1 << 20;
        assert_eq!(buckets([1, MIB - 2, 1, 20 * MIB, 10 * MIB, 5].into_iter()), [MIB, 30 * MIB, 5]);
        assert_eq!(buckets([3 * MIB, 26 * MIB, MIB].into_iter()), [3 * MIB, 26 * MIB, MIB]);
        assert_eq!(buckets(std::iter::empty()), [0; 0]);
    }
}
