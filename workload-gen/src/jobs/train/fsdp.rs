//! Fully sharded data parallelism as `torch.distributed.fsdp.fully_shard` does it (FSDP2): each layer is a group of weights, and what lies
//! around the layers another. A rank owns a shard of each weight in the type that the optimizer works in. Before a group is used, its
//! shards are gathered in the type that it computes in; afterwards the whole weights go again, and in the backward pass the group's
//! gradients are summed over the ranks, of which each keeps its shards.
//!
//! Facts are those of PyTorch 2.11 (`_fsdp_param_group.py`, `_fsdp_collectives.py`): copies in and collectives run on streams of their
//! own, the next group's shards are gathered while this one computes, and no tensor is recorded on a second stream. Instead each buffer
//! is kept until the host knows that a stream waits for its last reader.

use super::pace;
use super::parallel::{Parallel, Update};
use super::plan::Plan;
use crate::models::{Model, Part};
use crate::ops::{chunk_cat, split_copy};
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};
use allocator_core::StreamId;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The type that weights are gathered and used in, and gradients are summed in: `MixedPrecisionPolicy(param_dtype=torch.bfloat16)`.
const COMPUTE: Dtype = Dtype::Bf16;
/// Where shards are copied into the buffer that a collective gathers into, which is where that buffer is allocated.
const COPY_IN: StreamId = StreamId(1);
/// Where gradients are summed, and where the sums are allocated.
const REDUCE: StreamId = StreamId(2);
/// Where weights are gathered. Nothing is allocated on it.
const GATHER: StreamId = StreamId(3);

/// A model whose layers are sharded.
pub(super) struct Fsdp {
    context: Rc<Context>,
    /// The weights around the layers first.
    groups: Vec<Rc<Group>>,
    update: Update,
}

/// What all groups share.
struct Context {
    ranks: u64,
    tokens: Cell<u64>,
    /// The groups that have run in this forward pass, in order.
    order: RefCell<Vec<Rc<Group>>>,
    /// What the last group of the forward pass was gathered into: it is kept until the next one has been gathered.
    gathered: RefCell<Option<Tensor>>,
    /// What the last group's gradients were copied into: it is kept until the next one's are.
    reduced: RefCell<Option<Tensor>>,
}

/// Weights that are gathered together.
struct Group {
    weights: Vec<Weight>,
    name: Name,
    /// The gathered shards, until they are copied to the weights.
    gathered: RefCell<Option<Tensor>>,
    /// The memory of the whole weights.
    whole: RefCell<Vec<Tensor>>,
    /// Where it stands in the order of the forward pass, once for each time that it ran.
    places: RefCell<Vec<usize>>,
    state: Cell<State>,
}

/// How far a group has come in a backward pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Begun,
    Done,
}

struct Weight {
    /// The model's weight, whose memory comes and goes.
    whole: Parameter,
    /// What the optimizer has.
    shard: Parameter,
    /// Elements of a shard with its padding: ranks get whole rows, all as many.
    padded: u64,
}

impl Weight {
    /// Makes the rank's shard of a weight. The whole is the caller's to drop.
    fn new(gpu: &Gpu, whole: &Parameter, ranks: u64, rank: u64, group: Name) -> (Weight, Tensor) {
        let columns = whole.columns();
        let rows = whole.elements() / columns;
        let each = rows.div_ceil(ranks);
        let own = rows.saturating_sub(rank * each).min(each);
        let (name, dtype) = (whole.name().unwrap_or(group), whole.tensor().dtype());
        let memory = gpu.tensor(each * columns, dtype, Role::Parameter, name).view(own * columns);
        let shard = if whole.is_trained() { Parameter::trained(gpu, memory, name) } else { Parameter::frozen(memory) };
        let old = whole.replace(gpu.hollow(whole.elements(), COMPUTE));
        (Weight { whole: whole.clone(), shard, padded: each * columns }, old)
    }

    /// Whether its shard has another type than the computation.
    fn is_cast(&self) -> bool {
        self.shard.tensor().dtype() != COMPUTE
    }
}

