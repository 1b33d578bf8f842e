//! The graph that a backward pass walks: who made what, and what was kept for it.
//!
//! The order is PyTorch's (`torch/csrc/autograd/engine.cpp`): of the nodes whose gradients are all there, the one that was
//! made last goes first, and gradients of weights go before all. A node gives up what it saved as soon as it has run.

use super::checkpoint::Mode;
use super::gpu::Gpu;
use super::label::{Name, Role};
use super::storage::{Storage, Tensor};
use allocator_core::StreamId;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fmt;
use std::rc::{Rc, Weak};

/// Gradients: one for each output that a node had, or for each input of its operation; `None` where there is none.
pub type Grads = Vec<Option<Tensor>>;

type Backward = Box<dyn FnOnce(&Gpu, Grads) -> Grads>;

/// Where a gradient goes: to which output of which node.
#[derive(Clone)]
pub(super) struct Edge {
    node: Rc<Node>,
    output: u32,
}

impl fmt::Debug for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} output {}", self.node.number, self.output)
    }
}

/// An operation that was recorded.
pub struct Node {
    /// Nodes are numbered as they are made; [`Node::GRADIENT`] stands for a weight's gradient.
    number: u64,
    /// Where the gradients of its inputs go.
    inputs: RefCell<Vec<Option<Edge>>>,
    work: RefCell<Work>,
    stream: StreamId,
    name: Name,
    /// What has come for its outputs in the pass of that number, and how many are still awaited.
    grads: RefCell<Grads>,
    awaited: Cell<u32>,
    pass: Cell<u64>,
    /// What lives as long as the node, whether it has run or not.
    _kept: Option<Rc<dyn Any>>,
}

enum Work {
    Run(Backward),
    Gradient(Weak<Inner>),
    /// The same for a tensor that nobody but the graph owns.
    Leaf(Parameter),
    Done,
}

impl Node {
    const GRADIENT: u64 = u64::MAX;

    fn gradient(gpu: &Gpu, work: Work, name: Name) -> Node {
        Node {
            number: Node::GRADIENT,
            inputs: RefCell::default(),
            work: RefCell::new(work),
            stream: gpu.stream(),
            name,
            grads: RefCell::default(),
            awaited: Cell::new(0),
            pass: Cell::new(0),
            _kept: None,
        }
    }

    fn run(&self, gpu: &Gpu, grads: Grads) -> Grads {
        let leaf = match &*self.work.borrow() {
            Work::Gradient(parameter) => Some(parameter.upgrade().map(Parameter)),
            Work::Leaf(parameter) => Some(Some(parameter.clone())),
            Work::Run(_) | Work::Done => None,
        };
        if let Some(parameter) = leaf {
            if let (Some(parameter), Some(mut grad)) = (parameter, grads.into_iter().next().flatten()) {
                grad.edge = None;
                parameter.accumulate(gpu, grad);
            }
            return Vec::new();
        }
        match self.work.replace(Work::Done) {
            Work::Run(backward) => backward(gpu, grads),
            Work::Gradient(_) | Work::Leaf(_) | Work::Done => Vec::new(),
        }
    }

    /// Adds a gradient to what has come for an output. A sum goes where the first of them lies, if that is nobody else's.
    fn add(&self, gpu: &Gpu, output: u32, grad: Tensor) {
        let before = {
            let mut grads = self.grads.borrow_mut();
            let place = output as usize;
            if grads.len() <= place {
                grads.resize(place + 1, None);
            }
            match grads[place].take() {
                None => {
                    grads[place] = Some(grad);
                    return;
                }
                Some(before) => before,
            }
        };
        let sum = if before.is_sole_owner() { before } else { gpu.like(&before, Role::Gradient, self.name) };
        self.grads.borrow_mut()[output as usize] = Some(sum);
    }
}

impl Drop for Node {
    /// A graph is as deep as a model, and longer than a stack: its nodes are taken apart one by one.
    fn drop(&mut self) {
        let mut edges = std::mem::take(self.inputs.get_mut());
        while let Some(edge) = edges.pop() {
            if let Some(Edge { node, .. }) = edge
                && let Some(mut node) = Rc::into_inner(node)
            {
                edges.append(node.inputs.get_mut());
            }
        }
    }
}

