//! Recomputation: a part of the forward pass keeps nothing, and runs again when the backward pass comes to it.
//!
//! This is `torch.utils.checkpoint` with `use_reentrant=False`: saving hands out a number instead of keeping the tensor alive; the
//! first of these numbers that is asked for runs the part again, which keeps everything up to the last number and stops there.

use super::gpu::Gpu;
use super::graph::{Parameter, Saved, backward};
use super::label::Name;
use super::storage::{Dtype, Storage, Tensor};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

/// A part that is run again.
pub struct Frame {
    forward: Box<dyn Fn(&Gpu)>,
    saved: Cell<usize>,
    /// What the second run kept; `None` until it has run.
    kept: RefCell<Option<Vec<Option<Rc<Storage>>>>>,
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a checkpoint of {} tensors", self.saved.get())
    }
}

/// What saving a tensor does now.
pub(super) enum Mode {
    Count(Rc<Frame>),
    Keep(Rc<Frame>),
}

impl Frame {
    pub(super) fn unpack(self: &Rc<Frame>, gpu: &Gpu, at: usize) -> Option<Rc<Storage>> {
        if self.kept.borrow().is_none() {
            *self.kept.borrow_mut() = Some(Vec::with_capacity(self.saved.get()));
            gpu.graph().modes.borrow_mut().push(Mode::Keep(self.clone()));
            gpu.set_recording(true, || (self.forward)(gpu));
            gpu.graph().modes.borrow_mut().pop();
            gpu.set_muted(false);
        }
        self.kept.borrow_mut().as_mut().and_then(|kept| kept.get_mut(at).and_then(Option::take))
    }
}

pub(super) fn save(gpu: &Gpu, tensor: &Tensor) -> Saved {
    match gpu.graph().modes.borrow().last() {
        None => Saved::Held(tensor.storage().clone()),
        Some(Mode::Count(frame)) => {
            let at = frame.saved.get();
            frame.saved.set(at + 1);
            Saved::Recomputed(frame.clone(), at)
        }
        Some(Mode::Keep(frame)) => {
            if let Some(kept) = &mut *frame.kept.borrow_mut()
                && kept.len() < frame.saved.get()
            {
                kept.push(Some(tensor.storage().clone()));
                if kept.len() == frame.saved.get() {
                    gpu.set_muted(true);
                }
            }
            Saved::Nothing
        }
    }
}

/// Runs `first` so that its graph keeps no memory. `again` is what the backward pass runs, and must do the same; the graph owns it.
pub fn checkpoint(gpu: &Gpu, first: impl FnOnce() -> Tensor, again: impl Fn(&Gpu) + 'static) -> Tensor {
    if !gpu.is_recording() {
        return first();
    }
    let frame = Rc::new(Frame { forward: Box::new(again), saved: Cell::new(0), kept: RefCell::new(None) });
    gpu.graph().modes.borrow_mut().push(Mode::Count(frame));
    let output = first();
    gpu.graph().modes.borrow_mut().pop();
    output
}

/// The older form (`use_reentrant=True`, and Megatron's own): the graph keeps the inputs alone, as inputs of one node. The backward pass
/// of that node runs all of `forward` again on copies of their handles, with a graph of its own, and that graph's backward pass.
pub fn reentrant_checkpoint(
    gpu: &Gpu,
    inputs: &[&Tensor],
    name: Name,
    forward: impl Fn(&Gpu, &[Tensor]) -> Tensor + 'static,
) -> Tensor {
    let detached: Vec<Tensor> = inputs.iter().map(|input| input.detach()).collect();
    let tape = gpu.tape(name, inputs);
    if !tape.is_recording() {
        return forward(gpu, &detached);
    }
    // The function and what it owns stay with the graph, when the node has long run.
    let forward = Rc::new(forward);
    let tape = tape.keep(forward.clone());
    let saved: Vec<(Saved, u64, Dtype)> =
        inputs.iter().map(|input| (tape.save(input), input.elements(), input.dtype())).collect();
    let output = gpu.no_grad(|| forward(gpu, &detached));
    drop(detached);
    tape.record(output, move |gpu, grad| {
        // The node owns what it saved, and the gradient that it was called with, until it is done.
        let unpack =
            |(saved, elements, dtype): (Saved, u64, Dtype)| Some(Tensor::new(saved.unpack(gpu)?, elements, dtype));
        let saved: Vec<Tensor> = saved.into_iter().filter_map(unpack).collect();
        let leaves: Vec<Parameter> = saved.iter().map(|input| Parameter::trained(gpu, input.clone(), name)).collect();
        let handles: Vec<Tensor> = leaves.iter().map(Parameter::tensor).collect();
        let output = gpu.set_recording(true, || forward(gpu, &handles));
        drop(handles);
        backward(gpu, &output, grad.clone());
        let gradients = leaves.iter().map(|leaf| leaf.replace_grad(None)).collect();
        drop((leaves, output, grad, saved));
        gradients
    })
}
