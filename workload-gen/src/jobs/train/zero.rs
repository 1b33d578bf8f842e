//! DeepSpeed's first and second stage: each rank has all weights in 16 bits, side by side in one buffer, and updates its part of them in 32.
//! Gradients are copied into a bucket, which is summed over the ranks when it is full; a rank keeps those of its part. In the first
//! stage that happens in the last of several backward passes only, in the second in each.
//!
//! Facts are those of DeepSpeed 0.17 with its defaults (`stage_1_and_2.py`): buckets of 500 million elements, everything on one stream,
//! norms in 64 bits.

use super::pace;
use super::parallel::{Parallel, trained};
use super::plan::{Offload, Plan, Sharing};
use crate::models::Model;
use crate::ops::release_list;
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

/// Elements of the bucket of gradients (`reduce_bucket_size`).
const BUCKET: u64 = 500_000_000;
/// Elements that a part is a multiple of, so that it begins where a collective can begin (`nccl_start_alignment_factor`).
const ALIGNMENT: u64 = 2;

/// A model whose states are shared.
pub(super) struct Zero {
    inner: Rc<Inner>,
    states: RefCell<Vec<Tensor>>,
    states_name: Name,
    /// What lives as long as the job: the part in 32 bits, a buffer for what goes to the host.
    _kept: Vec<Tensor>,
}

struct Inner {
    weights: Vec<Parameter>,
    /// How much of each weight is in this rank's part.
    own: Vec<u64>,
    /// Elements of a part.
    part: u64,
    dtype: Dtype,
    waits_for_last: bool,
    is_on_host: bool,
    is_last: Cell<bool>,
    gradients: RefCell<Gradients>,
    name: Name,
}

/// Gradients on their way.
#[derive(Default)]
struct Gradients {
    bucket: Option<Tensor>,
    filling: Vec<usize>,
    filled: u64,
    /// What the part's gradients of this backward pass are copied to, and those of earlier ones.
    arrived: Option<Tensor>,
    kept: Option<Tensor>,
    /// Norms of what has gone to the host.
    norms: Vec<Tensor>,
}

impl Zero {
    /// Puts the weights side by side, and makes what the optimizer needs.
    pub(super) fn new(gpu: &Gpu, plan: &Plan, model: &dyn Model) -> Zero {
        let (weights, dtype, is_on_host) = (trained(model), plan.dtype, plan.offload != Offload::Nothing);
        let (name, weights_name, states_name) = (gpu.name("gradients"), gpu.name("zero"), gpu.name("adamw"));
        // Each weight goes to the host, and a tensor of one element stands for it meanwhile.
        let place = |weight: &Parameter| {
            let place = gpu.tensor(1, dtype, Role::Parameter, weights_name);
            drop(weight.replace(gpu.hollow(weight.elements(), dtype)));
            place
        };
        let places: Vec<Tensor> = weights.iter().map(place).collect();
        gpu.empty_cache();
        let all: u64 = weights.iter().map(Parameter::elements).sum();
        let part = all.next_multiple_of(ALIGNMENT * plan.ranks) / plan.ranks;
        let flat = gpu.tensor(part * plan.ranks, dtype, Role::Parameter, weights_name);
        for weight in &weights {
            drop(weight.replace(flat.view(weight.elements())));
        }
        drop(places);
        let mut kept = Vec::new();
        let copy = gpu.tensor(part, dtype, Role::Temporary, weights_name);
        if is_on_host {
            drop(copy);
            let largest = weights.iter().map(Parameter::elements).max().unwrap_or(0);
            kept.push(gpu.tensor(largest, dtype, Role::Gradient, name));
        } else {
            kept.push(gpu.tensor(part, Dtype::F32, Role::Optimizer, states_name));
            drop(copy);
        }
        let inner = Rc::new(Inner {
            own: own(&weights, part, plan.rank),
            weights,
            part,
            dtype,
            waits_for_last: plan.sharing == Sharing::States,
            is_on_host,
            is_last: Cell::new(true),
            gradients: RefCell::default(),
            name,
        });
        for (number, weight) in inner.weights.iter().enumerate() {
            let inner: Weak<Inner> = Rc::downgrade(&inner);
            weight.on_gradient(move |gpu, _| {
                if let Some(inner) = inner.upgrade() {
                    inner.add(gpu, number);
                }
            });
        }
        Zero { inner, states: RefCell::default(), states_name, _kept: kept }
    }
}

/// How much of each weight is in a rank's part.
fn own(weights: &[Parameter], part: u64, rank: u64) -> Vec<u64> {
    let (from, to) = (rank * part, (rank + 1) * part);
    let mut at = 0;
    let mut own = |weight: &Parameter| {
        let (begin, end) = (at, at + weight.elements());
        at = end;
        end.min(to).saturating_sub(begin.max(from))
    };
    weights.iter().map(&mut own).collect()
}

