//! DeepSpeed's third stage: each rank owns a part of every weight, of its gradient and of its states. Weights in 16 bits are gathered when
//! a module needs them (see [`fetch`](super::fetch)), gradients are copied into a bucket and scattered over the ranks when it is full, and
//! the optimizer works on flat groups in 32 bits.
//!
//! Facts are those of DeepSpeed 0.19 with its defaults (`stage3.py`): buckets of 500 million elements, groups of a billion, collectives
//! on streams of their own, norms in 64 bits.

use super::fetch::{Around, Shard, Store};
use super::norm::Norms;
use super::pace;
use super::parallel::Parallel;
use super::plan::{Offload, Plan};
use crate::models::{Model, all_parameters};
use crate::ops::{Modules, release_list};
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};
use allocator_core::StreamId;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

/// Where weights are gathered, and where gradients are copied into the bucket and scattered, while the computation goes on.
const GATHER: StreamId = StreamId(1);
const REDUCE: StreamId = StreamId(2);
/// Elements of the bucket of gradients (`reduce_bucket_size`).
const BUCKET: u64 = 500_000_000;
/// Elements of a group that is updated at once, at least (`sub_group_size`).
const GROUP: u64 = 1_000_000_000;
/// Buckets that may be under way before the host waits (`max_param_reduce_events`).
const UNDER_WAY: u64 = 2;
/// Elements that a norm is computed of at once where gradients go to the host (`_constant_buffered_norm2`).
const NORM: u64 = 250_000_000;

/// A model of which each rank owns a part.
pub(super) struct Zero3 {
    store: Rc<Store>,
    gradients: Rc<Gradients>,
    /// Elements of the parts of each group of weights that is updated at once.
    groups: Vec<Vec<u64>>,
    states: RefCell<Vec<Tensor>>,
    /// The norm that the last step reports.
    reported: RefCell<Option<Tensor>>,
    offload: Offload,
    names: Names,
    /// What lives as long as the job: weights in 16 and in 32 bits, gradients, the bucket.
    _kept: Vec<Tensor>,
}

#[derive(Clone, Copy)]
struct Names {
    weights: Name,
    states: Name,
    gradients: Name,
}

/// Gradients on their way to the ranks that own them.
struct Gradients {
    store: Rc<Store>,
    ranks: u64,
    dtype: Dtype,
    stream: StreamId,
    are_on_host: bool,
    bucket: Tensor,
    filling: RefCell<Vec<usize>>,
    under_way: Cell<u64>,
    /// Norms of the gradients that have gone to the host.
    norms: RefCell<Vec<Tensor>>,
    name: Name,
}

