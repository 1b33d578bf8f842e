//! Data parallelism as `torch.nn.parallel.DistributedDataParallel` does it: each rank has all of the model, and gradients are copied into
//! buckets, which are summed over the ranks while the backward pass goes on.
//!
//! Facts are those of PyTorch 2.11 (`reducer.cpp`): one bucket holds all gradients at first. From the second forward pass on there are
//! several, in the order in which gradients came. A bucket is full with 25 MiB, the first with 1 MiB.
//!
//! What a collective has used stays until the one that begins after a watchdog has seen it done (`ProcessGroupNCCL.cpp`). The watchdog looks
//! ten times in a second; steps are taken to be shorter, so that the first bucket outlives the forward pass in which others take its place.

use super::pace;
use super::parallel::{Parallel, Update, trained};
use crate::models::{Model, all_parameters};
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};
use allocator_core::StreamId;
use std::cell::{Cell, RefCell};
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
    order: Rc<RefCell<Order>>,
    is_last: Rc<Cell<bool>>,
    name: Name,
}

/// The order of the buckets.
enum Order {
    /// That of the model. Which weights have had gradients in the first backward pass, in order.
    Model(Vec<usize>),
    /// That in which gradients came. The old bucket goes as the first of the new ones is sent, for which it awaits these weights.
    Gradients { awaited: Vec<usize>, old: Vec<Tensor> },
}

impl Order {
    /// A gradient is there.
    fn arrive(&mut self, number: usize) {
        match self {
            Order::Model(arrived) => arrived.push(number),
            Order::Gradients { awaited, old } => {
                awaited.retain(|&weight| weight != number);
                if awaited.is_empty() {
                    old.clear();
                }
            }
        }
    }
}

/// Puts weights of these bytes into buckets, in order. Returns the buckets, and how many weights are in the first.
fn buckets(weights: impl Iterator<Item = u64>) -> (Vec<u64>, usize) {
    let (mut buckets, mut first) = (Vec::new(), 0);
    let mut filling = 0;
    for bytes in weights {
        filling += bytes;
        first += usize::from(buckets.is_empty());
        let full = if buckets.is_empty() { FIRST_BUCKET } else { BUCKET };
        if filling >= full {
            buckets.push(filling);
            filling = 0;
        }
    }
    buckets.extend((filling > 0).then_some(filling));
    (buckets, first)
}

impl Replicas {
    /// Has the ranks agree on the weights, and makes the buckets.
    pub(super) fn new(gpu: &Gpu, model: &dyn Model, ranks: u64) -> Replicas {
        let weights = trained(model);
        let name = gpu.name("ddp");
        let replicas = Replicas {
            update: Update::new(gpu, weights.clone(), false),
            weights,
            buckets: RefCell::default(),
            order: Rc::new(RefCell::new(Order::Model(Vec::new()))),
            is_last: Rc::new(Cell::new(true)),
            name,
        };
        for (number, weight) in replicas.weights.iter().enumerate() {
            let (order, is_last) = (replicas.order.clone(), replicas.is_last.clone());
            // Passes whose gradients are only added up send nothing (`no_sync`).
            weight.on_gradient(move |_, _| {
                if is_last.get() {
                    order.borrow_mut().arrive(number);
                }
            });
        }
        replicas.compare(gpu, ranks);
        replicas.agree(gpu, &all_parameters(model));
        let all = (0..replicas.weights.len()).map(|weight| replicas.bytes(weight)).sum();
        drop(replicas.make_buckets(gpu, &[all]));
        replicas
    }

    fn bytes(&self, weight: usize) -> u64 {
        self.weights[weight].tensor().bytes()
    }

    fn numbers(&self, gpu: &Gpu, count: u64, dtype: Dtype) -> Tensor {
        gpu.tensor(count, dtype, Role::Communication, self.name)
    }

