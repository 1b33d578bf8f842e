//! `torch.utils.checkpoint`, in the region that the forward pass runs in.

use super::cast::Cx;
use crate::tensor::{self, Tensor};
use std::rc::Rc;

/// Runs `forward` on `x` so that the graph keeps no more than `x` and what `forward` owns. The backward pass runs it again, in a region
/// of autocast of its own.
pub fn checkpoint(cx: &Cx, x: &Tensor, forward: impl Fn(&Cx, &Tensor) -> Tensor + 'static) -> Tensor {
    let forward = Rc::new(forward);
    let (again, input) = (forward.clone(), x.clone());
    let (dtype, has_dropout, modules) = (cx.autocast_dtype(), cx.has_dropout, cx.modules().cloned());
    tensor::checkpoint(
        &cx.gpu,
        || forward(cx, x),
        move |gpu| {
            let cx = dtype.map_or_else(|| Cx::plain(gpu), |dtype| Cx::autocast(gpu, dtype));
            drop(again(&cx.with_dropout(has_dropout).with_modules(modules.clone()), &input));
        },
    )
}
