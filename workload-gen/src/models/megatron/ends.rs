//! What comes before the first layer and after the last: tables of tokens that are split along the vocabulary, and the loss.

use super::linear::{Gathered, ParallelLinear};
use super::{Maker, MegatronConfig, Micro, Norm};
use crate::ops::{Cx, Reduction, add, dropout, embedding, gather};
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};
use std::rc::Rc;

pub(super) struct Embedding {
    config: MegatronConfig,
    tokens: Parameter,
    positions: Option<Parameter>,
    name: Name,
}

impl Embedding {
    pub(super) fn new(maker: &mut Maker<'_>) -> Embedding {
        let config = maker.config;
        let tokens = maker.weight(config.vocab() * config.shape.hidden, "embedding.word_embeddings.weight");
        let rows = config.shape.position_rows();
        let positions =
            (rows > 0).then(|| maker.weight(rows * config.shape.hidden, "embedding.position_embeddings.weight"));
        Embedding { config, tokens, positions, name: maker.gpu.name("embedding") }
    }

    pub(super) fn forward(&self, gpu: &Gpu, micro: Micro, tokens: &Tensor) -> Tensor {
        let (name, hidden) = (self.name, self.config.shape.hidden);
        let masked = (self.config.tensor_parallel > 1).then(|| self.masked(gpu, tokens));
        let cx = &Cx::plain(gpu);
        let mut out = embedding(cx, masked.as_ref().unwrap_or(tokens), &self.tokens, hidden, name);
        drop(masked);
        if let Some(table) = &self.positions {
            let ids = gpu.tensor(micro.columns, Dtype::I64, Role::Input, name);
            let rows = embedding(cx, &ids, table, hidden, name);
            out = add(gpu, &out, &rows, name);
        }
        // From one sequence after another to one position after another.
        out = gather(gpu, &out, name);
        let shards = self.config.sequence_shards();
        if shards > 1 {
            out = split(gpu, &out, shards, name);
        }
        if self.config.has_dropout { dropout(gpu, &out, name) } else { out }
    }

    /// The tokens that this rank has rows for, counted from its first; the others are zero.
    fn masked(&self, gpu: &Gpu, tokens: &Tensor) -> Tensor {
        let bytes = || gpu.tensor(tokens.elements(), Dtype::U8, Role::Temporary, self.name);
        let (below, above) = (bytes(), bytes());
        let mask = bytes();
        drop((below, above));
        let copy = gpu.like(tokens, Role::Temporary, self.name);
        let masked = gpu.like(tokens, Role::Input, self.name);
        drop((copy, mask));
        masked
    }
}

/// This rank's part of the sequence. The gradient is gathered.
fn split(gpu: &Gpu, x: &Tensor, shards: u64, name: Name) -> Tensor {
    let tape = gpu.tape(name, &[x]);
    let (elements, dtype) = (x.elements(), x.dtype());
    let out = gpu.tensor(elements / shards, dtype, Role::Activation, name);
    tape.record(out, move |gpu, _grad| vec![Some(gpu.tensor(elements, dtype, Role::Communication, name))])
}

pub(super) struct Head {
    norm: Norm,
    output: ParallelLinear,
    /// Whether the vocabulary is split.
    name: Name,
    loss: Name,
}

impl Head {
    /// A table that is the embedding's is another tensor nonetheless where the embedding is on another stage.
    pub(super) fn new(maker: &mut Maker<'_>, embedding: Option<&Embedding>, gathered: &Rc<Gathered>) -> Head {
        let config = maker.config;
        let norm = Norm::new(maker, "final_layernorm");
        let table = match embedding {
            Some(embedding) if config.shape.is_tied => embedding.tokens.clone(),
            _ => maker.weight(config.vocab() * config.shape.hidden, "output_layer.weight"),
        };
        let name = maker.gpu.name("output_layer");
        let output = ParallelLinear::of(&config, table, name, gathered);
        Head { norm, output, name, loss: maker.gpu.name("loss") }
    }