impl Fsdp {
    /// Shards the model's layers, and then what is around them.
    pub(super) fn new(gpu: &Gpu, plan: &Plan, model: &dyn Model) -> Fsdp {
        let group = |parameters: &[Parameter], name: String| {
            let name = gpu.name(&name);
            let shard = |whole: &Parameter| Weight::new(gpu, whole, plan.ranks, plan.rank, name);
            let (weights, old): (Vec<Weight>, Vec<Tensor>) = parameters.iter().map(shard).unzip();
            drop(old);
            Rc::new(Group {
                weights,
                name,
                gathered: RefCell::default(),
                whole: RefCell::default(),
                places: RefCell::default(),
                state: Cell::new(State::Idle),
            })
        };
        let layer = |layer: usize| group(model.parameters(Part::Layer(layer)), format!("h.{layer}.fsdp"));
        let layers: Vec<Rc<Group>> = (0..model.layers()).map(layer).collect();
        let (before, after) = (model.parameters(Part::Embedding), model.parameters(Part::Head));
        let around = group(&[before, after].concat(), "fsdp".to_string());
        let mut trained: Vec<Parameter> = Vec::new();
        let shards = |group: &Group| -> Vec<Parameter> {
            group.weights.iter().map(|weight| weight.shard.clone()).filter(Parameter::is_trained).collect()
        };
        // The optimizer sees the weights in the model's order.
        let outer = shards(&around);
        let inputs = before.iter().filter(|weight| weight.is_trained()).count();
        trained.extend_from_slice(&outer[..inputs]);
        trained.extend(layers.iter().flat_map(|layer| shards(layer)));
        trained.extend_from_slice(&outer[inputs..]);
        let mut groups = vec![around];
        groups.extend(layers);
        let context = Rc::new(Context {
            ranks: plan.ranks,
            tokens: Cell::new(0),
            order: RefCell::default(),
            gathered: RefCell::default(),
            reduced: RefCell::default(),
        });
        Fsdp { context, groups, update: Update::new(gpu, trained, true) }
    }

    fn layer(&self, layer: usize) -> &Rc<Group> {
        &self.groups[layer + 1]
    }
}

impl Parallel for Fsdp {
    fn begin(&self, gpu: &Gpu, tokens: u64) {
        self.context.tokens.set(tokens);
        // The shards have been updated on the default stream.
        for stream in [COPY_IN, GATHER] {
            gpu.on_stream(stream, || gpu.wait_for(StreamId::DEFAULT));
        }
        self.groups[0].use_forward(gpu, &self.context);
    }

    fn enter(&self, gpu: &Gpu, layer: usize, x: &Tensor) -> Tensor {
        let group = self.layer(layer);
        group.use_forward(gpu, &self.context);
        gpu.work(pace::pass(group.elements(), self.context.tokens.get()));
        let (group, context) = (group.clone(), self.context.clone());
        let tape = gpu.tape(group.name, &[x]);
        tape.record(x.detach(), move |gpu, grad| {
            group.reduce(gpu, &context);
            vec![Some(grad)]
        })
    }

    fn leave(&self, gpu: &Gpu, layer: usize, output: Tensor) -> Tensor {
        let group = self.layer(layer);
        group.release();
        group.end_forward(gpu, &self.context, output)
    }

    fn end(&self, gpu: &Gpu, loss: Tensor) -> Tensor {
        let loss = self.groups[0].end_forward(gpu, &self.context, loss);
        drop(self.context.gathered.take());
        loss
    }

    fn finish(&self, gpu: &Gpu) {
        for group in &self.groups {
            if group.state.replace(State::Idle) != State::Done {
                group.reduce(gpu, &self.context);
                group.state.set(State::Idle);
            }
            group.places.borrow_mut().clear();
            // A group that was gathered for nothing.
            drop(group.gathered.take());
        }
        self.context.order.borrow_mut().clear();
        gpu.wait_for(REDUCE);
        drop(self.context.reduced.take());
    }

    fn step(&self, gpu: &Gpu, is_clipped: bool) {
        self.update.step(gpu, is_clipped);
    }
}

impl Group {
    fn elements(&self) -> u64 {
        self.weights.iter().map(|weight| weight.whole.elements()).sum()
    }

    fn padded(&self) -> u64 {
        self.weights.iter().map(|weight| weight.padded).sum()
    }

    fn is_whole(&self) -> bool {
        !self.whole.borrow().is_empty()
    }

    /// Gathers the shards, unless that has been done.
    fn gather(&self, gpu: &Gpu, context: &Context) {
        if self.is_whole() || self.gathered.borrow().is_some() {
            return;
        }
        let output = gpu.on_stream(COPY_IN, || {
            let cast: u64 = self.weights.iter().filter(|weight| weight.is_cast()).map(|weight| weight.padded).sum();
            let copies = gpu.tensor(cast, COMPUTE, Role::Communication, self.name);
            let output = gpu.tensor(context.ranks * self.padded(), COMPUTE, Role::Communication, self.name);
            drop(copies);
            output
        });
        gpu.on_stream(GATHER, || {
            gpu.wait_for(COPY_IN);
            gpu.work(pace::link(output.bytes()));
        });
        *self.gathered.borrow_mut() = Some(output);
    }

