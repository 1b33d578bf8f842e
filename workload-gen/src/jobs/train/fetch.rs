//! Weights of which each rank owns a part, gathered module by module: the parameter coordinator of DeepSpeed's third stage
//! (`partitioned_param_coordinator.py`, `partition_parameters.py`).
//!
//! A module's weights are gathered before it runs, and the weights of the next ones with them as soon as the order of modules is known:
//! the first pass records it. They go when the module has run, unless it runs again soon. Gathering happens on a stream of its own, so a
//! weight that goes is recorded on the stream that has used it.

use super::pace::{self, Lead};
use super::plan::Plan;
use crate::ops::{Modules, release_list};
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};
use allocator_core::StreamId;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// Elements that are gathered ahead (`stage3_prefetch_bucket_size`).
const AHEAD: u64 = 50_000_000;
/// Elements of whole weights at which nothing is gathered ahead (`stage3_max_live_parameters`).
const MOST_LIVE: u64 = 1_000_000_000;
/// A weight that is used again before so many elements of other weights stays (`stage3_max_reuse_distance`).
const REUSE: u64 = 1_000_000_000;
/// Elements of a weight that stays from its first use to the step (`stage3_param_persistence_threshold`).
const SMALL: u64 = 100_000;
/// What DeepSpeed's hooks around a module take of the host's time, about, in nanoseconds.
const HOOKS: u64 = 1_000_000;

/// A weight of which a rank owns a part.
pub(super) struct Shard {
    /// The model's weight, whose memory comes and goes.
    pub(super) whole: Parameter,
    /// What it is called.
    pub(super) name: Name,
    /// Elements of a rank's part, padding included.
    pub(super) part: u64,
    pub(super) dtype: Dtype,
    is_on_host: bool,
    /// The memory of the whole weight, and the stream that it was made on.
    memory: RefCell<Option<(Tensor, StreamId)>>,
    is_under_way: Cell<bool>,
    /// The calls of modules that it is whole for.
    users: RefCell<BTreeSet<u64>>,
}

impl Shard {
    /// A weight of `elements` elements, of which each rank owns as many.
    pub(super) fn new(whole: Parameter, name: Name, ranks: u64, is_on_host: bool) -> Shard {
        let (part, dtype) = (whole.elements().div_ceil(ranks), whole.tensor().dtype());
        Shard {
            whole,
            name,
            part,
            dtype,
            is_on_host,
            memory: RefCell::default(),
            is_under_way: Cell::new(false),
            users: RefCell::default(),
        }
    }

    fn elements(&self) -> u64 {
        self.whole.elements()
    }

    /// Whether it is small enough to stay.
    pub(super) fn stays(&self) -> bool {
        self.elements() <= SMALL
    }

    fn is_whole(&self) -> bool {
        self.memory.borrow().is_some() && !self.is_under_way.get()
    }
}

/// The parts of those that are on the host, which are copied on the current stream. The host waits for the copies.
fn bring<'s>(gpu: &Gpu, shards: impl IntoIterator<Item = &'s Shard>) -> Vec<Tensor> {
    let bring = |shard: &Shard| gpu.tensor(shard.part, shard.dtype, Role::Communication, shard.name);
    let brought: Vec<Tensor> = shards.into_iter().filter(|shard| shard.is_on_host).map(bring).collect();
    if !brought.is_empty() {
        gpu.work(pace::host(brought.iter().map(Tensor::bytes).sum()));
        gpu.sync_stream();
    }
    brought
}

/// What has been gathered at once.
struct Gathering {
    weights: Vec<usize>,
    /// What several weights are gathered into, and what parts were copied to from the host.
    buffers: RefCell<Vec<Tensor>>,
    is_done: Cell<bool>,
}

/// What is known of the order of modules.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Unknown,
    Recorded,
    Known,
}

