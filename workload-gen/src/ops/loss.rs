//! Losses.

use super::cast::Cx;
use super::elementwise::float;
use crate::tensor::{Dtype, Gpu, Name, Role, Tensor, backward};

/// `torch.nn.functional.cross_entropy` of logits against a class for each row. It asks for the logarithms in the logits' own type,
/// so that autocast's change to 32 bits comes after them, before the loss of what they say.
pub fn cross_entropy(cx: &Cx, logits: &Tensor, classes: &Tensor, name: Name) -> Tensor {
    let gpu = &cx.gpu;
    let probabilities = {
        let tape = gpu.tape(name, &[logits]);
        let out = gpu.like(logits, Role::Activation, name);
        let saved = tape.save(&out);
        tape.record(out, move |gpu, grad| {
            let _out = saved.unpack(gpu);
            vec![Some(gpu.like(&grad, Role::Gradient, name))]
        })
    };
    let probabilities = cx.float(&probabilities, name);
    let tape = gpu.tape(name, &[&probabilities]);
    let saved = (tape.save(&probabilities), tape.save(classes));
    let (elements, dtype) = (probabilities.elements(), probabilities.dtype());
    let loss = gpu.tensor(1, dtype, Role::Activation, name);
    let total_weight = gpu.tensor(1, dtype, Role::Activation, name);
    let weight = tape.save(&total_weight);
    tape.record(loss, move |gpu, _grad| {
        let _saved = (saved.0.unpack(gpu), saved.1.unpack(gpu), weight.unpack(gpu));
        vec![Some(gpu.tensor(elements, dtype, Role::Gradient, name))]
    })
}

/// The loss of predicting each next token, as transformers computes it: logits in 32 bits, labels padded by one and shifted.
pub fn causal_loss(gpu: &Gpu, logits: &Tensor, rows: u64, columns: u64, name: Name) -> Tensor {
    let logits = float(gpu, logits, name);
    let padded = gpu.tensor(rows * (columns + 1), Dtype::I64, Role::Temporary, name);
    let labels = gpu.tensor(rows * columns, Dtype::I64, Role::Temporary, name);
    let loss = cross_entropy(&Cx::plain(gpu), &logits, &labels, name);
    drop((logits, padded));
    loss
}

/// `loss.backward()`: the gradient of one that it starts from lives until it is over.
pub fn backward_from(gpu: &Gpu, loss: &Tensor, name: Name) {
    let one = gpu.like(loss, Role::Gradient, name);
    backward(gpu, loss, one.clone());
}
