//! Parts of the older decoders: layers normalised by mean and variance, two-layer MLPs with biases.

use super::Weights;
use crate::ops::{Cx, LayerNorm, Linear, causal_loss, dropout, embedding, embedding_as_leaf};
use crate::tensor::{Gpu, Name, Parameter, Tensor};

impl Weights {
    /// Makes `torch.nn.LayerNorm`.
    pub(super) fn layer_norm(&self, gpu: &Gpu, width: u64, path: &str) -> LayerNorm {
        let weight = self.make(gpu, width, &format!("{path}.weight"));
        let bias = self.make(gpu, width, &format!("{path}.bias"));
        LayerNorm::new(weight, bias, width, gpu.name(path))
    }

    /// Makes a table of so many rows.
    pub(super) fn table(&self, gpu: &Gpu, rows: u64, width: u64, path: &str) -> Parameter {
        let table = self.make(gpu, rows * width, path);
        table.set_columns(width);
        table
    }
}

/// Weights of layers in their order.
pub(super) fn listed<'a>(
    norms: impl IntoIterator<Item = &'a LayerNorm>,
    linears: impl IntoIterator<Item = &'a Linear>,
) -> Vec<Parameter> {
    let norms = norms.into_iter().flat_map(|norm| [&norm.weight, &norm.bias]);
    norms.chain(linears.into_iter().flat_map(Linear::parameters)).cloned().collect()
}

/// The tokens' rows of the table, which may have a gradient of their own.
pub(super) fn embedded(cx: &Cx, ids: &Tensor, table: &Parameter, width: u64, is_leaf: bool, name: Name) -> Tensor {
    let look_up = if is_leaf { embedding_as_leaf } else { embedding };
    look_up(cx, ids, table, width, name)
}

/// Dropout, in training.
pub(super) fn dropped(cx: &Cx, x: Tensor, name: Name) -> Tensor {
    if cx.has_dropout { dropout(&cx.gpu, &x, name) } else { x }
}

/// The head of a model, and its loss.
pub(super) struct Head {
    linear: Linear,
    loss: Name,
}

impl Head {
    pub(super) fn new(gpu: &Gpu, linear: Linear) -> Head {
        Head { linear, loss: gpu.name("loss") }
    }

    /// The loss of normalised hidden states. `kept` lives until the logits are gone.
    pub(super) fn loss<T>(&self, cx: &Cx, normed: Tensor, [rows, columns]: [u64; 2], kept: T) -> Tensor {
        let logits = self.linear.forward(cx, &normed);
        let loss = causal_loss(&cx.gpu, &logits, rows, columns, self.loss);
        drop((normed, logits, kept));
        loss
    }
}