    /// The loss, and what is kept of it for the log. `batch` ends with the labels and the loss's mask, or has positions behind them.
    pub(super) fn forward(&self, gpu: &Gpu, micro: Micro, hidden: Tensor, batch: &[Tensor]) -> (Tensor, Tensor) {
        let name = self.loss;
        let logits = {
            let normed = self.norm.forward(gpu, &hidden);
            self.output.forward(gpu, &normed)
        };
        drop(hidden);
        let tokens = micro.rows * micro.columns;
        let losses = {
            let labels = gpu.tensor(tokens, Dtype::I64, Role::Temporary, name);
            let losses = self.cross_entropy(gpu, &logits, &labels);
            gather(gpu, &losses, name)
        };
        drop(logits);
        let scalar = |dtype, role| gpu.tensor(1, dtype, role, name);
        let loss = masked_sum(gpu, &losses, &batch[1], name);
        drop(losses);
        let count = {
            let sum = scalar(Dtype::F32, Role::Temporary);
            let copy = scalar(Dtype::F32, Role::Temporary);
            drop(sum);
            let count = scalar(Dtype::I32, Role::Temporary);
            drop(copy);
            count
        };
        let copy = scalar(Dtype::F32, Role::Temporary);
        let report = gpu.tensor(2, Dtype::F32, Role::Buffer, name);
        drop((copy, count));
        (loss, report)
    }

    /// The loss of each token (`_VocabParallelCrossEntropy`): the logits in 32 bits become the softmax where they lie.
    fn cross_entropy(&self, gpu: &Gpu, logits: &Tensor, labels: &Tensor) -> Tensor {
        let name = self.name;
        let tape = gpu.tape(name, &[logits]);
        let tokens = labels.elements();
        let each = |dtype, role| gpu.tensor(tokens, dtype, role, name);
        let (elements, dtype) = (logits.elements(), logits.dtype());
        let softmax = gpu.tensor(elements, Dtype::F32, Role::Activation, name);
        let largest = (each(Dtype::F32, Role::Temporary), each(Dtype::I64, Role::Temporary)).0;
        let mask = {
            let sides = (each(Dtype::U8, Role::Temporary), each(Dtype::U8, Role::Temporary));
            let mask = each(Dtype::U8, Role::Activation);
            drop(sides);
            mask
        };
        let classes = {
            let copy = each(Dtype::I64, Role::Temporary);
            let classes = each(Dtype::I64, Role::Activation);
            drop(copy);
            classes
        };
        let predicted = {
            let range = each(Dtype::I64, Role::Temporary);
            let chosen = each(Dtype::F32, Role::Temporary);
            let copy = each(Dtype::F32, Role::Temporary);
            drop((range, chosen));
            copy
        };
        let sum = each(Dtype::F32, Role::Temporary);
        let logarithm = each(Dtype::F32, Role::Temporary);
        let loss = each(Dtype::F32, Role::Activation);
        drop((logarithm, sum, predicted, largest));
        let saved = (tape.save(&softmax), tape.save(&mask), tape.save(&classes));
        tape.record(loss, move |gpu, _grad| {
            let _saved = (saved.0.unpack(gpu), saved.1.unpack(gpu), saved.2.unpack(gpu));
            let each = |dtype| gpu.tensor(tokens, dtype, Role::Temporary, name);
            let range = each(Dtype::I64);
            let update = {
                let float = each(Dtype::F32);
                let update = each(Dtype::F32);
                drop(float);
                update
            };
            let chosen = each(Dtype::F32);
            drop((each(Dtype::F32), chosen));
            drop((range, update));
            // The engine puts the gradient into the type of the logits.
            vec![Some(gpu.tensor(elements, dtype, Role::Gradient, name))]
        })
    }
}

/// `torch.sum(losses * mask)`.
fn masked_sum(gpu: &Gpu, losses: &Tensor, mask: &Tensor, name: Name) -> Tensor {
    let elements = losses.elements();
    let product = {
        let tape = gpu.tape(name, &[losses]);
        let saved = tape.save(mask);
        let out = gpu.like(losses, Role::Temporary, name);
        tape.record(out, move |gpu, grad| {
            let _mask = saved.unpack(gpu);
            vec![Some(gpu.tensor(elements, grad.dtype(), Role::Gradient, name))]
        })
    };
    let tape = gpu.tape(name, &[&product]);
    let sum = gpu.tensor(1, Dtype::F32, Role::Activation, name);
    Reduction::whole(elements).run(gpu, name);
    tape.record(sum, move |_, grad| vec![Some(grad.view(elements))])
}