impl Inner {
    /// A gradient is there: it goes into the bucket, which is emptied first if it has no room.
    fn add(&self, gpu: &Gpu, number: usize) {
        if self.waits_for_last && !self.is_last.get() {
            return;
        }
        let gradients = &mut *self.gradients.borrow_mut();
        let weight = &self.weights[number];
        let elements = weight.elements();
        if gradients.bucket.is_none() {
            gradients.bucket = Some(gpu.tensor(BUCKET, self.dtype, Role::Communication, self.name));
        }
        if gradients.filled + elements > BUCKET {
            self.reduce(gpu, gradients);
        }
        if let Some(bucket) = gradients.bucket.as_ref().filter(|_| elements <= BUCKET) {
            drop(weight.replace_grad(Some(bucket.view(elements))));
        }
        gradients.filling.push(number);
        gradients.filled += elements;
    }

    /// Sums what is in the bucket over the ranks, and keeps what is in this rank's part.
    fn reduce(&self, gpu: &Gpu, gradients: &mut Gradients) {
        let (filling, filled) = (std::mem::take(&mut gradients.filling), std::mem::take(&mut gradients.filled));
        if filling.is_empty() {
            return;
        }
        gpu.work(pace::link(2 * filled * self.dtype.bytes()));
        gpu.scratch(filled * self.dtype.bytes(), Role::Communication, self.name);
        for number in filling {
            let (weight, own) = (&self.weights[number], self.own[number]);
            if own == 0 {
                drop(weight.replace_grad(None));
            } else if self.is_on_host {
                if self.is_last.get() {
                    self.send(gpu, weight.elements(), own, &mut gradients.norms);
                }
                drop(weight.replace_grad(None));
            } else {
                let total = || -> u64 {
                    let in_part = self.weights.iter().zip(&self.own).filter(|(_, own)| **own > 0);
                    in_part.map(|(weight, _)| weight.elements()).sum()
                };
                let make = || gpu.tensor(total(), self.dtype, Role::Gradient, self.name);
                let arrived = gradients.arrived.get_or_insert_with(make);
                drop(weight.replace_grad(Some(arrived.view(weight.elements()))));
            }
        }
    }

    /// A gradient's part goes to the host. Its norm is computed on the way, and whether it is finite.
    fn send(&self, gpu: &Gpu, elements: u64, own: u64, norms: &mut Vec<Tensor>) {
        let make = |elements: u64, dtype: Dtype| gpu.tensor(elements, dtype, Role::Temporary, self.name);
        let norm = {
            let double = make(own, Dtype::F64);
            let norm = make(1, Dtype::F64);
            drop(double);
            norm
        };
        norms.push(norm);
        let float = make(elements, Dtype::F32);
        let is_nan = make(elements, Dtype::U8);
        let is_infinite = {
            let _magnitude = make(elements, Dtype::F32);
            make(elements, Dtype::U8)
        };
        let is_either = make(elements, Dtype::U8);
        let worst = {
            let _numbers = make(elements, Dtype::F32);
            make(1, Dtype::F32)
        };
        gpu.sync_stream();
        drop((worst, is_either, is_infinite, is_nan, float));
        drop(make(own, Dtype::F32));
        gpu.work(pace::host(own * Dtype::F32.bytes()));
    }
}

impl Parallel for Zero {
    fn before_backward(&self, is_last: bool) {
        self.inner.is_last.set(is_last);
    }

    fn finish(&self, gpu: &Gpu) {
        let gradients = &mut *self.inner.gradients.borrow_mut();
        if gradients.bucket.is_none() {
            return;
        }
        self.inner.reduce(gpu, gradients);
        gradients.bucket = None;
        let arrived = gradients.arrived.take();
        gradients.kept = gradients.kept.take().or(arrived);
        for weight in &self.inner.weights {
            drop(weight.replace_grad(None));
        }
    }

    fn step(&self, gpu: &Gpu, _is_clipped: bool) {
        let inner = &*self.inner;
        let make = |elements: u64, dtype: Dtype, role: Role| gpu.tensor(elements, dtype, role, inner.name);
        let kept = inner.gradients.borrow_mut().kept.take();
        if inner.is_on_host {
            let norms = std::mem::take(&mut inner.gradients.borrow_mut().norms);
            gpu.sync();
            release_list(norms);
            gpu.host(pace::update(inner.part));
        } else {
            // The norm is computed whether anything is clipped or not.
            let norm = |own: &u64| {
                let double = make(*own, Dtype::F64, Role::Temporary);
                let norm = make(1, Dtype::F64, Role::Temporary);
                drop(double);
                norm
            };
            let norms: Vec<Tensor> = inner.own.iter().filter(|own| **own > 0).map(norm).collect();
            let stacked = make(norms.len() as u64, Dtype::F64, Role::Temporary);
            let powers = gpu.like(&stacked, Role::Temporary, inner.name);
            let total = make(1, Dtype::F64, Role::Temporary);
            drop((powers, stacked));
            release_list(norms);
            drop(total);
            let gradient = {
                let flat = make(inner.part, inner.dtype, Role::Temporary);
                let gradient = make(inner.part, Dtype::F32, Role::Gradient);
                drop(flat);
                gradient
            };
            drop(kept);
            let mut states = self.states.borrow_mut();
            if states.is_empty() {
                let state = || gpu.like(&gradient, Role::Optimizer, self.states_name);
                states.extend([state(), state()]);
            }
        }
        // Each rank's part is sent to all others, in place.
        gpu.work(pace::link(inner.part * inner.dtype.bytes()));
    }
}