impl Zero3 {
    /// Makes the weights one by one, takes them apart, and makes what the optimizer needs.
    pub(super) fn new(gpu: &Gpu, plan: &Plan, model: &dyn Model) -> Zero3 {
        let (ranks, dtype, offload) = (plan.ranks, plan.dtype, plan.offload);
        let names = Names { weights: gpu.name("zero"), states: gpu.name("adamw"), gradients: gpu.name("gradients") };
        let mut kept = Vec::new();
        let mut trained = Vec::new();
        let is_on_host = offload == Offload::All;
        let mut shards = Vec::new();
        for whole in all_parameters(model) {
            let name = whole.name().unwrap_or(names.weights);
            let made = {
                let make = |dtype| gpu.tensor(whole.elements(), dtype, Role::Parameter, name);
                let _single = (plan.is_converted && whole.tensor().dtype() != Dtype::F32).then(|| make(Dtype::F32));
                make(whole.tensor().dtype())
            };
            let shard = Shard::new(whole, name, ranks, is_on_host);
            if !is_on_host {
                let part = gpu.tensor(shard.part, shard.dtype, Role::Parameter, name);
                if shard.whole.is_trained() { trained.push(part) } else { kept.push(part) }
            }
            drop(made);
            shards.push(shard);
        }
        let parts: Vec<u64> = shards.iter().filter(|shard| shard.whole.is_trained()).map(|shard| shard.part).collect();
        let all: u64 = parts.iter().sum();
        if !is_on_host {
            // The parts go to the host and come back side by side.
            drop(trained);
            gpu.empty_cache();
            kept.push(gpu.tensor(all, dtype, Role::Parameter, names.weights));
        }
        let groups = groups(&parts);
        if offload == Offload::Nothing {
            let sizes = || groups.iter().map(|group| group.iter().sum::<u64>());
            for group in sizes() {
                let converted = gpu.tensor(group, Dtype::F32, Role::Parameter, names.weights);
                kept.push(gpu.like(&converted, Role::Optimizer, names.states));
            }
            let largest = sizes().max().unwrap_or(0);
            gpu.scratch(largest * Dtype::F32.bytes(), Role::Gradient, names.gradients);
        }
        let bucket = gpu.tensor(BUCKET, dtype, Role::Communication, names.gradients);
        if offload == Offload::Nothing {
            kept.push(gpu.tensor(all, dtype, Role::Gradient, names.gradients));
        }
        // Each weight is made whole once more, for a hook on its gradient.
        for shard in shards.iter().filter(|shard| shard.whole.is_trained()) {
            gpu.scratch(shard.part * ranks * shard.dtype.bytes(), Role::Parameter, shard.name);
        }
        let [gather, reduce] = if plan.overlaps { [GATHER, REDUCE] } else { [StreamId::DEFAULT; 2] };
        let store = Rc::new(Store::new(gpu, shards, plan, gather));
        let gradients = Rc::new(Gradients {
            store: store.clone(),
            ranks,
            dtype,
            stream: reduce,
            are_on_host: offload != Offload::Nothing,
            bucket,
            filling: RefCell::default(),
            under_way: Cell::new(0),
            norms: RefCell::default(),
            name: names.gradients,
        });
        for shard in &store.shards {
            let gradients: Weak<Gradients> = Rc::downgrade(&gradients);
            shard.whole.on_gradient(move |gpu, weight| {
                if let Some(gradients) = gradients.upgrade() {
                    gradients.add(gpu, weight);
                }
            });
        }
        Zero3 {
            store,
            gradients,
            groups,
            states: RefCell::default(),
            reported: RefCell::default(),
            offload,
            names,
            _kept: kept,
        }
    }
}

/// Puts parts into groups, in order.
fn groups(parts: &[u64]) -> Vec<Vec<u64>> {
    let mut groups = Vec::new();
    let mut filling = Vec::new();
    let mut filled = 0;
    for &part in parts {
        filling.push(part);
        filled += part;
        if filled >= GROUP {
            groups.push(std::mem::take(&mut filling));
            filled = 0;
        }
    }
    groups.extend((!filling.is_empty()).then_some(filling));
    groups
}

impl Gradients {
    /// A gradient is there: it goes into the bucket, which is emptied first if it has no room.
    fn add(&self, gpu: &Gpu, weight: &Parameter) {
        let Some(grad) = weight.replace_grad(None) else { return };
        let elements = |number: &usize| self.store.shards[*number].whole.elements();
        let filled: u64 = self.filling.borrow().iter().map(elements).sum();
        let is_full = filled + grad.elements() > BUCKET;
        if is_full && filled > 0 {
            self.scatter(gpu);
        }
        gpu.on_stream(self.stream, || gpu.wait_for(StreamId::DEFAULT));
        if grad.elements() <= BUCKET {
            self.record(gpu, &grad);
            drop(weight.replace_grad(Some(self.bucket.view(grad.elements()))));
        } else {
            drop(weight.replace_grad(Some(grad)));
        }
        self.filling.borrow_mut().push(weight.number());
    }

