//! Matrix products with weights.

use super::cast::Cx;
use super::reduce::column_sum;
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};

/// What cuBLAS takes for a thread and a stream on Hopper (`CUBLAS_WORKSPACE_CONFIG` unset, PyTorch's `getChosenWorkspaceSize`).
const CUBLAS: u64 = 32 << 20;
/// What cuBLASLt takes for products that add a bias (`_getWorkspaceSize`).
const CUBLAS_LT: u64 = 1 << 20;

/// How a layer calls the product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// `torch.addmm(bias, x, weight)`, as GPT-2's `Conv1D` does.
    Conv1d,
    /// `torch.nn.functional.linear`.
    Linear,
}

/// A layer `x · W + b`.
#[derive(Clone)]
pub struct Linear {
    /// The weight.
    pub weight: Parameter,
    /// The bias.
    pub bias: Option<Parameter>,
    inputs: u64,
    outputs: u64,
    name: Name,
    form: Form,
}

/// Takes cuBLAS's memory at its first product.
pub(crate) fn product(gpu: &Gpu) {
    gpu.keep("cublas", CUBLAS);
}

/// A gradient that is a product: cuBLAS comes when its output is there.
fn product_of(gpu: &Gpu, elements: u64, dtype: Dtype, name: Name) -> Tensor {
    let out = gpu.tensor(elements, dtype, Role::Gradient, name);
    product(gpu);
    out
}

impl Linear {
    /// A layer of weights that were made before.
    pub fn new(
        form: Form,
        weight: Parameter,
        bias: Option<Parameter>,
        inputs: u64,
        outputs: u64,
        name: Name,
    ) -> Linear {
        weight.set_columns(match form {
            Form::Conv1d => outputs,
            Form::Linear => inputs,
        });
        Linear { weight, bias, inputs, outputs, name, form }
    }

    /// Its parameters, in the order in which they were made.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        [&self.weight].into_iter().chain(&self.bias)
    }

    /// The layer's output: rows as of `x`.
    pub fn forward(&self, cx: &Cx, x: &Tensor) -> Tensor {
        let body = |x: &Tensor| match &self.bias {
            _ if self.form == Form::Linear && cx.modules().is_some() => self.as_function(cx, x),
            Some(bias) => self.with_bias(cx, x, bias),
            None => self.without_bias(cx, x),
        };
        match &self.bias {
            Some(bias) => cx.module(&[&self.weight, bias], x, body),
            None => cx.module(&[&self.weight], x, body),
        }
    }

    /// `LinearFunctionForZeroStage3`, which DeepSpeed's third stage puts into the place of `linear`: what is saved is the weight, whose
    /// memory may be another in the backward pass, and the bias is added in place.
    fn as_function(&self, cx: &Cx, x: &Tensor) -> Tensor {
        let (gpu, name) = (&cx.gpu, self.name);
        let weight = self.weight.tensor();
        let bias = self.bias.as_ref().map(Parameter::tensor);
        let (inputs, outputs, rows, dtype) = (self.inputs, self.outputs, x.elements() / self.inputs, x.dtype());
        let sources: Vec<&Tensor> = [x, &weight].into_iter().chain(&bias).collect();
        let tape = gpu.tape(name, &sources);
        let needs: Vec<bool> = (0..sources.len()).map(|source| tape.needs(source)).collect();
        let saved = [tape.save(x), tape.save(&weight)];
        let out = gpu.tensor(rows * outputs, dtype, Role::Activation, name);
        product(gpu);
        tape.record(out, move |gpu, _grad| {
            let _saved = saved.map(|saved| saved.unpack(gpu));
            let multiply = |is_needed: bool, elements| is_needed.then(|| product_of(gpu, elements, dtype, name));
            let x = multiply(needs[0], rows * inputs);
            let weight = multiply(needs[1], inputs * outputs);
            let mut gradients = vec![x, weight];
            if let Some(&is_needed) = needs.get(2) {
                gradients.push(is_needed.then(|| column_sum(gpu, outputs, rows, dtype, Role::Gradient, name)));
            }
            gradients
        })
    }

    fn with_bias(&self, cx: &Cx, x: &Tensor, bias: &Parameter) -> Tensor {
        let (gpu, name) = (&cx.gpu, self.name);
        // Arguments are evaluated from the last to the first.
        let (weight, x, bias) = match self.form {
            Form::Conv1d => {
                let weight = cx.weight(&self.weight, name);
                let x = cx.input(x, name);
                (weight, x, cx.weight(bias, name))
            }
            Form::Linear => {
                let bias = cx.weight(bias, name);
                let weight = cx.weight(&self.weight, name);
                (weight, cx.input(x, name), bias)
            }
        };
        let (inputs, outputs, rows, dtype) = (self.inputs, self.outputs, x.elements() / self.inputs, x.dtype());
        let tape = gpu.tape(name, &[&bias, &x, &weight]);
        let is_matrix = x.is_matrix() || self.form == Form::Conv1d;
        let needs = [tape.needs(0), tape.needs(1), tape.needs(2)];
        let saved_x = needs[2].then(|| tape.save(&x));
        let saved_weight = needs[1].then(|| tape.save(&weight));
        let out = gpu.tensor(rows * outputs, dtype, Role::Activation, name);
        product(gpu);
        gpu.keep("cublaslt", CUBLAS_LT);
        tape.record(out, move |gpu, _grad| {
            let (x, weight) = {
                let _weight = saved_weight.and_then(|weight| weight.unpack(gpu));
                let _x = saved_x.and_then(|x| x.unpack(gpu));
                let multiply = |is_needed: bool, elements| is_needed.then(|| product_of(gpu, elements, dtype, name));
                let x = multiply(needs[1], rows * inputs).map(|x| if is_matrix { x } else { x.view(rows * inputs) });
                (x, multiply(needs[2], inputs * outputs))
            };
            // Nobody's formula: the pass itself sums up what is larger than the input.
            let bias = needs[0].then(|| column_sum(gpu, outputs, rows, dtype, Role::Gradient, name));
            vec![bias, x, weight]
        })
    }

    fn without_bias(&self, cx: &Cx, x: &Tensor) -> Tensor {
        let weight = cx.weight(&self.weight, self.name);
        let x = cx.input(x, self.name);
        matmul(&cx.gpu, &x, &weight, self.inputs, self.outputs, self.name)
    }
}