    /// Copies what has been gathered to the whole weights. Returns the buffer.
    fn copy_out(&self, gpu: &Gpu, context: &Context) -> Option<Tensor> {
        let gathered = self.gathered.take()?;
        gpu.wait_for(GATHER);
        let whole = |weight: &Weight| {
            let name = weight.whole.name().unwrap_or(self.name);
            gpu.tensor(context.ranks * weight.padded, COMPUTE, Role::Parameter, name)
        };
        *self.whole.borrow_mut() = self.weights.iter().map(whole).collect();
        let shards: Vec<u64> = self.weights.iter().map(|weight| weight.padded * COMPUTE.bytes()).collect();
        split_copy(gpu, &shards, context.ranks, self.name);
        for stream in [COPY_IN, GATHER] {
            gpu.on_stream(stream, || gpu.wait_for(StreamId::DEFAULT));
        }
        Some(gathered)
    }

    /// Makes the weights whole for the forward pass. The buffer is kept until the next group's has been copied out, so that the next
    /// copy in, which does not wait for this copy out, finds other memory.
    fn use_forward(&self, gpu: &Gpu, context: &Context) {
        self.gather(gpu, context);
        let before = context.gathered.take();
        *context.gathered.borrow_mut() = self.copy_out(gpu, context);
        drop(before);
    }

    /// The group has run. The backward pass makes it whole again when it comes to `output`.
    fn end_forward(self: &Rc<Self>, gpu: &Gpu, context: &Rc<Context>, output: Tensor) -> Tensor {
        let tape = gpu.tape(self.name, &[&output]);
        if !tape.is_recording() {
            return output;
        }
        {
            let mut order = context.order.borrow_mut();
            self.places.borrow_mut().push(order.len());
            order.push(self.clone());
        }
        let (group, context) = (self.clone(), context.clone());
        tape.record(output.detach(), move |gpu, grad| {
            group.use_backward(gpu, &context);
            vec![Some(grad)]
        })
    }

    /// Makes the weights whole for the backward pass, and gathers the next group's shards.
    fn use_backward(&self, gpu: &Gpu, context: &Context) {
        if self.state.replace(State::Begun) == State::Begun {
            return;
        }
        self.gather(gpu, context);
        drop(self.copy_out(gpu, context));
        let next = self.places.borrow_mut().pop().and_then(|place| place.checked_sub(1));
        let next = next.and_then(|place| context.order.borrow().get(place).cloned());
        if let Some(next) = next {
            next.gather(gpu, context);
        }
    }

    /// The whole weights go.
    fn release(&self) {
        drop(self.whole.take());
    }

    /// The group's gradients are there: they are summed over the ranks, and become those of the shards.
    fn reduce(&self, gpu: &Gpu, context: &Context) {
        self.state.set(State::Done);
        let with_grad = |weight: &Weight| weight.whole.replace_grad(None);
        let mut grads: Vec<Tensor> = self.weights.iter().filter_map(with_grad).collect();
        self.release();
        let Some(last) = grads.pop() else { return };
        gpu.work(2 * pace::pass(self.elements(), context.tokens.get()));
        gpu.wait_for(REDUCE);
        drop(context.reduced.take());
        let reduced: Vec<&Weight> = self.weights.iter().filter(|weight| weight.shard.is_trained()).collect();
        let padded: u64 = reduced.iter().map(|weight| weight.padded).sum();
        let input = gpu.tensor(context.ranks * padded, COMPUTE, Role::Communication, self.name);
        let shards: Vec<u64> = reduced.iter().map(|weight| weight.padded * COMPUTE.bytes()).collect();
        chunk_cat(gpu, &shards, self.name);
        while grads.pop().is_some() {}
        gpu.on_stream(REDUCE, || {
            gpu.wait_for(StreamId::DEFAULT);
            let mut sum = gpu.tensor(padded, COMPUTE, Role::Communication, self.name);
            gpu.work(pace::link(input.bytes()));
            let dtype = reduced[0].shard.tensor().dtype();
            if dtype != COMPUTE {
                sum = gpu.tensor(padded, dtype, Role::Gradient, self.name);
            }
            for weight in &reduced {
                // A gradient of an earlier batch is added to.
                if weight.shard.grad().is_none() {
                    drop(weight.shard.replace_grad(Some(sum.view(weight.shard.elements()))));
                }
            }
        });
        *context.reduced.borrow_mut() = Some(input);
        drop(last);
    }
}
