//! Training of a stack of perceptrons with three streams: inputs are made ahead of the network, and gradients are looked at
//! behind it.
//!
//! It is the plainest job in which blocks are used on other streams than their own: every input and every gradient is
//! freed while another stream may still read it, and `record_stream` tells the allocator so.

use super::{COMMON, Generator, Job};
use crate::lengths::{Lengths, Rng};
use crate::models::TRAINED;
use crate::ops::{AdamW, Cx, Linear, Reduction, backward_from, gelu, mean, pow, release_list, shift, zero_grad};
use crate::spec::{Kind, Param, Values};
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};
use allocator_core::StreamId;

const PARAMS: &[Param] = &[
    Param {
        key: "blocks",
        about: "blocks of a layer that widens, a gelu and a layer that narrows",
        kind: Kind::Int { min: 1, max: 1000 },
        default: "6",
        unit: "blocks",
    },
    Param {
        key: "hidden",
        about: "width between blocks",
        kind: Kind::Int { min: 1, max: 1 << 20 },
        default: "2048",
        unit: "elements",
    },
    Param {
        key: "ffn",
        about: "width inside of a block",
        kind: Kind::Int { min: 1, max: 1 << 20 },
        default: "4096",
        unit: "elements",
    },
    Param {
        key: "rows",
        about: "rows of a batch: a distribution, written as lengths are",
        kind: Kind::Text("a distribution of lengths", |text| Lengths::parse(text).map(drop)),
        default: "lognormal(6.5,0.8,64,8192)",
        unit: "rows",
    },
    Param {
        key: "streams",
        about: "whether inputs and gradients have streams of their own",
        kind: Kind::Flag,
        default: "yes",
        unit: "",
    },
    Param {
        key: "sync",
        about: "steps after which the host waits for the device; 0 for never",
        kind: Kind::Int { min: 0, max: 1_000_000_000 },
        default: "17",
        unit: "steps",
    },
    Param {
        key: "speed",
        about: "of the device's matrix products",
        kind: Kind::Real { min: 0.001, max: 1e6 },
        default: "55",
        unit: "operations in a picosecond (TFLOPS)",
    },
    Param {
        key: "making",
        about: "what the host takes to make an element of the input, before it is copied",
        kind: Kind::Int { min: 0, max: 1000 },
        default: "8",
        unit: "nanoseconds",
    },
    Param {
        key: "host",
        about: "what the host takes for the rest of a step, of which the backward pass is the longest part",
        kind: Kind::Int { min: 0, max: 1_000_000_000 },
        default: "8000000",
        unit: "nanoseconds",
    },
    Param {
        key: "steps",
        about: "training steps",
        kind: Kind::Int { min: 1, max: 1_000_000_000 },
        default: "80",
        unit: "steps",
    },
];

pub(super) const GENERATOR: Generator = Generator {
    name: "mlp",
    about: "training of a stack of perceptrons in fp32, with streams for its inputs and for its gradients",
    version: 1,
    params: &[COMMON, PARAMS],
    build,
};

/// Streams: that of the network, that of its inputs, and that of the gradients' norm.
const NETWORK: StreamId = StreamId::DEFAULT;
const INPUTS: StreamId = StreamId(1);
const NORMS: StreamId = StreamId(2);

/// Bytes that the device's memory moves in a nanosecond.
const BANDWIDTH: u64 = 4000;

/// How often AdamW's kernels read or write each parameter, its gradient and its states.
const OPTIMIZER_PASSES: u64 = 16;

struct Mlp {
    blocks: u64,
    hidden: u64,
    ffn: u64,
    rows: Lengths,
    has_streams: bool,
    sync: u64,
    speed: f64,
    making: u64,
    host: u64,
    steps: u64,
    seed: u64,
}

fn build(values: &Values) -> Result<Box<dyn Job>, String> {
    Ok(Box::new(Mlp {
        blocks: values.int("blocks"),
        hidden: values.int("hidden"),
        ffn: values.int("ffn"),
        rows: Lengths::parse(values.text("rows"))?,
        has_streams: values.flag("streams"),
        sync: values.int("sync"),
        speed: values.real("speed"),
        making: values.int("making"),
        host: values.int("host"),
        steps: values.int("steps"),
        seed: values.int("seed"),
    }))
}

struct Block {
    widen: Linear,
    gelu: Name,
    narrow: Linear,
}

struct Names {
    input: Name,
    loss: Name,
    half: Name,
    norm: Name,
}

impl Mlp {
    /// Runs `body` on one of the streams, after `on` has done what it was told to.
    fn after<T>(&self, gpu: &Gpu, on: StreamId, stream: StreamId, body: impl FnOnce() -> T) -> T {
        if !self.has_streams {
            return body();
        }
        gpu.on_stream(stream, || {
            gpu.wait_for(on);
            body()
        })
    }

    /// The tensor is used on a stream that is not its own.
    fn lend(&self, gpu: &Gpu, tensor: &Tensor, stream: StreamId) {
        if self.has_streams {
            gpu.record_stream(tensor, stream);
        }
    }