struct State {
    order: Order,
    /// The weights of each module in the order in which modules run, forward and backward.
    modules: Vec<Vec<usize>>,
    /// The modules that have run in this pass.
    step: usize,
    /// Uses of weights that are to come, each with its module's place.
    uses: VecDeque<(usize, usize)>,
    /// The last place that each weight has been gathered for in this pass.
    gathered_for: Vec<Option<usize>>,
    under_way: BTreeMap<usize, Rc<Gathering>>,
    /// Elements of whole weights, as DeepSpeed counts them.
    live: u64,
    /// Calls of modules, which are numbered from 1 on.
    calls: u64,
    /// Those that run forward: each within the one before.
    open: Vec<u64>,
    /// Those that the backward pass has reached and not left, in this order.
    active: Vec<Active>,
}

/// A call of a module in the backward pass.
struct Active {
    call: u64,
    module: Rc<[usize]>,
    /// Frozen weights that modules have used which ran again meanwhile.
    held: BTreeSet<usize>,
}

/// All weights of a model.
pub(super) struct Store {
    pub(super) shards: Vec<Shard>,
    ranks: u64,
    holds_frozen: bool,
    /// Where weights are gathered, and where they are allocated.
    stream: StreamId,
    tokens: Cell<u64>,
    lead: RefCell<Lead>,
    /// Nanoseconds of gathering since a module was launched.
    gathering: Cell<u64>,
    name: Name,
    state: RefCell<State>,
}

impl Store {
    /// Weights of which none is whole.
    pub(super) fn new(gpu: &Gpu, shards: Vec<Shard>, plan: &Plan, stream: StreamId) -> Store {
        let state = State {
            order: Order::Unknown,
            modules: Vec::new(),
            step: 0,
            uses: VecDeque::new(),
            gathered_for: vec![None; shards.len()],
            under_way: BTreeMap::new(),
            live: 0,
            calls: 0,
            open: Vec::new(),
            active: Vec::new(),
        };
        for (number, shard) in shards.iter().enumerate() {
            shard.whole.set_number(number);
        }
        Store {
            shards,
            ranks: plan.ranks,
            holds_frozen: plan.holds_frozen,
            stream,
            tokens: Cell::new(0),
            lead: RefCell::default(),
            gathering: Cell::new(0),
            name: gpu.name("gather"),
            state: RefCell::new(state),
        }
    }

    /// A forward pass begins.
    pub(super) fn begin(&self, gpu: &Gpu, tokens: u64) {
        self.tokens.set(tokens);
        self.land(gpu);
        let state = &mut *self.state.borrow_mut();
        let before = state.order;
        state.order = match before {
            Order::Unknown => Order::Recorded,
            Order::Recorded | Order::Known => Order::Known,
        };
        if state.order == Order::Recorded {
            state.modules.clear();
        }
        let uses = state.modules.iter().enumerate();
        state.uses = uses.flat_map(|(step, module)| module.iter().map(move |&weight| (weight, step))).collect();
        // Until the order is known, the ranks compare what they have seen: its length, then the numbers themselves.
        let compare = |numbers: usize| {
            for count in [1, numbers] {
                gpu.scratch(count as u64 * Dtype::I64.bytes(), Role::Communication, self.name);
            }
        };
        match before {
            Order::Unknown => compare(0),
            Order::Recorded => [state.modules.len(), state.uses.len(), state.uses.len()].into_iter().for_each(compare),
            Order::Known => {}
        }
        state.gathered_for.fill(None);
        (state.step, state.live) = (0, 0);
    }

    /// What is under way arrives, and goes.
    fn land(&self, gpu: &Gpu) {
        while let Some((weight, gathering)) = self.take_under_way() {
            self.arrive(gpu, &gathering);
            self.release(gpu, weight);
        }
    }

    fn take_under_way(&self) -> Option<(usize, Rc<Gathering>)> {
        self.state.borrow_mut().under_way.pop_first()
    }

    /// Compares the module that runs with the one that was recorded, or records it.
    fn follow(&self, gpu: &Gpu, module: &[usize]) {
        let is_other = {
            let state = &mut *self.state.borrow_mut();
            match state.order {
                Order::Unknown => false,
                Order::Recorded => {
                    state.modules.push(module.to_vec());
                    false
                }
                Order::Known => state.modules.get(state.step).is_none_or(|known| known != module),
            }
        };
        if is_other {
            {
                let state = &mut *self.state.borrow_mut();
                state.order = Order::Unknown;
                state.modules.clear();
                state.uses.clear();
            }
            self.land(gpu);
        }
    }