struct Inner {
    /// Before the memory, as it goes first when a weight dies.
    grad: RefCell<Option<Tensor>>,
    tensor: RefCell<Tensor>,
    /// Runs after a gradient has come.
    hook: RefCell<Option<Hook>>,
    node: RefCell<Option<Rc<Node>>>,
    /// A copy in another type that is used for a while in its place.
    cast: RefCell<Option<Tensor>>,
    /// What it is called, if it is not trained; else its gradient's node knows.
    name: Cell<Option<Name>>,
    /// Elements of a row.
    columns: Cell<u64>,
    /// What whoever manages the weights knows it by.
    number: Cell<usize>,
}

type Hook = Rc<dyn Fn(&Gpu, &Parameter)>;

/// A weight: memory that stays, and a gradient that comes and goes. Clones are the same weight.
#[derive(Clone)]
pub struct Parameter(Rc<Inner>);

impl Parameter {
    /// A weight that is trained.
    pub fn trained(gpu: &Gpu, tensor: Tensor, name: Name) -> Parameter {
        let parameter = Parameter::frozen(tensor);
        let node = Node::gradient(gpu, Work::Gradient(Rc::downgrade(&parameter.0)), name);
        *parameter.0.node.borrow_mut() = Some(Rc::new(node));
        parameter
    }

    /// A weight that stays as it is.
    pub fn frozen(tensor: Tensor) -> Parameter {
        Parameter(Rc::new(Inner {
            tensor: RefCell::new(tensor),
            grad: RefCell::default(),
            hook: RefCell::default(),
            node: RefCell::default(),
            cast: RefCell::default(),
            name: Cell::new(None),
            columns: Cell::new(1),
            number: Cell::new(0),
        }))
    }

    /// Says that it is a matrix of rows of so many elements, and not a vector.
    pub fn set_columns(&self, columns: u64) {
        self.0.columns.set(columns.max(1));
    }

    /// Elements of a row; 1 for a vector.
    pub fn columns(&self) -> u64 {
        self.0.columns.get()
    }

    /// Gives it a number, for whoever manages the weights.
    pub fn set_number(&self, number: usize) {
        self.0.number.set(number);
    }

    /// The number that it was given last.
    pub fn number(&self) -> usize {
        self.0.number.get()
    }

    /// Gives it a name.
    pub fn named(self, name: Name) -> Parameter {
        self.0.name.set(Some(name));
        self
    }

    /// What it is called, if it has a name or is trained.
    pub fn name(&self) -> Option<Name> {
        self.0.name.get().or_else(|| self.0.node.borrow().as_ref().map(|node| node.name))
    }

    /// The weight as an operation's input.
    pub fn tensor(&self) -> Tensor {
        let mut tensor = self.0.tensor.borrow().clone();
        tensor.edge = self.0.node.borrow().as_ref().map(|node| Edge { node: node.clone(), output: 0 });
        tensor
    }

    /// Puts other memory in its place, and returns the old.
    pub fn replace(&self, tensor: Tensor) -> Tensor {
        self.0.tensor.replace(tensor)
    }

    /// The copy in another type that is in use.
    pub fn cast(&self) -> Option<Tensor> {
        self.0.cast.borrow().clone()
    }

    /// Sets the copy in another type, or lets it go.
    pub fn set_cast(&self, cast: Option<Tensor>) {
        let before = self.0.cast.replace(cast);
        drop(before);
    }

    /// Whether it is trained.
    pub fn is_trained(&self) -> bool {
        self.0.node.borrow().is_some()
    }

    /// Elements of the weight.
    pub fn elements(&self) -> u64 {
        self.0.tensor.borrow().elements()
    }

    /// Its gradient.
    pub fn grad(&self) -> Option<Tensor> {
        self.0.grad.borrow().clone()
    }

    /// Sets its gradient, and returns the old.
    pub fn replace_grad(&self, grad: Option<Tensor>) -> Option<Tensor> {
        self.0.grad.replace(grad)
    }

    /// Has `hook` run each time that a gradient has come.
    pub fn on_gradient(&self, hook: impl Fn(&Gpu, &Parameter) + 'static) {
        *self.0.hook.borrow_mut() = Some(Rc::new(hook));
    }