    /// The ranks look whether all have the same weights: how many, and then their shapes and strides.
    fn compare(&self, gpu: &Gpu, ranks: u64) {
        let own = self.numbers(gpu, 1, Dtype::I64);
        let counts: Vec<Tensor> = (0..ranks).map(|_| self.numbers(gpu, 1, Dtype::I64)).collect();
        drop(self.numbers(gpu, ranks, Dtype::I64));
        let dimensions = |weight: &Parameter| if weight.columns() > 1 { 2 } else { 1 };
        drop(self.numbers(gpu, 2 * self.weights.iter().map(dimensions).sum::<u64>(), Dtype::I64));
        drop((counts, own));
    }

    /// Weights are flattened, sent and copied back, those of each type apart.
    fn agree(&self, gpu: &Gpu, weights: &[Parameter]) {
        let mut under_way: VecDeque<Tensor> = VecDeque::new();
        let mut send = |bytes: u64, dtype: Dtype| {
            under_way.push_back(gpu.tensor(bytes / dtype.bytes(), dtype, Role::Communication, self.name));
            if under_way.len() >= UNDER_WAY {
                under_way.pop_front();
            }
        };
        let mut filling: Vec<(Dtype, u64)> = Vec::new();
        for weight in weights {
            let tensor = weight.tensor();
            let place = filling.iter().position(|(dtype, _)| *dtype == tensor.dtype()).unwrap_or(filling.len());
            if place == filling.len() {
                filling.push((tensor.dtype(), 0));
            }
            let (dtype, bytes) = &mut filling[place];
            *bytes += tensor.bytes();
            if *bytes >= BROADCAST {
                send(std::mem::take(bytes), *dtype);
            }
        }
        for (dtype, bytes) in filling.into_iter().filter(|(_, bytes)| *bytes > 0) {
            send(bytes, dtype);
        }
        while under_way.pop_front().is_some() {}
    }

    /// Makes buckets of these bytes, and returns those that were there.
    fn make_buckets(&self, gpu: &Gpu, sizes: &[u64]) -> Vec<Tensor> {
        let dtype = self.weights.first().map_or(Dtype::F32, |weight| weight.tensor().dtype());
        let make = |bytes: &u64| gpu.tensor(bytes / dtype.bytes(), dtype, Role::Communication, self.name);
        self.buckets.replace(sizes.iter().map(make).collect())
    }

    /// The ranks agree on which weights are in which bucket, and then on how many are in each.
    fn follow(&self, gpu: &Gpu, order: &[usize]) {
        let (sizes, first) = buckets(order.iter().map(|&weight| self.bytes(weight)));
        let indices = self.numbers(gpu, order.len() as u64 + 1, Dtype::I32);
        drop((self.numbers(gpu, sizes.len() as u64, Dtype::I32), indices));
        let old = self.make_buckets(gpu, &sizes);
        *self.order.borrow_mut() = Order::Gradients { awaited: order[..first].to_vec(), old };
    }
}

impl Parallel for Replicas {
    fn begin(&self, gpu: &Gpu, _tokens: u64) {
        let arrived = match &mut *self.order.borrow_mut() {
            Order::Model(arrived) if gpu.is_recording() => std::mem::take(arrived),
            Order::Model(_) | Order::Gradients { .. } => return,
        };
        if !arrived.is_empty() {
            self.follow(gpu, &arrived);
        }
    }

    fn before_backward(&self, is_last: bool) {
        self.is_last.set(is_last);
    }

    /// The sums are copied back.
    fn finish(&self, gpu: &Gpu) {
        if !self.is_last.get() {
            return;
        }
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
        assert_eq!(buckets([1, MIB - 2, 1, 20 * MIB, 10 * MIB, 5].into_iter()), (vec![MIB, 30 * MIB, 5], 3));
        assert_eq!(buckets([3 * MIB, 26 * MIB, MIB].into_iter()), (vec![3 * MIB, 26 * MIB, MIB], 1));
        assert_eq!(buckets(std::iter::empty()), (vec![], 0));
    }
}
