//! Generation of text by `generate` of transformers: greedy, in batches, with keys and values that grow by being copied.
//!
//! A call gets prompts of one length and makes so many tokens for each. What it allocates between two forward passes follows
//! `generation/utils.py` of transformers 5.17; names there keep the values of the step before, so small tensors live longer than they
//! seem to.

use super::train::shape;
use super::{COMMON, Generator, Job};
use crate::lengths::{Lengths, Rng, Sampler};
use crate::models::{KvCache, Llama, LlamaShape, Parts, Tokens};
use crate::ops::{Cx, cumsum};
use crate::spec::{Kind, Param, Values};
use crate::tensor::{Dtype, Gpu, Name, Role, Tensor};
use std::rc::Rc;

const fn int(key: &'static str, about: &'static str, max: u64, default: &'static str, unit: &'static str) -> Param {
    Param { key, about, kind: Kind::Int { min: 1, max }, default, unit }
}

const fn lengths(key: &'static str, about: &'static str, default: &'static str, unit: &'static str) -> Param {
    const FORM: &str = "a number, uniform(16,2048), lognormal(6.2,0.7), azure-chat or list(486,753)";
    Param { key, about, kind: Kind::Text(FORM, |text| Lengths::parse(text).map(drop)), default, unit }
}

const PARAMS: &[Param] = &[
    Param {
        key: "model",
        about: "the model: a published one, whose numbers the next parameters change",
        kind: Kind::Name(&["llama-2-7b", "llama-2-13b", "llama-2-70b", "llama-3-8b"]),
        default: "llama-2-7b",
        unit: "",
    },
    int("layers", "layers", 10_000, "", "layers"),
    int("hidden", "width of the hidden states", 1 << 20, "", "elements"),
    int("ffn", "width of the MLP; with `hidden` it is the same multiple of it", 1 << 22, "", "elements"),
    int("heads", "heads of the queries", 4096, "", "heads"),
    int("kv-heads", "heads of the keys and values; with `heads` the same share of them", 4096, "", "heads"),
    int(
        "positions",
        "the model's longest sequence; longer prompts are cut, and generation ends there",
        1 << 24,
        "",
        "tokens",
    ),
    int("vocab", "tokens in the vocabulary", 1 << 24, "", "tokens"),
    Param {
        key: "dtype",
        about: "type of the weights and of what is computed",
        kind: Kind::Choice(&["bf16", "fp16", "fp32"]),
        default: "bf16",
        unit: "",
    },
    Param {
        key: "convert",
        about: "the model is made in fp32 on the device and then put into its type, and not loaded in its type",
        kind: Kind::Flag,
        default: "no",
        unit: "",
    },
    int("calls", "calls of generate", 1_000_000_000, "20", "calls"),
    lengths("batch", "prompts of a call: a distribution, written as lengths are", "8", "prompts"),
    lengths("prompt", "tokens of each prompt of a call, padding included", "lognormal(5.5,0.8,16,2048)", "tokens"),
    lengths("new", "tokens that a call makes for each prompt", "lognormal(3.7,0.7,4,512)", "tokens"),
];

pub(super) const GENERATOR: Generator = Generator {
    name: "generate",
    about: "greedy generation in batches by a Llama, as transformers runs it, with a cache that grows",
    version: 1,
    params: &[PARAMS, COMMON],
    build: |values| Ok(Box::new(Generate::new(values)?)),
};

/// The most bytes of a tensor.
const LARGEST: u128 = 1 << 52;

struct Generate {
    shape: LlamaShape,
    /// Tokens of the longest sequence.
    longest: u64,
    calls: u64,
    batch: Lengths,
    prompt: Lengths,
    new: Lengths,
    seed: u64,
}