    /// A first gradient is kept as it is, if it is nobody else's, and copied otherwise; a later one is added to it.
    fn accumulate(&self, gpu: &Gpu, grad: Tensor) {
        let is_first = self.0.grad.borrow().is_none();
        if is_first {
            let grad = if grad.is_sole_handle() {
                grad
            } else {
                let name = self.0.node.borrow().as_ref().map(|node| node.name);
                name.map_or(grad.clone(), |name| gpu.like(&grad, Role::Gradient, name))
            };
            *self.0.grad.borrow_mut() = Some(grad);
        }
        let hook = self.0.hook.borrow().clone();
        if let Some(hook) = hook {
            hook(gpu, self);
        }
    }
}

/// Has a backward pass make a gradient for a tensor that is nobody's output: `requires_grad_(True)`. The graph owns both,
/// until it dies itself.
pub fn leaf(gpu: &Gpu, tensor: Tensor, name: Name) -> Tensor {
    let node = Node::gradient(gpu, Work::Leaf(Parameter::frozen(tensor.detach())), name);
    tensor.with_edge(Some(Edge { node: Rc::new(node), output: 0 }))
}

/// What all graphs of a device share.
#[derive(Default)]
pub(super) struct GraphState {
    nodes: Cell<u64>,
    passes: Cell<u64>,
    is_off: Cell<bool>,
    pub(super) modes: RefCell<Vec<Mode>>,
    /// What the node that runs now has unpacked. It is given up when the node is done.
    unpacked: RefCell<Vec<Saved>>,
}

/// Something that an operation keeps for the backward pass.
#[derive(Debug)]
pub enum Saved {
    /// Not kept: no graph is recorded.
    Nothing,
    /// Kept alive.
    Held(Rc<Storage>),
    /// Made again when it is needed: which of the checkpoint's.
    Recomputed(Rc<super::checkpoint::Frame>, usize),
}

impl Saved {
    /// The memory, made again if need be. What was kept since the forward pass lives until the node has given up its
    /// gradients, too; what was made again dies with the caller's handle.
    pub fn unpack(self, gpu: &Gpu) -> Option<Rc<Storage>> {
        let memory = match &self {
            Saved::Nothing => return None,
            Saved::Held(storage) => Some(storage.clone()),
            Saved::Recomputed(frame, at) => frame.unpack(gpu, *at),
        };
        gpu.graph().unpacked.borrow_mut().push(self);
        memory
    }
}

/// What an operation does with its graph: made before its outputs, so that it knows what to save.
pub struct Tape<'g> {
    gpu: &'g Gpu,
    inputs: Vec<Option<Edge>>,
    number: u64,
    name: Name,
    kept: Option<Rc<dyn Any>>,
}

impl Gpu {
    /// Begins to record an operation on `inputs`, unless none of them needs a gradient or nothing is recorded now.
    pub fn tape(&self, name: Name, inputs: &[&Tensor]) -> Tape<'_> {
        let state = self.graph();
        if state.is_off.get() || inputs.iter().all(|input| input.edge.is_none()) {
            return Tape { gpu: self, inputs: Vec::new(), number: 0, name, kept: None };
        }
        let number = state.nodes.get() + 1;
        state.nodes.set(number);
        Tape { gpu: self, inputs: inputs.iter().map(|input| input.edge.clone()).collect(), number, name, kept: None }
    }

    /// Runs `body` without recording graphs: `no_grad`.
    pub fn no_grad<T>(&self, body: impl FnOnce() -> T) -> T {
        self.set_recording(false, body)
    }

    pub(super) fn set_recording<T>(&self, is_on: bool, body: impl FnOnce() -> T) -> T {
        let before = self.graph().is_off.replace(!is_on);
        let result = body();
        self.graph().is_off.set(before);
        result
    }

    /// Whether operations are recorded now.
    pub fn is_recording(&self) -> bool {
        !self.graph().is_off.get()
    }
}

