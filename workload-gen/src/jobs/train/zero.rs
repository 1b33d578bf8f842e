//! DeepSpeed's first and second stage: each rank has all weights in 16 bits, side by side in one buffer, and updates its part of them in 32.
//! Gradients are copied into a bucket, which is summed over the ranks when it is full; a rank keeps those of its part. In the second stage
//! a gradient goes into the bucket as soon as it is there, in each of several backward passes. In the first all wait for the last pass to
//! end, while the bucket is there from the first gradient on.
//!
//! Facts are those of DeepSpeed 0.19 with its defaults (`stage_1_and_2.py`, which is what bf16 takes, too): buckets of 500 million elements,
//! everything on one stream, gradients in the type of the weights, norms in 64 bits, and a norm that is at most 1.

use super::norm::Norms;
use super::pace;
use super::parallel::{Parallel, trained};
use super::plan::{Offload, Plan, Sharing};
use crate::models::Model;
use crate::ops::{release_list, to};
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
    /// The last step's norm, which the engine keeps.
    norm: RefCell<Option<Tensor>>,
    /// What lives as long as the job: the part in 32 bits, the fused optimizer's flag, a buffer for what goes to the host.
    _kept: Vec<Tensor>,
}

struct Inner {
    weights: Vec<Parameter>,
    /// How much of each weight is in this rank's part.
    own: Vec<u64>,
    /// The ranks, from the first to the last, in whose parts each weight is.
    owners: Vec<(u64, u64)>,
    /// Elements of a part, and how many of this rank's belong to no weight.
    part: u64,
    padding: u64,
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
    /// Zeros after the last weight.
    padding: Option<Tensor>,
    /// Norms of what has gone to the host.
    norms: Vec<Tensor>,
}

impl Zero {
    /// Puts the weights side by side, and makes what the optimizer needs.
    pub(super) fn new(gpu: &Gpu, plan: &Plan, model: &dyn Model) -> Zero {
        let (weights, dtype, is_on_host) = (trained(model), plan.dtype, plan.offload != Offload::Nothing);
        let (name, weights_name, states_name) = (gpu.name("gradients"), gpu.name("zero"), gpu.name("adamw"));
        let mut kept = Vec::new();
        if !is_on_host {
            kept.push(gpu.tensor(1, Dtype::I32, Role::Workspace, states_name));
        }
        gpu.empty_cache();
        let all: u64 = weights.iter().map(Parameter::elements).sum();
        let part = all.next_multiple_of(ALIGNMENT * plan.ranks) / plan.ranks;
        let flat = {
            let _padding = gpu.tensor(part * plan.ranks - all, dtype, Role::Temporary, weights_name);
            gpu.tensor(part * plan.ranks, dtype, Role::Parameter, weights_name)
        };
        for weight in &weights {
            drop(weight.replace(flat.view(weight.elements())));
        }
        let copy = gpu.tensor(part, dtype, Role::Temporary, weights_name);
        if is_on_host {
            drop(copy);
            let largest = weights.iter().map(Parameter::elements).max().unwrap_or(0);
            kept.push(gpu.tensor(largest, dtype, Role::Gradient, name));
        } else {
            kept.push(to(gpu, &copy, Dtype::F32, Role::Optimizer, states_name));
            drop(copy);
            // A gradient of zeros, for optimizers that make their states at once.
            gpu.scratch(part * Dtype::F32.bytes(), Role::Gradient, name);
        }
        let (own, owners) = places(&weights, part, plan.rank);
        let inner = Rc::new(Inner {
            padding: part - own.iter().sum::<u64>(),
            own,
            owners,
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
                    inner.arrive(gpu, number);
                }
            });
        }
        Zero { inner, states: RefCell::default(), states_name, norm: RefCell::default(), _kept: kept }
    }
}

/// How much of each weight is in a rank's part, and which ranks' parts each is in.
fn places(weights: &[Parameter], part: u64, rank: u64) -> (Vec<u64>, Vec<(u64, u64)>) {
    let (from, to) = (rank * part, (rank + 1) * part);
    let mut at = 0;
    let place = |weight: &Parameter| {
        let (begin, end) = (at, at + weight.elements());
        at = end;
        let own = end.min(to).saturating_sub(begin.max(from));
        (own, (begin / part.max(1), end.saturating_sub(1) / part.max(1)))
    };
    weights.iter().map(place).unzip()
}

impl Inner {
    fn tensor(&self, gpu: &Gpu, elements: u64, dtype: Dtype, role: Role) -> Tensor {
        gpu.tensor(elements, dtype, role, self.name)
    }

    /// A gradient is there.
    fn arrive(&self, gpu: &Gpu, number: usize) {
        let gradients = &mut *self.gradients.borrow_mut();
        if gradients.bucket.is_none() {
            gradients.bucket = Some(self.tensor(gpu, BUCKET, self.dtype, Role::Communication));
        }
        if !self.waits_for_last {
            self.add(gpu, gradients, number);
        }
    }

