//! Experts that are spread among ranks: tokens go to the ranks of their experts and come back, in numbers that the router decides.

use super::layer::{Mlp, gate};
use super::linear::Gathered;
use super::{Maker, Micro};
use crate::models::routing::Loads;
use crate::models::shapes;
use crate::ops::{add, float, matmul, mul_rows, product, scatter_add, to};
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};
use std::rc::Rc;

pub(super) struct Experts {
    router: Parameter,
    up: Parameter,
    down: Parameter,
    shared: Option<Mlp>,
    shape: shapes::Experts,
    hidden: u64,
    /// Ranks that have other experts.
    ranks: u64,
    /// Ranks that the sequence is split among.
    shards: u64,
    layer: u64,
    loads: Rc<Loads>,
    name: Name,
}

impl Experts {
    pub(super) fn new(
        maker: &mut Maker<'_>,
        layer: u64,
        shape: shapes::Experts,
        name: &str,
        gathered: &Rc<Gathered>,
        loads: &Rc<Loads>,
    ) -> Experts {
        let (hidden, ranks) = (maker.config.shape.hidden, maker.config.expert_parallel);
        let local = shape.count / ranks;
        let router = maker.weight(hidden * shape.count, &format!("{name}.router.weight"));
        let up = maker.weight(local * hidden * 2 * shape.ffn, &format!("{name}.experts.weight1"));
        let down = maker.weight(local * shape.ffn * hidden, &format!("{name}.experts.weight2"));
        let shared = (shape.shared_ffn > 0)
            .then(|| Mlp::new(maker, shape.shared_ffn, &format!("{name}.shared_experts"), gathered));
        Experts {
            router,
            up,
            down,
            shared,
            shape,
            hidden,
            ranks,
            shards: maker.config.sequence_shards(),
            layer,
            loads: loads.clone(),
            name: maker.gpu.name(name),
        }
    }

    pub(super) fn forward(&self, gpu: &Gpu, micro: Micro, x: &Tensor) -> Tensor {
        let (name, hidden) = (self.name, self.hidden);
        let tokens = micro.rows * micro.columns / self.shards;
        let probabilities = self.route(gpu, x, tokens);
        let choices = tokens * self.shape.per_token;
        let came = self.tokens_that_come(micro, tokens);

        let rows = gpu.tensor(choices, Dtype::I64, Role::Activation, name);
        let sent = select(gpu, x, &rows, choices * hidden, name);
        let received = exchange(gpu, &sent, came * hidden, name);
        drop(sent);
        // Expert by expert instead of rank by rank.
        let sorted = self.sort(gpu, received);
        let fed = {
            let wide = grouped(gpu, &sorted, &self.up, [hidden, 2 * self.shape.ffn], name);
            let active = gate(gpu, &wide, name);
            drop(wide);
            grouped(gpu, &active, &self.down, [self.shape.ffn, hidden], name)
        };
        drop(sorted);
        let unsorted = self.sort(gpu, fed);
        let returned = exchange(gpu, &unsorted, choices * hidden, name);
        drop(unsorted);
        let out = {
            let weighted = mul_rows(gpu, &returned, &probabilities, name);
            scatter_add(gpu, &weighted, &rows, tokens, hidden, name)
        };
        drop((returned, probabilities, rows));
        match &self.shared {
            Some(shared) => add(gpu, &out, &shared.forward(gpu, x), name),
            None => out,
        }
    }

    /// Tokens of all ranks whose expert is here: this rank has the first experts of the list.
    fn tokens_that_come(&self, micro: Micro, tokens: u64) -> u64 {
        let counts = self.loads.counts(self.layer, micro.number, tokens * self.ranks);
        let local = self.shape.count / self.ranks;
        counts.iter().take(local as usize).sum()
    }

    /// The router: logits, the best of each row, their softmax in 32 bits, and a map of who goes where.
    fn route(&self, gpu: &Gpu, x: &Tensor, tokens: u64) -> Tensor {
        let (name, shape) = (self.name, self.shape);
        let logits = matmul(gpu, x, &self.router.tensor(), self.hidden, shape.count, name);
        let choices = tokens * shape.per_token;
        let best = {
            let tape = gpu.tape(name, &[&logits]);
            let (elements, dtype) = (logits.elements(), logits.dtype());
            let values = gpu.tensor(choices, dtype, Role::Activation, name);
            let places = gpu.tensor(choices, Dtype::I64, Role::Activation, name);
            let saved = tape.save(&places);
            tape.record(values, move |gpu, _grad| {
                let _places = saved.unpack(gpu);
                vec![Some(gpu.tensor(elements, dtype, Role::Gradient, name))]
            })
        };
        let probabilities = {
            let scores = float(gpu, &best, name);
            let tape = gpu.tape(name, &[&scores]);
            let out = gpu.like(&scores, Role::Activation, name);
            let saved = tape.save(&out);
            let out = tape.record(out, move |gpu, grad| {
                let _out = saved.unpack(gpu);
                vec![Some(gpu.like(&grad, Role::Gradient, name))]
            });
            to(gpu, &out, logits.dtype(), Role::Activation, name)
        };
        drop(best);
        let map = gpu.tensor(tokens * shape.count, Dtype::U8, Role::Temporary, name);
        gpu.scratch(shape.count * Dtype::I64.bytes(), Role::Temporary, name);
        // The host must know how many tokens go where.
        gpu.sync();
        drop((map, logits));
        probabilities
    }

    fn sort(&self, gpu: &Gpu, x: Tensor) -> Tensor {
        if self.shape.count / self.ranks > 1 { reorder(gpu, &x, self.name) } else { x }
    }
}

/// The same rows in another order. The gradient's are put back.
fn reorder(gpu: &Gpu, x: &Tensor, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let out = gpu.like(x, Role::Activation, name);
    tape.record(out, move |gpu, grad| vec![Some(gpu.like(&grad, Role::Gradient, name))])
}

/// A row of `x` for each number in `rows`. The gradient is added up in zeros.
fn select(gpu: &Gpu, x: &Tensor, rows: &Tensor, elements: u64, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let saved = tape.save(rows);
    let (before, dtype) = (x.elements(), x.dtype());
    let out = gpu.tensor(elements, dtype, Role::Activation, name);
    tape.record(out, move |gpu, _grad| {
        let _rows = saved.unpack(gpu);
        vec![Some(gpu.tensor(before, dtype, Role::Gradient, name))]
    })
}

/// `all_to_all_single`: as much comes as the others send. The gradient goes the other way.
fn exchange(gpu: &Gpu, x: &Tensor, elements: u64, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let (before, dtype) = (x.elements(), x.dtype());
    let out = gpu.tensor(elements, dtype, Role::Communication, name);
    tape.record(out, move |gpu, _grad| vec![Some(gpu.tensor(before, dtype, Role::Communication, name))])
}

/// Products of each expert's rows with its matrix, in one call.
fn grouped(gpu: &Gpu, x: &Tensor, weight: &Parameter, [inputs, outputs]: [u64; 2], name: Name) -> Tensor {
    let weight = weight.tensor();
    let tape = gpu.tape(name, &[x, &weight]);
    let saved = (tape.save(x), tape.save(&weight));
    let shapes = [x.elements(), weight.elements()];
    let dtype = x.dtype();
    let out = gpu.tensor(x.elements() / inputs * outputs, dtype, Role::Activation, name);
    product(gpu);
    tape.record(out, move |gpu, _grad| {
        let _saved = (saved.0.unpack(gpu), saved.1.unpack(gpu));
        shapes.map(|elements| Some(gpu.tensor(elements, dtype, Role::Gradient, name))).into()
    })
}
