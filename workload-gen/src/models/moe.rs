//! A mixture of experts in the place of an MLP, as the Mixtral, Qwen2-MoE and DeepSeek-V2 models of transformers 5.17 have it: the weights of
//! all experts are one tensor, and either all products are one call, which is the default, or each expert that has tokens has its turn.

use super::Weights;
use super::decoder::SwiGlu;
use super::projection::{Projection, convert};
use super::routing::Loads;
use super::shapes::Experts;
use crate::ops::{
    Cx, Form, Linear, Reduction, add, float, grouped_matmul, index_add, masked_fill, matmul, mul, mul_rows, nonzero,
    normalize, offsets, sigmoid, silu, softmax, sort, split2, sum_groups, take_elements, take_rows, to, topk,
};
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};
use std::cell::Cell;
use std::rc::Rc;

/// How experts run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExpertsForm {
    /// All products in one call (`grouped_mm`): no size depends on the router.
    Grouped,
    /// One expert after another (`eager`), each on the tokens that it was sent.
    Loop,
}

/// The experts of a model.
#[derive(Clone, Debug)]
pub struct Mixed {
    /// Their numbers.
    pub shape: Experts,
    /// How they run.
    pub form: ExpertsForm,
    /// How many tokens the routers send where.
    pub loads: Loads,
}

/// The way in which a model's authors wrote the router.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    /// The best probabilities are made to sum up to one.
    Mixtral,
    /// They are put into the type of the hidden states.
    Qwen,
    /// Logits are computed from copies in 32 bits, and probabilities are scaled.
    DeepSeek,
}

/// The mixture of a layer.
pub(super) struct Mixture {
    mixed: Mixed,
    /// The number of the batch that the model is at.
    batch: Rc<Cell<u64>>,
    style: Style,
    hidden: u64,
    layer: u64,
    router: Parameter,
    gate_up: Parameter,
    down: Parameter,
    shared: Option<SwiGlu>,
    shared_gate: Option<Linear>,
    name: Name,
    names: [Name; 3],
}

impl Mixture {
    pub(super) fn new(
        gpu: &Gpu,
        layer: usize,
        hidden: u64,
        mixed: &Mixed,
        batch: &Rc<Cell<u64>>,
        weights: Weights,
    ) -> Mixture {
        let shape = mixed.shape;
        let style = match (shape.shared_ffn > 0, shape.has_shared_gate) {
            (false, _) => Style::Mixtral,
            (true, true) => Style::Qwen,
            (true, false) => Style::DeepSeek,
        };
        let label = format!("layers.{layer}.mlp");
        let names = ["gate.weight", "experts.gate_up_proj", "experts.down_proj"]
            .map(|part| gpu.name(&format!("{label}.{part}")));
        let router = || weights.named(gpu, shape.count * hidden, names[0]);
        let experts = || {
            let gate_up = weights.named(gpu, shape.count * 2 * shape.ffn * hidden, names[1]);
            (gate_up, weights.named(gpu, shape.count * hidden * shape.ffn, names[2]))
        };
        // A row is an expert's matrix, and of the router an expert's vector.
        let (router, (gate_up, down)) = if style == Style::DeepSeek {
            let experts = experts();
            (router(), experts)
        } else {
            (router(), experts())
        };
        router.set_columns(hidden);
        gate_up.set_columns(2 * shape.ffn * hidden);
        down.set_columns(hidden * shape.ffn);
        let shared = (shape.shared_ffn > 0)
            .then(|| SwiGlu::new(gpu, &format!("{label}.shared_expert"), hidden, shape.shared_ffn, weights));
        let shared_gate = shape.has_shared_gate.then(|| {
            let name = gpu.name(&format!("{label}.shared_expert_gate"));
            Linear::new(Form::Linear, weights.named(gpu, hidden, name), None, hidden, 1, name)
        });
        Mixture {
            mixed: mixed.clone(),
            batch: batch.clone(),
            style,
            hidden,
            layer: layer as u64,
            router,
            gate_up,
            down,
            shared,
            shared_gate,
            name: gpu.name(&label),
            names,
        }
    }

    /// The weights that are no projections, in the order in which they were made.
    fn experts(&self) -> [(&Parameter, Name); 3] {
        let [router, gate_up, down] = self.names;
        match self.style {
            Style::DeepSeek => [(&self.gate_up, gate_up), (&self.down, down), (&self.router, router)],
            Style::Mixtral | Style::Qwen => [(&self.router, router), (&self.gate_up, gate_up), (&self.down, down)],
        }
    }

    pub(super) fn projections(&mut self) -> impl Iterator<Item = &mut Projection> {
        self.shared.iter_mut().flat_map(SwiGlu::projections)
    }

