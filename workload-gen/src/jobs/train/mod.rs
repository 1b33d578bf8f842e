//! Training of a language model.

use super::{COMMON, Generator, Job};
use crate::lengths::Rng;
use crate::models::{Activation, Gpt, GptConfig, Model, Positions, Tokens, Weights, all_parameters};
use crate::ops::{AdamW, Cx, Form, zero_grad};
use crate::spec::{Kind, Param, Values};
use crate::tensor::{Dtype, Gpu, Role, Tensor, backward};
use std::rc::Rc;

pub(super) const GENERATOR: Generator =
    Generator { name: "train", about: "training of a language model", version: 1, params: &[PARAMS, COMMON], build };

const PARAMS: &[Param] = &[
    Param { key: "layers", about: "layers", kind: Kind::Int { min: 1, max: 1000 }, default: "12", unit: "layers" },
    Param { key: "lengths", about: "lengths", kind: Kind::Text("", |_| Ok(())), default: "512", unit: "tokens" },
];

fn build(values: &Values) -> Result<Box<dyn Job>, String> {
    let lens = values
        .text("lengths")
        .trim_start_matches("list(")
        .trim_end_matches(')')
        .split('+')
        .filter_map(|x| x.parse().ok())
        .collect();
    Ok(Box::new(Train { layers: values.int("layers"), lens }))
}

struct Train {
    layers: u64,
    lens: Vec<u64>,
}

impl Job for Train {
    fn run(&self, gpu: &Gpu) {
        let _ = Rng::new(0);
        let config = GptConfig {
            layers: self.layers,
            hidden: 768,
            heads: 12,
            ffn: 3072,
            vocab: 50257,
            positions: Positions::Learned(2048),
            activation: Activation::NewGelu,
            form: Form::Conv1d,
            is_fused: true,
            is_parallel: false,
            is_tied: true,
            has_dropout: true,
            has_cache: true,
            shards: 1,
        };
        let model: Rc<dyn Model> = Rc::new(Gpt::new(gpu, config, Weights { dtype: Dtype::F32, are_trained: true }));
        let parameters = all_parameters(&*model);
        let mut optimizer = AdamW::new(gpu, parameters.len());
        let input = gpu.name("batch");
        let lossname = gpu.name("loss");
        let mut tokens: Option<Tokens> = None;
        let mut loss: Option<Tensor> = None;
        for (n, &l) in self.lens.iter().enumerate() {
            gpu.mark(format!("iteration {n}"));
            let ids = gpu.tensor(8 * l, Dtype::I64, Role::Input, input);
            let batch = Tokens { ids, rows: 8, columns: l };
            tokens = Some(batch.clone());
            let new = {
                let cx = Cx::autocast(gpu, Dtype::Bf16);
                let mut flow = model.embed(&cx, &batch);
                crate::models::run_layers(&model, &cx, &mut flow, false);
                model.loss(&cx, flow, &batch)
            };
            loss = Some(new.clone());
            let one = gpu.like(&new, Role::Gradient, lossname);
            backward(gpu, &new, one.clone());
            drop(one);
            optimizer.step(gpu, &parameters);
            zero_grad(&parameters);
            gpu.sync();
        }
        gpu.exit();
        drop((tokens, loss));
    }
}