impl Tape<'_> {
    /// Whether there will be a backward pass.
    pub fn is_recording(&self) -> bool {
        !self.inputs.is_empty()
    }

    /// Whether the input of that number needs a gradient.
    pub fn needs(&self, input: usize) -> bool {
        self.inputs.get(input).is_some_and(Option::is_some)
    }

    /// Keeps something for as long as the graph is there.
    pub(super) fn keep(self, kept: Rc<dyn Any>) -> Self {
        Tape { kept: Some(kept), ..self }
    }

    /// Keeps a tensor's memory for the backward pass.
    pub fn save(&self, tensor: &Tensor) -> Saved {
        if !self.is_recording() {
            return Saved::Nothing;
        }
        super::checkpoint::save(self.gpu, tensor)
    }

    /// Gives an output its graph.
    pub fn record(self, output: Tensor, backward: impl FnOnce(&Gpu, Tensor) -> Grads + 'static) -> Tensor {
        if !self.is_recording() {
            return output;
        }
        let node = self.node(Box::new(move |gpu, grads| match grads.into_iter().next().flatten() {
            Some(grad) => backward(gpu, grad),
            None => Vec::new(),
        }));
        output.with_edge(Some(Edge { node, output: 0 }))
    }

    /// Gives several outputs their graph; gradients come in their order.
    pub fn record_all<const N: usize>(
        self,
        outputs: [Tensor; N],
        backward: impl FnOnce(&Gpu, Grads) -> Grads + 'static,
    ) -> [Tensor; N] {
        if !self.is_recording() {
            return outputs;
        }
        let node = self.node(Box::new(move |gpu, mut grads| {
            grads.resize(N, None);
            backward(gpu, grads)
        }));
        let mut number = 0..;
        outputs.map(|tensor| tensor.with_edge(number.next().map(|output| Edge { node: node.clone(), output })))
    }

    fn node(self, backward: Backward) -> Rc<Node> {
        Rc::new(Node {
            number: self.number,
            inputs: RefCell::new(self.inputs),
            work: RefCell::new(Work::Run(backward)),
            stream: self.gpu.stream(),
            name: self.name,
            grads: RefCell::default(),
            awaited: Cell::new(0),
            pass: Cell::new(0),
            _kept: self.kept,
        })
    }
}

/// A node that can run.
struct Ready(Rc<Node>);

impl PartialEq for Ready {
    fn eq(&self, other: &Ready) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Ready {}

impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Ready) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ready {
    fn cmp(&self, other: &Ready) -> Ordering {
        self.0.number.cmp(&other.0.number)
    }
}

/// Runs the backward pass from `root`, whose gradient is `grad`. What the operations saved is gone afterwards.
pub fn backward(gpu: &Gpu, root: &Tensor, grad: Tensor) {
    let Some(Edge { node: first, output }) = root.edge.clone() else {
        return;
    };
    let state = gpu.graph();
    let pass = state.passes.get() + 1;
    state.passes.set(pass);
    let enter = |node: &Rc<Node>| {
        node.pass.set(pass);
        node.awaited.set(0);
        node.grads.borrow_mut().clear();
    };
    enter(&first);
    let mut seen = vec![first.clone()];
    while let Some(node) = seen.pop() {
        for Edge { node: next, .. } in node.inputs.borrow().iter().flatten() {
            if next.pass.get() != pass {
                enter(next);
                seen.push(next.clone());
            }
            next.awaited.set(next.awaited.get() + 1);
        }
    }
    let walk = || {
        first.add(gpu, output, grad);
        let mut ready = BinaryHeap::from([Ready(first.clone())]);
        while let Some(Ready(node)) = ready.pop() {
            let grads = node.grads.take();
            let results = gpu.on_stream(node.stream, || node.run(gpu, grads));
            for saved in state.unpacked.take() {
                drop(saved);
            }
            let mut results = results.into_iter();
            for edge in node.inputs.borrow().iter() {
                let grad = results.next().flatten();
                let Some(Edge { node: next, output }) = edge else { continue };
                if let Some(grad) = grad {
                    next.add(gpu, *output, grad);
                }
                next.awaited.set(next.awaited.get() - 1);
                if next.awaited.get() == 0 {
                    ready.push(Ready(next.clone()));
                }
            }
        }
    };
    gpu.in_backward(|| gpu.no_grad(walk));
}
