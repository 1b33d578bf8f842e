//! `torch.utils.checkpoint`, in the region that the forward pass runs in.

use super::cast::Cx;
use crate::tensor::{self, Gpu, Name, Tensor};
use std::cell::Cell;
use std::rc::Rc;

/// Which of its two forms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checkpoint {
    /// `use_reentrant=False`: what is saved is made again when the backward pass first asks for it.
    Nested,
    /// `use_reentrant=True`: one node runs everything again, and the backward pass of that.
    Reentrant,
}

/// Runs `forward` on `x` so that the graph keeps no more than `x` and what `forward` owns. The backward pass runs it again, in a region
/// of autocast of its own.
pub fn checkpoint(
    cx: &Cx,
    form: Checkpoint,
    x: &Tensor,
    name: Name,
    forward: impl Fn(&Cx, &Tensor) -> Tensor + 'static,
) -> Tensor {
    let (dtype, has_dropout, modules) = (cx.autocast_dtype(), cx.has_dropout, cx.modules().cloned());
    let region = move |gpu: &Gpu| {
        let cx = dtype.map_or_else(|| Cx::plain(gpu), |dtype| Cx::autocast(gpu, dtype));
        cx.with_dropout(has_dropout).with_modules(modules.clone())
    };
    match form {
        Checkpoint::Nested => {
            let forward = Rc::new(forward);
            let (again, input) = (forward.clone(), x.clone());
            tensor::checkpoint(&cx.gpu, || forward(cx, x), move |gpu| drop(again(&region(gpu), &input)))
        }
        Checkpoint::Reentrant => {
            let first = Cell::new(Some(cx.clone()));
            tensor::reentrant_checkpoint(&cx.gpu, &[x], name, move |gpu, inputs| {
                let cx = first.take().unwrap_or_else(|| region(gpu));
                forward(&cx, &inputs[0])
            })
        }
    }
}