    /// Makes a module's weights whole, and gathers those of the next ones.
    fn fetch(&self, gpu: &Gpu, call: u64, module: &[usize]) {
        self.follow(gpu, module);
        self.gather(gpu, module);
        for &weight in module {
            self.shards[weight].users.borrow_mut().insert(call);
            let gathering = self.state.borrow_mut().under_way.remove(&weight);
            if let Some(gathering) = gathering {
                self.arrive(gpu, &gathering);
            }
        }
        gpu.wait_for(self.stream);
        let ahead = self.ahead(module);
        self.gather(gpu, &ahead);
        self.state.borrow_mut().step += 1;
    }

    /// The weights to gather for the next modules.
    fn ahead(&self, module: &[usize]) -> Vec<usize> {
        let state = &mut *self.state.borrow_mut();
        if state.order != Order::Known {
            return Vec::new();
        }
        let is_new = |weight: &&usize| state.gathered_for[**weight].is_none_or(|step| step < state.step);
        let mut expected = module.iter().filter(is_new).count();
        while expected > 0
            && let Some((weight, step)) = state.uses.pop_front()
        {
            state.gathered_for[weight] = Some(step);
            expected -= 1;
        }
        let room = MOST_LIVE.saturating_sub(state.live).min(AHEAD);
        let (mut ahead, mut elements) = (BTreeSet::new(), 0);
        while elements < room
            && let Some((weight, step)) = state.uses.pop_front()
        {
            let shard = &self.shards[weight];
            state.gathered_for[weight] = state.gathered_for[weight].max(Some(step));
            let is_absent = shard.memory.borrow().is_none() && !shard.is_under_way.get();
            if is_absent && ahead.insert(weight) {
                elements += shard.elements();
            }
        }
        ahead.into_iter().collect()
    }

    /// Begins to gather those of the weights that are not there.
    fn gather(&self, gpu: &Gpu, weights: &[usize]) {
        let is_absent = |&weight: &usize| {
            let shard = &self.shards[weight];
            shard.memory.borrow().is_none() && !shard.is_under_way.get()
        };
        let mut weights: Vec<usize> = weights.iter().copied().filter(is_absent).collect();
        weights.sort_unstable();
        if weights.is_empty() {
            return;
        }
        let parts = || weights.iter().map(|&weight| &self.shards[weight]);
        self.state.borrow_mut().live += parts().map(Shard::elements).sum::<u64>();
        let all = |dtype: Dtype| {
            let of_type = parts().filter(|shard| shard.dtype == dtype);
            self.ranks * of_type.map(|shard| shard.part).sum::<u64>()
        };
        let buffers = gpu.on_stream(self.stream, || {
            let buffers = match *weights.as_slice() {
                // One weight is gathered into its own memory.
                [weight] => {
                    let shard = &self.shards[weight];
                    let memory = gpu.tensor(all(shard.dtype), shard.dtype, Role::Parameter, shard.name);
                    *shard.memory.borrow_mut() = Some((memory, self.stream));
                    bring(gpu, [shard])
                }
                _ => {
                    let types = [Dtype::F16, Dtype::Bf16, Dtype::F32].into_iter().filter(|&dtype| all(dtype) > 0);
                    let gather = |dtype| {
                        let flat = gpu.tensor(all(dtype), dtype, Role::Communication, self.name);
                        release_list(bring(gpu, parts().filter(|shard| shard.dtype == dtype)));
                        flat
                    };
                    types.map(gather).collect()
                }
            };
            let bytes = |shard: &Shard| shard.part * shard.dtype.bytes();
            let ns = pace::link(self.ranks * parts().map(bytes).sum::<u64>());
            gpu.work(ns);
            self.gathering.set(self.gathering.get() + ns);
            buffers
        });
        let gathering = Gathering { weights, buffers: RefCell::new(buffers), is_done: Cell::new(false) };
        let gathering = Rc::new(gathering);
        for &weight in &gathering.weights {
            self.shards[weight].is_under_way.set(true);
            self.state.borrow_mut().under_way.insert(weight, gathering.clone());
        }
    }