impl Generate {
    fn new(values: &Values) -> Result<Generate, String> {
        let numbers = shape(values)?;
        let dtype = match values.text("dtype") {
            "fp16" => Dtype::F16,
            "fp32" => Dtype::F32,
            _ => Dtype::Bf16,
        };
        let shape = LlamaShape {
            layers: numbers.layers as usize,
            hidden: numbers.hidden,
            ffn: numbers.ffn,
            heads: numbers.heads,
            kv_heads: numbers.kv_heads,
            head_width: numbers.head_width,
            vocabulary: numbers.vocab,
            made: if values.flag("convert") { Dtype::F32 } else { dtype },
            dtype,
            is_tied: numbers.is_tied,
            is_adapted: false,
            is_checkpointed: false,
            parts: Parts::default(),
        };
        let lengths = |key: &str| Lengths::parse(values.text(key));
        let (calls, seed) = (values.int("calls"), values.int("seed"));
        let (batch, prompt, new) = (lengths("batch")?, lengths("prompt")?, lengths("new")?);
        let (rows, columns) = (u128::from(batch.range().1), u128::from(prompt.range().1.min(numbers.positions)));
        let width = u128::from(shape.hidden.max(shape.ffn).max(shape.heads * shape.head_width));
        if rows * (columns * width).max(u128::from(shape.vocabulary)) * 8 > LARGEST {
            return Err(format!(
                "batch={} of {columns} tokens each makes tensors of more than 2^52 bytes; give smaller `batch` or `prompt`",
                values.text("batch")
            ));
        }
        Ok(Generate { shape, longest: numbers.positions, calls, batch, prompt, new, seed })
    }
}

impl Job for Generate {
    fn run(&self, gpu: &Gpu) {
        let model = Rc::new(Llama::new(gpu, &self.shape));
        let rng = Rng::new(self.seed);
        let [mut batch, mut prompt, mut new]: [Sampler; 3] =
            [(&self.batch, 0), (&self.prompt, 1), (&self.new, 2)].map(|(of, stream)| of.sampler(rng.fork(stream)));
        let (ids, work) = (gpu.name("input_ids"), gpu.name("generate"));
        for number in 0..self.calls {
            if gpu.is_stopped() {
                break;
            }
            gpu.mark(format!("call {number}"));
            let (rows, columns) = (batch.draw(), prompt.draw().min(self.longest));
            // The last token is not read any more.
            let new = new.draw().min(self.longest - columns + 1);
            let prompt = gpu.tensor(rows * columns, Dtype::I64, Role::Input, ids);
            let call = Call { gpu, model: &model, layers: self.shape.layers, rows, ids, work };
            let output = gpu.no_grad(|| call.run(&prompt, new));
            drop(prompt);
            drop(output);
        }
        gpu.exit();
    }
}

/// A call of `generate`.
struct Call<'a> {
    gpu: &'a Gpu,
    model: &'a Rc<Llama>,
    layers: usize,
    /// Prompts.
    rows: u64,
    ids: Name,
    work: Name,
}

/// What the next forward pass needs beside its tokens: which tokens are no padding, and where they are. Fields go in this order.
struct Arguments {
    mask: Tensor,
    positions: Tensor,
}

/// What a forward pass is given. Fields go in this order.
struct Inputs {
    ids: Tensor,
    positions: Tensor,
    mask: Tensor,
}