/// The product of a matrix of rows of `inputs` with one of `inputs` × `outputs`.
pub fn matmul(gpu: &Gpu, x: &Tensor, weight: &Tensor, inputs: u64, outputs: u64, name: Name) -> Tensor {
    let (rows, dtype): (u64, Dtype) = (x.elements() / inputs, x.dtype());
    let (tape, is_matrix) = (gpu.tape(name, &[x, weight]), x.is_matrix());
    let needs = [tape.needs(0), tape.needs(1)];
    let saved_x = needs[1].then(|| tape.save(x));
    let saved_weight = needs[0].then(|| tape.save(weight));
    let out = gpu.tensor(rows * outputs, dtype, Role::Activation, name);
    product(gpu);
    tape.record(out, move |gpu, _grad| {
        let _weight = saved_weight.and_then(|weight| weight.unpack(gpu));
        let _x = saved_x.and_then(|x| x.unpack(gpu));
        // The generated code computes the second factor's gradient first.
        let multiply = |is_needed: bool, elements| is_needed.then(|| product_of(gpu, elements, dtype, name));
        // It is turned, as the weight was.
        let weight = multiply(needs[1], inputs * outputs).map(|weight| weight.view(inputs * outputs));
        // A matrix of rows; the input that it is the gradient of has more dimensions, as a rule.
        let x = multiply(needs[0], rows * inputs).map(|x| if is_matrix { x } else { x.view(rows * inputs) });
        vec![x, weight]
    })
}

/// `torch.bmm`: products of matrices in pairs, `elements` in all.
pub fn batched_matmul(gpu: &Gpu, a: &Tensor, b: &Tensor, elements: u64, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[a, b]);
    let saved = (tape.save(a), tape.save(b));
    let shapes = [a, b].map(Tensor::elements);
    let dtype = a.dtype();
    let out = gpu.tensor(elements, dtype, Role::Activation, name);
    product(gpu);
    tape.record(out, move |gpu, _grad| {
        let _saved = (saved.0.unpack(gpu), saved.1.unpack(gpu));
        // The generated code computes the second factor's gradient first.
        let second = product_of(gpu, shapes[1], dtype, name);
        vec![Some(product_of(gpu, shapes[0], dtype, name)), Some(second)]
    })
}