    pub(super) fn convert(&mut self, gpu: &Gpu, dtype: Dtype) {
        for (weight, name) in self.experts() {
            convert(gpu, weight, dtype, name);
        }
        for projection in self.projections() {
            projection.convert(gpu, dtype);
        }
        if let Some(gate) = &self.shared_gate {
            convert(gpu, &gate.weight, dtype, self.name);
        }
    }

    pub(super) fn collect(&mut self, parameters: &mut Vec<Parameter>) {
        parameters.extend(self.experts().map(|(weight, _)| weight.clone()));
        for projection in self.projections() {
            projection.collect(parameters);
        }
        parameters.extend(self.shared_gate.as_ref().map(|gate| gate.weight.clone()));
    }

    pub(super) fn forward(&self, cx: &Cx, x: &Tensor) -> Tensor {
        let (gpu, name) = (&cx.gpu, self.name);
        // DeepSeek's router and shared experts see the hidden states as they are.
        let x = &if self.style == Style::DeepSeek { x.clone() } else { flatten(gpu, x, name) };
        // Qwen runs the shared experts first, DeepSeek last.
        let first = self.shared.as_ref().filter(|_| self.style == Style::Qwen).map(|shared| shared.forward(cx, x));
        let (logits, weights, choices) = self.route(cx, x);
        let flat = &if self.style == Style::DeepSeek { flatten(gpu, x, name) } else { x.clone() };
        let routed = cx.module(&[&self.gate_up, &self.down], flat, |flat| match self.mixed.form {
            ExpertsForm::Grouped => self.grouped(cx, flat, &weights),
            ExpertsForm::Loop => self.one_by_one(cx, flat, &weights),
        });
        let out = match (&self.shared, &self.shared_gate, first) {
            (_, Some(gate), Some(shared)) => {
                let scaled = {
                    let factors = sigmoid(gpu, &gate.forward(cx, x), name);
                    mul_rows(gpu, &factors, &shared, name)
                };
                drop(shared);
                let sum = add(gpu, &routed, &scaled, name);
                drop((routed, scaled));
                sum
            }
            (Some(shared), _, _) => {
                let sum = {
                    let fed = shared.forward(cx, x);
                    add(gpu, &routed, &fed, name)
                };
                drop(routed);
                sum
            }
            _ => routed,
        };
        drop((logits, weights, choices));
        out
    }

    /// Logits, the weights of each token's experts, and which they are.
    fn route(&self, cx: &Cx, x: &Tensor) -> (Tensor, Tensor, Tensor) {
        let (gpu, name, shape) = (&cx.gpu, self.name, self.mixed.shape);
        let tokens = x.elements() / self.hidden;
        let x = &flatten(gpu, x, name);
        let logits = cx.module(&[&self.router], x, |x| match self.style {
            Style::DeepSeek => {
                let input = float(gpu, x, name);
                let weight = to(gpu, &self.router.tensor(), Dtype::F32, Role::Temporary, name);
                let weight = cx.input(&weight, name);
                matmul(gpu, &cx.input(&input, name), &weight, self.hidden, shape.count, name)
            }
            Style::Mixtral | Style::Qwen => {
                let weight = cx.weight(&self.router, name);
                matmul(gpu, &cx.input(x, name), &weight, self.hidden, shape.count, name)
            }
        });
        let probabilities = softmax(gpu, &logits, name);
        let (best, choices) = topk(gpu, &probabilities, tokens * shape.per_token, name);
        let weights = match self.style {
            Style::Mixtral => normalize(gpu, best, tokens, name),
            Style::Qwen => to(gpu, &best, logits.dtype(), Role::Activation, name),
            Style::DeepSeek => crate::ops::scale(gpu, &best, name),
        };
        drop(probabilities);
        (logits, weights, choices)
    }