impl Call<'_> {
    /// Makes `new` tokens for each prompt. Returns the prompts with what was made for them.
    fn run(&self, prompt: &Tensor, new: u64) -> Tensor {
        let (gpu, rows) = (self.gpu, self.rows);
        // The numbers of the first token and of padding.
        let special = [self.numbers(1), self.numbers(1)];
        // Where prompts come in a batch, none may end in padding.
        let is_padded = (rows > 1).then(|| {
            let ends = self.bits(rows);
            let count = self.numbers(1);
            drop(self.numbers(rows));
            drop(ends);
            let is_padded = self.bits(1);
            gpu.sync();
            drop(count);
            is_padded
        });
        let first = Arguments { mask: self.mask(prompt.elements()), positions: self.positions(prompt) };
        let cache = Rc::new(KvCache::new(self.layers));
        let output = self.sample(prompt, &first, new, &cache);
        drop((special, first));
        drop(cache);
        drop(is_padded);
        output
    }

    /// `_sample`: a pass over the prompts, and one for each further token.
    fn sample(&self, prompt: &Tensor, first: &Arguments, new: u64, cache: &Rc<KvCache>) -> Tensor {
        let (gpu, rows) = (self.gpu, self.rows);
        let cx = Cx::plain(gpu);
        let mut unfinished = self.numbers(rows);
        let mut ids = prompt.clone();
        let mut arguments: Option<Arguments> = None;
        let mut inputs: Option<Inputs> = None;
        let (mut scores, mut chosen): (Option<Tensor>, Option<Tensor>) = (None, None);
        let width = prompt.elements() / rows;
        for step in 0..new {
            if gpu.is_stopped() {
                break;
            }
            let logits = match &arguments {
                None => {
                    let ids = gpu.like(prompt, Role::Input, self.ids);
                    let tokens = Tokens { ids, rows, columns: width };
                    self.model.predict(&cx, &tokens, [&first.positions, &first.mask], cache)
                }
                Some(arguments) => {
                    let last = |role: Role, name: Name| gpu.tensor(rows, Dtype::I64, role, name);
                    let (ids, positions) = (last(Role::Input, self.ids), last(Role::Temporary, self.work));
                    let next = inputs.insert(Inputs { ids, positions, mask: arguments.mask.clone() });
                    let tokens = Tokens { ids: next.ids.clone(), rows, columns: 1 };
                    self.model.predict(&cx, &tokens, [&next.positions, &next.mask], cache)
                }
            };
            let columns = width + step + 1;
            arguments = Some(self.lengthened(columns));
            scores = Some(gpu.tensor(logits.elements(), Dtype::F32, Role::Temporary, self.work));
            chosen = Some(self.numbers(rows));
            ids = gpu.tensor(rows * columns, Dtype::I64, Role::Input, self.ids);
            unfinished = self.stop();
            // The host waits to know whether any sequence goes on.
            let most = self.numbers(1);
            let is_over = self.bits(1);
            gpu.sync();
            drop((most, is_over, logits));
        }
        drop(arguments);
        drop(unfinished);
        drop(inputs);
        drop((scores, chosen));
        ids
    }

    /// Where each token is after the next: `_update_model_kwargs_for_generation`.
    fn lengthened(&self, columns: u64) -> Arguments {
        let rows = self.rows;
        let range = self.numbers(1);
        let last = self.numbers(rows);
        drop(range);
        let next = self.numbers(rows);
        drop(last);
        let positions = self.numbers(rows * columns);
        drop(next);
        let ones = self.numbers(rows);
        let mask = self.numbers(rows * columns);
        drop(ones);
        Arguments { mask, positions }
    }

    /// Which sequences go on. They end by their length alone.
    fn stop(&self) -> Tensor {
        let rows = self.rows;
        let none = self.bits(rows);
        let long = self.bits(rows);
        let done = self.bits(rows);
        drop((long, none));
        let open = self.bits(rows);
        drop(done);
        let unfinished = self.numbers(rows);
        drop(open);
        unfinished
    }

    /// Which tokens are no padding: `_prepare_attention_mask_for_generation`.
    fn mask(&self, tokens: u64) -> Tensor {
        let ones = self.numbers(tokens);
        let has_padding = {
            let found = self.bits(tokens);
            let (start, equal) = (self.bits(tokens), self.bits(tokens));
            drop((equal, start));
            let any = self.bits(1);
            drop(found);
            any
        };
        let can_tell = self.bits(1);
        let differs = self.bits(tokens);
        let of_padding = self.numbers(tokens);
        drop(differs);
        let told = self.numbers(tokens);
        let cannot = self.bits(1);
        let untold = self.numbers(tokens);
        drop(cannot);
        let mask = self.numbers(tokens);
        drop((told, untold, ones, has_padding, can_tell, of_padding));
        mask
    }

    /// Where each token is: `_prepare_position_ids_for_generation`.
    fn positions(&self, prompt: &Tensor) -> Tensor {
        let counted = cumsum(self.gpu, prompt, Dtype::I64, self.rows, self.work);
        let less_one = self.numbers(prompt.elements());
        drop(counted);
        let padding = self.bits(prompt.elements());
        let positions = self.numbers(prompt.elements());
        drop((padding, less_one));
        positions
    }

    fn numbers(&self, count: u64) -> Tensor {
        self.gpu.tensor(count, Dtype::I64, Role::Temporary, self.work)
    }

    fn bits(&self, count: u64) -> Tensor {
        self.gpu.tensor(count, Dtype::U8, Role::Temporary, self.work)
    }
}