    /// Takes apart what has been gathered. The buffer lives until the last of its weights has been asked for.
    fn arrive(&self, gpu: &Gpu, gathering: &Gathering) {
        if gathering.is_done.replace(true) {
            return;
        }
        if let [weight] = *gathering.weights.as_slice() {
            drop(gathering.buffers.take());
            self.shards[weight].is_under_way.set(false);
            return;
        }
        gpu.on_stream(self.stream, || {
            for &weight in &gathering.weights {
                let shard = &self.shards[weight];
                let memory = gpu.tensor(shard.elements(), shard.dtype, Role::Parameter, shard.name);
                *shard.memory.borrow_mut() = Some((memory, self.stream));
                shard.is_under_way.set(false);
            }
        });
    }

    /// A whole weight goes, if no module uses it.
    fn release(&self, gpu: &Gpu, weight: usize) {
        let shard = &self.shards[weight];
        if !shard.users.borrow().is_empty() || !shard.is_whole() {
            return;
        }
        if let Some((memory, stream)) = shard.memory.take() {
            if stream != gpu.stream() {
                gpu.record_stream(&memory, gpu.stream());
            }
            let state = &mut *self.state.borrow_mut();
            state.live = state.live.saturating_sub(shard.elements());
        }
    }

    /// A module is about to run. If that is in a backward pass, because it runs again, its frozen weights stay for as long as the module
    /// that the pass has reached last, as nobody computes their gradients, after which they would go. With the reentrant form of
    /// checkpoints that is the model, and they stay until the pass is over.
    fn begin_forward(&self, gpu: &Gpu, module: &[usize]) -> u64 {
        let call = {
            let state = &mut *self.state.borrow_mut();
            state.calls += 1;
            state.open.push(state.calls);
            state.calls
        };
        self.fetch(gpu, call, module);
        if self.holds_frozen
            && let Some(active) = self.state.borrow_mut().active.last_mut()
        {
            for &weight in module.iter().filter(|&&weight| !self.shards[weight].whole.is_trained()) {
                active.held.insert(weight);
                self.shards[weight].users.borrow_mut().insert(active.call);
            }
        }
        call
    }

    fn end_forward(&self, gpu: &Gpu, module: &[usize]) -> u64 {
        let call = self.state.borrow_mut().open.pop().unwrap_or(0);
        self.leave(gpu, call, module, &BTreeSet::new());
        call
    }

    fn begin_backward(&self, gpu: &Gpu, call: u64, module: &Rc<[usize]>) {
        let active = Active { call, module: module.clone(), held: BTreeSet::new() };
        self.state.borrow_mut().active.push(active);
        self.fetch(gpu, call, module);
    }

    fn end_backward(&self, gpu: &Gpu, call: u64, module: &[usize]) {
        let held = {
            let active = &mut self.state.borrow_mut().active;
            let place = active.iter().rposition(|active| active.call == call);
            place.map(|place| active.remove(place).held).unwrap_or_default()
        };
        self.leave(gpu, call, module, &held);
    }

    /// A module has run: its weights go, unless they are used again soon, and those that it has held.
    fn leave(&self, gpu: &Gpu, call: u64, module: &[usize], held: &BTreeSet<usize>) {
        if module.is_empty() && held.is_empty() {
            return;
        }
        let stays = {
            let state = self.state.borrow();
            let mut stays: BTreeSet<usize> = BTreeSet::new();
            if state.order == Order::Known {
                let is_gathered = |weight: &usize| state.gathered_for[*weight].is_some_and(|step| step > state.step);
                let is_kept = |weight: &usize| self.shards[*weight].stays() || is_gathered(weight);
                stays.extend(module.iter().filter(|weight| is_kept(weight)));
                let mut passed = 0;
                for next in state.modules.iter().skip(state.step) {
                    if passed >= REUSE {
                        break;
                    }
                    stays.extend(next.iter().filter(|weight| module.contains(weight)));
                    passed += next.iter().map(|&weight| self.shards[weight].elements()).sum::<u64>();
                }
            }
            stays
        };
        for &weight in module.iter().chain(held) {
            self.shards[weight].users.borrow_mut().remove(&call);
            let is_held = held.contains(&weight) && !self.shards[weight].stays();
            if is_held || !stays.contains(&weight) {
                self.release(gpu, weight);
            }
        }
    }