    /// A batch from the host, `(x - mean) / (deviation + ε)`, in place.
    fn input(&self, gpu: &Gpu, rows: u64, name: Name) -> Tensor {
        let x = gpu.tensor(rows * self.hidden, Dtype::F32, Role::Input, name);
        let scalar = || gpu.tensor(1, Dtype::F32, Role::Temporary, name);
        let mean = scalar();
        Reduction::whole(x.elements()).run(gpu, name);
        drop(mean);
        let deviation = scalar();
        Reduction::whole(x.elements()).with_partial(Reduction::VARIANCE).run(gpu, name);
        let shifted = scalar();
        drop(deviation);
        drop(shifted);
        gpu.work(5 * x.bytes() / BANDWIDTH);
        x
    }

    /// The sum of the norms of all gradients' halves, which live until it is known, and longer.
    fn norms(&self, gpu: &Gpu, parameters: &[Parameter], names: &Names) -> (Vec<Tensor>, Tensor) {
        let mut halves = Vec::new();
        for grad in parameters.iter().filter_map(Parameter::grad) {
            self.lend(gpu, &grad, NORMS);
            halves.push(gpu.like(&grad, Role::Temporary, names.half));
            gpu.work(3 * grad.bytes() / BANDWIDTH);
        }
        let mut norms = Vec::new();
        for half in &halves {
            norms.push(gpu.tensor(1, Dtype::F32, Role::Temporary, names.norm));
            Reduction::whole(half.elements()).run(gpu, names.norm);
        }
        let stacked = gpu.tensor(norms.len() as u64, Dtype::F32, Role::Temporary, names.norm);
        release_list(norms);
        let total = gpu.tensor(1, Dtype::F32, Role::Temporary, names.norm);
        drop(stacked);
        self.lend(gpu, &total, NETWORK);
        (halves, total)
    }

    /// The time of a pass of so many rows through all layers, in nanoseconds.
    fn pass(&self, rows: u64) -> u64 {
        let operations = 4.0 * (rows * self.blocks * self.hidden) as f64 * self.ffn as f64;
        (operations / self.speed / 1000.0) as u64
    }
}

impl Job for Mlp {
    fn run(&self, gpu: &Gpu) {
        let cx = Cx::plain(gpu);
        let names = Names {
            input: gpu.name("input"),
            loss: gpu.name("loss"),
            half: gpu.name("gradients.half"),
            norm: gpu.name("gradients.norm"),
        };
        let block = |i| Block {
            widen: TRAINED.linear(gpu, self.hidden, self.ffn, true, &format!("blocks.{i}.widen")),
            gelu: gpu.name(&format!("blocks.{i}.gelu")),
            narrow: TRAINED.linear(gpu, self.ffn, self.hidden, true, &format!("blocks.{i}.narrow")),
        };
        let blocks: Vec<Block> = (0..self.blocks).map(block).collect();
        let layers = blocks.iter().flat_map(|block| [&block.widen, &block.narrow]);
        let parameters: Vec<Parameter> = layers.flat_map(Linear::parameters).cloned().collect();
        let weights: u64 = parameters.iter().map(|parameter| parameter.elements() * 4).sum();
        let mut optimizer = AdamW::new(gpu, parameters.len());

        for (step, rows) in (0..self.steps).zip(self.rows.sampler(Rng::new(self.seed))) {
            if gpu.is_stopped() {
                break;
            }
            gpu.mark(format!("iteration {step}"));
            gpu.host(self.making * rows * self.hidden);
            let input = if self.has_streams {
                gpu.on_stream(INPUTS, || self.input(gpu, rows, names.input))
            } else {
                self.input(gpu, rows, names.input)
            };
            gpu.host(self.host / 8);
            let (loss, output) = self.after(gpu, INPUTS, NETWORK, || {
                self.lend(gpu, &input, NETWORK);
                let mut x = input;
                for block in &blocks {
                    let wide = block.widen.forward(&cx, &x);
                    let active = gelu(gpu, &wide, block.gelu);
                    drop(wide);
                    x = block.narrow.forward(&cx, &active);
                }
                gpu.work(self.pass(rows));
                let distance = shift(gpu, &x, names.loss);
                let squares = pow(&cx, &distance, names.loss);
                drop(distance);
                (mean(gpu, &squares, names.loss), x)
            });
            backward_from(gpu, &loss, names.loss);
            gpu.work(2 * self.pass(rows));
            gpu.host(self.host / 2);

            let (halves, total) = self.after(gpu, NETWORK, NORMS, || self.norms(gpu, &parameters, &names));
            self.after(gpu, NORMS, NETWORK, || {
                optimizer.step(gpu, &parameters);
                gpu.work(OPTIMIZER_PASSES * weights / BANDWIDTH);
            });
            gpu.host(self.host / 4);
            zero_grad(&parameters);
            release_list(halves);
            drop(total);
            drop(output);
            drop(loss);
            gpu.host(self.host / 8);
            if self.sync > 0 && (step + 1) % self.sync == 0 {
                gpu.sync();
            }
        }
        gpu.exit();
    }
}
