//! `torch.nn.MultiheadAttention` of a sequence with itself, as it runs when its weights are asked for, which is its default: product by
//! product, with all scores in memory.

use super::cast::{Cx, to};
use super::elementwise::scale;
use super::linear::{Linear, matmul, product};
use super::reduce::column_sum;
use crate::tensor::{Gpu, Name, Parameter, Role, Tensor};

/// The layer.
pub struct MultiheadAttention {
    /// Queries, keys and values.
    pub input: Linear,
    /// What is made of all heads' results.
    pub output: Linear,
    /// Heads.
    pub heads: u64,
    /// Elements of a token.
    pub width: u64,
    /// The place in the model.
    pub name: Name,
}

impl MultiheadAttention {
    /// Its parameters, in PyTorch's order.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.input.parameters().chain(self.output.parameters())
    }

    /// The result for `count` sequences whose tokens do not lie side by side in memory.
    pub fn forward(&self, cx: &Cx, x: &Tensor, count: u64) -> Tensor {
        let (gpu, name, width) = (&cx.gpu, self.name, self.width);
        let length = x.elements() / width / count;
        let [q, k, v] = self.projected(cx, x);

        let scores = {
            let scaled = scale(gpu, &q, name);
            bmm(gpu, &scaled, &k, count * self.heads * length * length, name)
        };
        let weights = softmax(gpu, &cx.float(&scores, name), name);
        drop(scores);
        let context = {
            let weights = to(gpu, &weights, v.dtype(), Role::Activation, name);
            bmm(gpu, &weights, &v, q.elements(), name)
        };
        drop((q, k, v));
        let tokens = contiguous(gpu, &context, name);
        drop(context);
        let out = self.output.forward(cx, &tokens);
        drop(tokens);
        // The weights' mean over all heads is returned, too.
        gpu.scratch(count * length * length * weights.dtype().bytes(), Role::Temporary, name);
        viewed(gpu, &out, name)
    }

    /// Queries, keys and values, side by side.
    fn projected(&self, cx: &Cx, x: &Tensor) -> [Tensor; 3] {
        let (gpu, name, width) = (&cx.gpu, self.name, self.width);
        let x = &as_tokens(gpu, x, name);
        let bias = self.input.bias.as_ref().map(|bias| cx.weight(bias, name));
        let weight = cx.weight(&self.input.weight, name);
        let x = cx.input(x, name);
        let all = {
            let tokens = contiguous(gpu, &x, name);
            let product = matmul(gpu, &tokens, &weight, width, 3 * width, name);
            drop(tokens);
            let sum = match &bias {
                Some(bias) => add_to(gpu, product, bias, name),
                None => product,
            };
            packed(gpu, &sum, name)
        };
        let [q, k, v] = [(); 3].map(|()| select(gpu, &all, x.elements(), name));
        // The keys' gradient comes as it is needed: the product had them transposed.
        let q = viewed(gpu, &q, name);
        [q, k, viewed(gpu, &v, name)]
    }
}

/// A view of images as tokens. Nothing is copied, but its gradient waits for those of all that was made later.
fn as_tokens(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    tape.record(x.detach(), |_, grad| vec![Some(grad)])
}

/// A copy in the order of its dimensions. The gradient needs none.
fn contiguous(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let out = gpu.like(x, Role::Activation, name);
    tape.record(out, |_, grad| vec![Some(grad)])
}

/// A copy that has queries, keys and values one after another. The gradient is put back into the old order, which is a copy, too.
fn packed(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let out = gpu.like(x, Role::Activation, name);
    tape.record(out, move |gpu, grad| vec![Some(gpu.like(&grad, Role::Gradient, name))])
}

/// A view in another order of dimensions. The gradient is copied into the old.
fn viewed(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    tape.record(x.detach(), move |gpu, grad| vec![Some(gpu.like(&grad, Role::Gradient, name))])
}

/// A part of a tensor. Its gradient is zeros of the whole with the part in them.
fn select(gpu: &Gpu, x: &Tensor, part: u64, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let (elements, dtype) = (x.elements(), x.dtype());
    tape.record(x.detach().view(part), move |gpu, _grad| vec![Some(gpu.tensor(elements, dtype, Role::Gradient, name))])
}

/// Adds a bias to each row, in place.
fn add_to(gpu: &Gpu, x: Tensor, bias: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[&x, bias]);
    let (columns, needs_bias) = (bias.elements(), tape.needs(1));
    tape.record(x.detach(), move |gpu, grad| {
        let rows = grad.elements() / columns;
        let bias = needs_bias.then(|| column_sum(gpu, columns, rows, grad.dtype(), Role::Gradient, name));
        vec![Some(grad), bias]
    })
}

/// Products of batches of matrices, of which the result has `out` elements.
fn bmm(gpu: &Gpu, a: &Tensor, b: &Tensor, out: u64, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[a, b]);
    let needs = [tape.needs(0), tape.needs(1)];
    let saved = (tape.save(b), tape.save(a));
    let (sizes, dtype) = ([a.elements(), b.elements()], a.dtype());
    let out = gpu.tensor(out, dtype, Role::Activation, name);
    product(gpu);
    tape.record(out, move |gpu, _grad| {
        let _saved = (saved.0.unpack(gpu), saved.1.unpack(gpu));
        let of = |at: usize| needs[at].then(|| gpu.tensor(sizes[at], dtype, Role::Gradient, name));
        // The generated code computes the second factor's gradient first.
        let b = of(1);
        let a = of(0);
        product(gpu);
        vec![a, b]
    })
}

/// Softmax, whose result is kept. The backward pass multiplies it with the gradient first.
fn softmax(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let out = gpu.like(x, Role::Activation, name);
    let saved = tape.save(&out);
    tape.record(out, move |gpu, grad| {
        let _out = saved.unpack(gpu);
        let x = gpu.like(&grad, Role::Gradient, name);
        gpu.scratch(grad.bytes(), Role::Temporary, name);
        vec![Some(x)]
    })
}