    /// All rows sorted by expert, and all experts in one product.
    fn grouped(&self, cx: &Cx, x: &Tensor, weights: &Tensor) -> Tensor {
        let (gpu, name, hidden, shape) = (&cx.gpu, self.name, self.hidden, self.mixed.shape);
        let rows = weights.elements();
        let make = |elements, dtype| gpu.tensor(elements, dtype, Role::Temporary, name);
        let (experts, order) = sort(gpu, rows, name);
        let mut sorted = {
            let tokens = make(rows, Dtype::I64);
            take_rows(gpu, x, &tokens, hidden, name)
        };
        let sorted_weights = take_rows(gpu, weights, &order, 1, name);
        let small = make(rows, Dtype::I32);
        let counts = make(shape.count, Dtype::I32);
        let ends = offsets(gpu, &counts, name);
        let mask = make(rows, Dtype::U8);
        sorted = masked_fill(gpu, &sorted, &mask, true, name);

        let input = to(gpu, &sorted, self.gate_up.tensor().dtype(), Role::Activation, name);
        let mut out = grouped_matmul(gpu, &input, &self.gate_up, &ends, [hidden, 2 * shape.ffn], name);
        drop(input);
        out = masked_fill(gpu, &out, &mask, false, name);
        out = gated(gpu, &out, name);
        out = to(gpu, &out, self.down.tensor().dtype(), Role::Activation, name);
        out = grouped_matmul(gpu, &out, &self.down, &ends, [shape.ffn, hidden], name);
        out = masked_fill(gpu, &out, &mask, false, name);

        let mut weighted = mul_rows(gpu, &out, &sorted_weights, name);
        let back = gpu.like(&order, Role::Temporary, name);
        gpu.scratch(back.bytes(), Role::Temporary, name);
        weighted = take_rows(gpu, &weighted, &back, hidden, name);
        let sum = sum_groups(cx, &weighted, x.elements(), name);
        let result = to(gpu, &sum, x.dtype(), Role::Activation, name);
        drop((experts, order, sorted, sorted_weights, small, counts, ends, mask, out, back, weighted, sum));
        result
    }

    /// Each expert that has tokens, and only on those.
    fn one_by_one(&self, cx: &Cx, x: &Tensor, weights: &Tensor) -> Tensor {
        let (gpu, name, hidden, shape) = (&cx.gpu, self.name, self.hidden, self.mixed.shape);
        let tokens = x.elements() / hidden;
        let make = |elements, dtype| gpu.tensor(elements, dtype, Role::Temporary, name);
        let counts = self.mixed.loads.counts(self.layer, self.batch.get(), tokens);
        let mut sum = gpu.like(x, Role::Activation, name);
        let one_hot = make(tokens * shape.per_token * shape.count, Dtype::I64);
        let hit = {
            let sums = make(shape.count, Dtype::I64);
            let partial = Dtype::I64.bytes();
            Reduction::columns(tokens * shape.per_token, shape.count).with_partial(partial).run(gpu, name);
            let is_hit = make(shape.count, Dtype::U8);
            drop(sums);
            nonzero(gpu, &is_hit, counts.iter().filter(|&&count| count > 0).count() as u64, name)
        };
        let mut names: [Option<Tensor>; 4] = Default::default();
        for &count in counts.iter().filter(|&&count| count > 0) {
            gpu.scratch(1, Role::Temporary, name);
            let [places, state, wide, current] = &mut names;
            let found = {
                let mask = make(tokens * shape.per_token, Dtype::I64);
                nonzero(gpu, &mask, 2 * count, name)
            };
            let rows = found.view(count);
            *places = Some(found);
            let taken = take_rows(gpu, x, &rows, hidden, name);
            *state = Some(taken.clone());
            let both = matmul_of(cx, &taken, &self.gate_up, [hidden, 2 * shape.ffn], name);
            *wide = Some(both.clone());
            let active = gated(gpu, &both, name);
            *current = Some(active.clone());
            let down = matmul_of(cx, &active, &self.down, [shape.ffn, hidden], name);
            *current = Some(down.clone());
            drop((taken, both, active));
            let weighted = {
                let factors = take_elements(gpu, weights, &rows, count, name);
                mul_rows(gpu, &down, &factors, name)
            };
            *current = Some(weighted.clone());
            drop(down);
            let added = to(gpu, &weighted, sum.dtype(), Role::Activation, name);
            sum = index_add(gpu, &sum, &added, &rows, name);
        }
        drop((one_hot, hit, names));
        sum
    }
}

/// All rows as one matrix: the same memory, and a place of its own where gradients meet.
fn flatten(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let elements = x.elements();
    tape.record(x.detach().as_matrix(), move |_, grad| vec![Some(grad.view(elements))])
}

/// The two halves of `x`, one of them as the other's gate.
fn gated(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let [gate, up] = split2(gpu, x, name);
    mul(gpu, &silu(gpu, &gate, name), &up, name)
}

/// A product with one matrix of a weight that has several: `weights[i]`, whose gradient is put into zeros of the whole.
fn matmul_of(cx: &Cx, x: &Tensor, weights: &Parameter, [inputs, outputs]: [u64; 2], name: Name) -> Tensor {
    let gpu = &cx.gpu;
    let whole = weights.tensor();
    let tape = gpu.tape(name, &[&whole]);
    let (elements, dtype) = (whole.elements(), whole.dtype());
    let one = tape.record(whole.detach().view(inputs * outputs), move |gpu, _grad| {
        vec![Some(gpu.tensor(elements, dtype, Role::Gradient, name))]
    });
    let weight = cx.input(&one, name);
    matmul(gpu, &cx.input(x, name), &weight, inputs, outputs, name)
}