    /// Sums what is in the bucket over the ranks, of which each keeps its parts.
    fn scatter(&self, gpu: &Gpu) {
        let mut filling = self.filling.take();
        if filling.is_empty() {
            return;
        }
        filling.sort_unstable();
        if self.under_way.replace(self.under_way.get() + 1) > UNDER_WAY {
            gpu.on_stream(self.stream, || gpu.sync_stream());
            self.under_way.set(1);
        }
        gpu.on_stream(self.stream, || {
            let shards = || filling.iter().map(|&number| &self.store.shards[number]);
            let all: u64 = self.ranks * shards().map(|shard| shard.part).sum::<u64>();
            // One gradient that needs no padding is scattered where it lies.
            let is_alone =
                filling.len() == 1 && shards().all(|shard| shard.part * self.ranks == shard.whole.elements());
            let flat = (!is_alone).then(|| gpu.tensor(all, self.dtype, Role::Communication, self.name));
            gpu.work(pace::link(all * self.dtype.bytes()));
            for shard in shards() {
                if self.are_on_host {
                    self.send(gpu, shard.part);
                }
                if let Some(grad) = shard.whole.replace_grad(None)
                    && grad.elements() > BUCKET
                {
                    self.record(gpu, &grad);
                }
            }
            drop(flat);
        });
    }

    /// A gradient is read where gradients are scattered.
    fn record(&self, gpu: &Gpu, grad: &Tensor) {
        if self.stream != StreamId::DEFAULT {
            gpu.record_stream(grad, self.stream);
        }
    }

    /// A part of a gradient goes to the host, and its norm is computed on the way.
    fn send(&self, gpu: &Gpu, part: u64) {
        let on_device = gpu.tensor(part, self.dtype, Role::Gradient, self.name);
        let norm = Norms { gpu, name: self.name, dtype: Dtype::F64 }.on_the_way(part, NORM);
        self.norms.borrow_mut().push(norm);
        gpu.scratch(part * Dtype::F32.bytes(), Role::Temporary, self.name);
        gpu.work(pace::host(part * Dtype::F32.bytes()));
        drop(on_device);
    }
}

impl Parallel for Zero3 {
    fn begin(&self, gpu: &Gpu, tokens: u64) {
        self.store.begin(gpu, tokens);
    }

    fn modules(&self) -> Option<Rc<dyn Modules>> {
        Some(Rc::new(Around(self.store.clone())))
    }

    /// What is left in the bucket is scattered, and the host waits.
    fn finish(&self, gpu: &Gpu) {
        self.gradients.scatter(gpu);
        gpu.on_stream(self.gradients.stream, || gpu.sync_stream());
        self.gradients.under_way.set(0);
        self.store.release_left_over(gpu);
    }

    fn step(&self, gpu: &Gpu, is_clipped: bool) {
        let names = self.names;
        self.store.release_all(gpu);
        let norms = Norms { gpu, name: names.gradients, dtype: Dtype::F64 };
        if self.offload != Offload::Nothing {
            for group in &self.groups {
                norms.all_on_host(group.len());
                gpu.host(pace::update(group.iter().sum()));
            }
            self.gradients.norms.take().into_iter().for_each(drop);
            self.store.gather_small(gpu);
            return;
        }
        let of_groups: Vec<Tensor> =
            self.groups.iter().map(|group| norms.all(group.iter().map(|&part| norms.one(part)).collect())).collect();
        let total = norms.combined(of_groups.len());
        // The host looks at it.
        drop(norms.is_invalid(&total));
        gpu.sync();
        let reported = gpu.tensor(1, Dtype::F64, Role::Temporary, names.gradients);
        for (number, group) in self.groups.iter().enumerate() {
            let group = group.iter().sum();
            let gradient = {
                let flat = gpu.tensor(group, self.gradients.dtype, Role::Temporary, names.gradients);
                let gradient = gpu.tensor(group, Dtype::F32, Role::Gradient, names.gradients);
                drop(flat);
                gradient
            };
            if is_clipped {
                norms.clip();
            }
            let mut states = self.states.borrow_mut();
            if states.len() <= 2 * number {
                let state = || gpu.like(&gradient, Role::Optimizer, names.states);
                states.extend([state(), state()]);
            }
        }
        self.store.gather_small(gpu);
        drop(total);
        release_list(of_groups);
        drop(self.reported.replace(Some(reported)));
    }
}

#[cfg(test)]
mod tests {
    use super::groups;

    #[test]
    fn a_group_is_closed_when_it_has_a_billion_elements() {
        assert_eq!(groups(&[400_000_000, 700_000_000, 5, 6]), [vec![400_000_000, 700_000_000], vec![5, 6]]);
        assert!(groups(&[]).is_empty());
    }
}
