//! Linear layers, with or without a low-rank adapter beside them.

use super::Weights;
use crate::ops::{Cx, Form, Linear, add, scale, to};
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};

/// Low-rank adapters as peft makes them: the model's own weights are frozen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lora {
    /// The rank.
    pub rank: u64,
    /// Which layers have one.
    pub adapted: Adapted,
    /// Whether they keep the type of the model's weights. peft trains them in 32 bits.
    pub has_type_of_model: bool,
}

/// Which linear layers have adapters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Adapted {
    /// Those of queries and values.
    QueryValue,
    /// Those of queries, keys, values and outputs of the attention.
    Attention,
    /// All but the head.
    Linear,
}

/// A linear layer.
pub(super) struct Projection {
    base: Linear,
    adapter: Option<Adapter>,
    inputs: u64,
    outputs: u64,
    label: String,
    name: Name,
}

struct Adapter {
    down: Linear,
    up: Linear,
    name: Name,
}

/// Puts the weight into another type, as `to` does: the old memory goes when the new is there.
pub(super) fn convert(gpu: &Gpu, weight: &Parameter, dtype: Dtype, name: Name) {
    let old = weight.tensor().detach();
    if old.dtype() != dtype {
        let new = gpu.tensor(old.elements(), dtype, Role::Parameter, name);
        drop(weight.replace(new));
    }
}

/// Puts adapters beside layers, all of them before the first is put into 32 bits.
pub(super) fn adapt<'l>(gpu: &Gpu, lora: &Lora, layers: impl IntoIterator<Item = &'l mut Projection>) {
    let mut layers: Vec<&mut Projection> = layers.into_iter().collect();
    for layer in &mut layers {
        layer.adapt(gpu, lora.rank);
    }
    if !lora.has_type_of_model {
        for layer in layers {
            layer.float_adapter(gpu);
        }
    }
}

impl Projection {
    /// The layer with a new weight.
    pub(super) fn new(gpu: &Gpu, label: String, inputs: u64, outputs: u64, weights: Weights) -> Projection {
        let name = gpu.name(&label);
        let weight = weights.named(gpu, inputs * outputs, name);
        let base = Linear::new(Form::Linear, weight, None, inputs, outputs, name);
        Projection::around(base, inputs, outputs, label, name)
    }

    /// A layer of the form that its model calls, with a bias.
    pub(super) fn with_bias(
        gpu: &Gpu,
        label: String,
        form: Form,
        [inputs, outputs]: [u64; 2],
        weights: Weights,
    ) -> Projection {
        let name = gpu.name(&label);
        let weight = weights.make(gpu, inputs * outputs, &format!("{label}.weight"));
        let bias = weights.make(gpu, outputs, &format!("{label}.bias"));
        let base = Linear::new(form, weight, Some(bias), inputs, outputs, name);
        Projection::around(base, inputs, outputs, label, name)
    }

    fn around(base: Linear, inputs: u64, outputs: u64, label: String, name: Name) -> Projection {
        Projection { base, adapter: None, inputs, outputs, label, name }
    }

    /// Puts the weight into another type.
    pub(super) fn convert(&self, gpu: &Gpu, dtype: Dtype) {
        for weight in self.base.parameters() {
            convert(gpu, weight, dtype, self.name);
        }
    }

    /// Puts an adapter of two matrices beside the layer, in the weight's own type.
    fn adapt(&mut self, gpu: &Gpu, rank: u64) {
        let dtype = self.base.weight.tensor().dtype();
        let linear = |part: &str, inputs: u64, outputs: u64| {
            let name = gpu.name(&format!("{}.{part}", self.label));
            let weight = gpu.tensor(inputs * outputs, dtype, Role::Parameter, name);
            Linear::new(Form::Linear, Parameter::trained(gpu, weight, name), None, inputs, outputs, name)
        };
        let down = linear("lora_a", self.inputs, rank);
        let up = linear("lora_b", rank, self.outputs);
        self.adapter = Some(Adapter { down, up, name: gpu.name(&format!("{}.lora", self.label)) });
    }

    /// Puts the adapter into 32 bits, in which adapters are trained.
    fn float_adapter(&self, gpu: &Gpu) {
        if let Some(adapter) = &self.adapter {
            convert(gpu, &adapter.down.weight, Dtype::F32, adapter.name);
            convert(gpu, &adapter.up.weight, Dtype::F32, adapter.name);
        }
    }

    /// The layer's weights, and those of its adapter.
    pub(super) fn collect(&self, parameters: &mut Vec<Parameter>) {
        parameters.extend(self.base.parameters().cloned());
        if let Some(adapter) = &self.adapter {
            parameters.extend([adapter.down.weight.clone(), adapter.up.weight.clone()]);
        }
    }

    /// The layer's output.
    pub(super) fn forward(&self, cx: &Cx, x: &Tensor) -> Tensor {
        let Some(Adapter { down, up, name }) = &self.adapter else {
            return self.base.forward(cx, x);
        };
        // The module around both looks at the type of the first matrix, for which DeepSpeed counts that as its own.
        cx.module(&[&down.weight], x, |x| self.adapted(cx, x, [down, up], *name))
    }

    fn adapted(&self, cx: &Cx, x: &Tensor, [down, up]: [&Linear; 2], name: Name) -> Tensor {
        let result = self.base.forward(cx, x);
        let dtype = result.dtype();
        let x = to(&cx.gpu, x, down.weight.tensor().dtype(), Role::Activation, name);
        let dropped = cx.module(&[], &x, Tensor::clone);
        let low = down.forward(cx, &dropped);
        drop(dropped);
        let high = up.forward(cx, &low);
        drop(low);
        let update = scale(&cx.gpu, &high, name);
        drop(high);
        let sum = add(&cx.gpu, &result, &update, name);
        drop((update, result));
        to(&cx.gpu, &sum, dtype, Role::Activation, name)
    }
}