    /// What a backward pass leaves goes: a module whose input needs no gradient never hears that it is over.
    pub(super) fn release_left_over(&self, gpu: &Gpu) {
        while let Some(Active { call, module, held }) = self.take_active() {
            for &weight in module.iter().chain(&held) {
                self.shards[weight].users.borrow_mut().remove(&call);
                if !self.shards[weight].stays() {
                    self.release(gpu, weight);
                }
            }
        }
    }

    fn take_active(&self) -> Option<Active> {
        self.state.borrow_mut().active.pop()
    }

    /// All whole weights go, before they are updated.
    pub(super) fn release_all(&self, gpu: &Gpu) {
        for (weight, shard) in self.shards.iter().enumerate() {
            let gathering = self.state.borrow_mut().under_way.remove(&weight);
            if let Some(gathering) = gathering {
                self.arrive(gpu, &gathering);
            }
            shard.users.borrow_mut().clear();
            self.release(gpu, weight);
        }
    }

    /// Small weights are gathered again after they were updated, on the current stream.
    pub(super) fn gather_small(&self, gpu: &Gpu) {
        let small = || self.shards.iter().filter(|shard| shard.stays());
        let brought = bring(gpu, small());
        for shard in small() {
            let memory = gpu.tensor(shard.part * self.ranks, shard.dtype, Role::Parameter, shard.name);
            *shard.memory.borrow_mut() = Some((memory, gpu.stream()));
        }
        release_list(brought);
        gpu.sync();
        self.lead.borrow_mut().sync();
    }

    /// The module runs so many times as long as its forward pass.
    fn work(&self, gpu: &Gpu, module: &[usize], times: u64) {
        if module.is_empty() {
            // It launches something, too, but little.
            gpu.host(self.lead.borrow_mut().launch(0, 0));
            return;
        }
        let elements = module.iter().map(|&weight| self.shards[weight].elements()).sum();
        let work = times * pace::pass(elements, self.tokens.get());
        gpu.work(work);
        // Where gathering takes longer than the computation, the device waits for it.
        let work = work.max(self.gathering.take());
        gpu.host(self.lead.borrow_mut().launch(work, HOOKS));
    }
}

/// The store as what happens around modules.
pub(super) struct Around(pub(super) Rc<Store>);

fn numbers(weights: &[&Parameter]) -> Rc<[usize]> {
    weights.iter().map(|weight| weight.number()).collect()
}

impl Modules for Around {
    fn enter(&self, gpu: &Gpu, weights: &[&Parameter], x: &Tensor) -> Tensor {
        let (store, module) = (self.0.clone(), numbers(weights));
        let call = store.begin_forward(gpu, &module);
        store.work(gpu, &module, 1);
        let tape = gpu.tape(store.name, &[x]);
        tape.record(x.detach(), move |gpu, grad| {
            store.end_backward(gpu, call, &module);
            vec![Some(grad)]
        })
    }

    fn leave(&self, gpu: &Gpu, weights: &[&Parameter], output: Tensor) -> Tensor {
        let (store, module) = (self.0.clone(), numbers(weights));
        let call = store.end_forward(gpu, &module);
        let tape = gpu.tape(store.name, &[&output]);
        tape.record(output.detach(), move |gpu, grad| {
            store.begin_backward(gpu, call, &module);
            store.work(gpu, &module, 2);
            vec![Some(grad)]
        })
    }
}