    /// A gradient goes into the bucket, which is emptied first if it has no room.
    fn add(&self, gpu: &Gpu, gradients: &mut Gradients, number: usize) {
        let weight = &self.weights[number];
        let elements = weight.elements();
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
        let Some(&first) = filling.first() else { return };
        gpu.work(pace::link(2 * filled * self.dtype.bytes()));
        // What goes to several ranks is in pieces, which are put together; a single piece is summed where it is.
        let owner = self.owners[first].0;
        if filling.iter().any(|&number| self.owners[number] != (owner, owner)) {
            gpu.scratch(filled * self.dtype.bytes(), Role::Communication, self.name);
        }
        for number in filling {
            let (weight, own) = (&self.weights[number], self.own[number]);
            if own == 0 {
                // The first stage leaves them to be let go of all together, which is soon and without an allocation before.
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
                let make = || self.tensor(gpu, total(), self.dtype, Role::Gradient);
                let arrived = gradients.arrived.get_or_insert_with(make);
                drop(weight.replace_grad(Some(arrived.view(weight.elements()))));
            }
        }
    }

    /// A gradient's part goes to the host. Its norm is computed on the way, and whether all of it is finite.
    fn send(&self, gpu: &Gpu, elements: u64, own: u64, norms: &mut Vec<Tensor>) {
        let computed = self.norms(gpu);
        norms.push(computed.one(own));
        let is_broken = computed.is_broken(elements, self.dtype);
        gpu.sync_stream();
        drop(is_broken);
        if self.dtype != Dtype::F32 {
            drop(self.tensor(gpu, own, Dtype::F32, Role::Temporary));
        }
        gpu.work(pace::host(own * Dtype::F32.bytes()));
    }

    fn norms<'g>(&self, gpu: &'g Gpu) -> Norms<'g> {
        Norms { gpu, name: self.name, dtype: Dtype::F32 }
    }

    /// What this rank's gradients are made of.
    fn pieces(&self) -> impl Iterator<Item = u64> {
        self.own.iter().copied().filter(|&own| own > 0)
    }
}

impl Parallel for Zero {
    fn before_backward(&self, is_last: bool) {
        self.inner.is_last.set(is_last);
    }

    fn finish(&self, gpu: &Gpu) {
        let inner = &*self.inner;
        let gradients = &mut *inner.gradients.borrow_mut();
        if gradients.bucket.is_none() || (inner.waits_for_last && !inner.is_last.get()) {
            return;
        }
        if inner.waits_for_last {
            for (number, _) in inner.weights.iter().enumerate().filter(|(_, weight)| weight.grad().is_some()) {
                inner.add(gpu, gradients, number);
            }
        }
        inner.reduce(gpu, gradients);
        if inner.is_last.get() && !inner.is_on_host && inner.padding > 0 {
            gradients.padding = Some(inner.tensor(gpu, inner.padding, inner.dtype, Role::Gradient));
        }
        gradients.bucket = None;
        let arrived = gradients.arrived.take();
        gradients.kept = gradients.kept.take().or(arrived);
        for weight in &inner.weights {
            drop(weight.replace_grad(None));
        }
    }

    fn step(&self, gpu: &Gpu, is_clipped: bool) {
        let inner = &*self.inner;
        let norms = inner.norms(gpu);
        if inner.is_on_host {
            let sent = std::mem::take(&mut inner.gradients.borrow_mut().norms);
            drop(norms.flag());
            gpu.sync();
            drop(norms.number());
            gpu.host(pace::update(inner.part));
            release_list(sent);
        } else {
            self.update(gpu, &norms, is_clipped);
        }
        // Each rank's part is sent to all others, in place.
        gpu.work(pace::link(inner.part * inner.dtype.bytes()));
    }
}

impl Zero {
    /// Looks whether the part's gradients are finite, clips them, and updates the part.
    fn update(&self, gpu: &Gpu, norms: &Norms<'_>, is_clipped: bool) {
        let inner = &*self.inner;
        let (kept, padding) = {
            let mut gradients = inner.gradients.borrow_mut();
            (gradients.kept.take(), gradients.padding.take())
        };
        let pieces = || inner.pieces().chain(padding.as_ref().map(Tensor::elements));
        {
            let broken = norms.number();
            for elements in pieces() {
                drop(norms.is_broken(elements, inner.dtype));
            }
            let is_any = norms.flag();
            drop(broken);
            let byte = norms.flag();
            gpu.sync_stream();
            drop((is_any, byte));
        }
        // The norm of all groups of weights, of which there is one. The host looks at it here and where gradients are clipped.
        let norm = {
            let _of_group = norms.marked(inner.pieces().map(|own| norms.one(own)).collect());
            norms.combined(1)
        };
        let look = || {
            let is_invalid = norms.is_invalid(&norm);
            gpu.sync_stream();
            drop(is_invalid);
        };
        look();
        let unscaled = norms.number();
        let gradient = {
            let flat = (pieces().count() > 1).then(|| inner.tensor(gpu, inner.part, inner.dtype, Role::Temporary));
            let gradient = inner.tensor(gpu, inner.part, Dtype::F32, Role::Gradient);
            drop(flat);
            gradient
        };
        drop((kept, padding));
        if is_clipped {
            look();
            norms.clip();
        }
        let mut states = self.states.borrow_mut();
        if states.is_empty() {
            let state = || gpu.like(&gradient, Role::Optimizer, self.states_name);
            states.extend([state(), state()]);
        }
        drop((gradient, norm));
        drop(self.norm.replace(Some(unscaled)));
    }
}
