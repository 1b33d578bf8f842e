//! What a line says about a training run.

use super::megatron::Layout;
use crate::lengths::{Lengths, Shaping};
use crate::models::ExpertsForm;
use crate::models::shapes::{self, Experts, Family, Shape};
use crate::spec::{Kind, Param, Values};
use crate::tensor::Dtype;

const fn count(key: &'static str, about: &'static str, max: u64, default: &'static str, unit: &'static str) -> Param {
    Param { key, about, kind: Kind::Int { min: 1, max }, default, unit }
}

const fn every(key: &'static str, about: &'static str, unit: &'static str) -> Param {
    Param { key, about, kind: Kind::Int { min: 0, max: 1_000_000_000 }, default: "0", unit }
}

const fn choice(
    key: &'static str,
    about: &'static str,
    words: &'static [&'static str],
    default: &'static str,
) -> Param {
    Param { key, about, kind: Kind::Choice(words), default, unit: "" }
}

const fn flag(key: &'static str, about: &'static str) -> Param {
    Param { key, about, kind: Kind::Flag, default: "no", unit: "" }
}

const LENGTHS: Kind =
    Kind::Text("lengths such as 512, uniform(16,2048), lognormal(6.2,0.7), azure-chat or list(237,276)", |text| {
        Lengths::parse(text).map(drop)
    });

const SHAPING: Kind = Kind::Text(
    "pad, bucket(N), pack(TOKENS), sort(asc), sort(desc), curriculum(FROM,TO), rising, alike or buffer",
    |text| Shaping::parse(text).map(drop),
);

/// The parameters, in the order in which people see them.
pub(super) const PARAMS: &[Param] = &[
    Param {
        key: "model",
        about: "the model: a published one, whose numbers the next parameters change",
        kind: Kind::Name(shapes::NAMES),
        default: "gpt2",
        unit: "",
    },
    count("layers", "layers; the model's if not given", 10_000, "", "layers"),
    count("hidden", "width of the hidden states; the model's if not given", 1 << 20, "", "elements"),
    count(
        "ffn",
        "width of the MLP; if not given, the model's, or the same multiple of `hidden`",
        1 << 22,
        "",
        "elements",
    ),
    count("heads", "heads of the queries; the model's if not given", 4096, "", "heads"),
    count(
        "kv-heads",
        "heads of the keys and values; if not given, the model's, or the same share of `heads`",
        4096,
        "",
        "heads",
    ),
    count("expert-count", "experts of a layer; the model's if not given", 4096, "", "experts"),
    count("expert-choices", "experts that each token is sent to; the model's if not given", 4096, "", "experts"),
    count(
        "expert-ffn",
        "width of an expert; if not given, the model's, or the same share of `ffn`",
        1 << 22,
        "",
        "elements",
    ),
    count("vocab", "tokens in the vocabulary; the model's if not given", 1 << 24, "", "tokens"),
    count("positions", "the longest sequence, longer ones are cut; the model's if not given", 1 << 24, "", "tokens"),
    choice(
        "dtype",
        "type of the weights, in which they are loaded; if not given, fp32 for GPT-2 and bf16 for others, as they were published, and bf16 with DeepSpeed",
        &["fp32", "bf16", "fp16"],
        "",
    ),
    flag("convert", "the model is made in fp32 on the device and then put into its type, and not loaded in its type"),
    choice("autocast", "type of matrix products under torch.autocast, or none", &["bf16", "fp16", "no"], "bf16"),
    Param {
        key: "dropout",
        about: "whether layers that have dropout use it",
        kind: Kind::Flag,
        default: "yes",
        unit: "",
    },
    count("batch", "sequences in a batch", 1 << 20, "8", "sequences"),
    Param {
        key: "lengths",
        about: "lengths of sequences",
        kind: LENGTHS,
        default: "lognormal(5.5,0.8)",
        unit: "tokens",
    },
    Param { key: "shaping", about: "what the data loader makes of them", kind: SHAPING, default: "pad", unit: "" },
    count("steps", "batches, in all epochs together", 1_000_000_000, "20", "batches"),
    count("accumulate", "batches whose gradients are added up before a step", 1 << 20, "1", "batches"),
    flag("clip", "gradients are clipped by their norm before a step; DeepSpeed 0.19 does so in any case"),
    choice(
        "recompute",
        "which activations are made again in the backward pass",
        &["none", "selective", "full"],
        "none",
    ),
    Param {
        key: "lora",
        about: "rank of adapters on the attention's layers, whose base is frozen; 0 is none",
        kind: Kind::Int { min: 0, max: 65_536 },
        default: "0",
        unit: "rows",
    },
    choice(
        "zero",
        "what ranks share: nothing (0), optimizer states (1), gradients too (2), or weights too, as DeepSpeed (3) or fully_shard do",
        &["0", "1", "2", "3", "fsdp"],
        "0",
    ),
    count("ranks", "cards that train together, each on batches of its own", 1 << 16, "1", "ranks"),
    Param {
        key: "rank",
        about: "whose memory it is: which of `ranks`, whose last ones may have smaller shards, or which stage of `pp`",
        kind: Kind::Int { min: 0, max: (1 << 16) - 1 },
        default: "0",
        unit: "",
    },
    choice(
        "offload",
        "what DeepSpeed keeps on the host: nothing, the optimizer with its states and weights in 32 bits, or all weights too",
        &["none", "optimizer", "all"],
        "none",
    ),
    Param {
        key: "overlap",
        about: "whether zero=3 gathers weights and scatters gradients on streams of their own (overlap_comm)",
        kind: Kind::Flag,
        default: "yes",
        unit: "",
    },
    choice(
        "deepspeed",
        "whose release zero=1 to 3 follow: 0.19 clips in any case, and a frozen weight that a recomputed layer has used stays whole until \
         the backward pass is over",
        &["0.18", "0.19"],
        "0.19",
    ),
    every("epoch", "batches of an epoch; 0 is one epoch for all", "batches"),
    every("evals", "batches that are evaluated after each epoch", "batches"),
    count("eval-batch", "sequences in a batch that is evaluated", 1 << 20, "8", "sequences"),
    Param {
        key: "eval-lengths",
        about: "lengths of sequences that are evaluated; `lengths` if not given",
        kind: LENGTHS,
        default: "",
        unit: "tokens",
    },
    choice("eval-autocast", "type of matrix products in evaluations", &["bf16", "fp16", "no"], "bf16"),
    flag("eval-dropout", "evaluations run in training mode: `model.eval()` was forgotten"),
    choice(
        "empty-cache",
        "where the job calls empty_cache: nowhere, after each step, or after each epoch and each round of evaluations",
        &["never", "step", "phase"],
        "never",
    ),
    every("save", "steps between checkpoints, for which weights are copied one after another; 0 is never", "steps"),
    choice(
        "leak",
        "what is kept by mistake: each step's loss, or the graphs of evaluations that forgot no_grad",
        &["none", "loss", "graph"],
        "none",
    ),
    choice(
        "experts",
        "how experts run: all in one grouped product, or one after another on the tokens that each was sent",
        &["grouped", "loop"],
        "grouped",
    ),
    Param {
        key: "skew",
        about: "how uneven a router's choices are: the standard deviation of the logarithm of an expert's share; with experts=loop or ep",
        kind: Kind::Real { min: 0.0, max: 10.0 },
        default: "0.5",
        unit: "",
    },
    Param {
        key: "drift",
        about: "batches after which the router's favourites are others; with experts=loop or ep",
        kind: Kind::Int { min: 1, max: 1_000_000_000 },
        default: "100",
        unit: "batches",
    },
];

/// A training run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) shape: Shape,
    pub(super) dtype: Dtype,
    pub(super) is_converted: bool,
    pub(super) autocast: Option<Dtype>,
    pub(super) has_dropout: bool,
    pub(super) batch: u64,
    pub(super) lengths: Lengths,
    pub(super) shaping: Shaping,
    pub(super) steps: u64,
    pub(super) accumulate: u64,
    pub(super) is_clipped: bool,
    pub(super) is_recomputed: bool,
    pub(super) lora: u64,
    pub(super) sharing: Sharing,
    pub(super) ranks: u64,
    pub(super) rank: u64,
    pub(super) offload: Offload,
    pub(super) overlaps: bool,
    /// Whether frozen weights that a recomputed layer has used stay whole until the backward pass is over.
    pub(super) holds_frozen: bool,
    pub(super) epoch: u64,
    pub(super) evals: u64,
    pub(super) eval_batch: u64,
    pub(super) eval_lengths: Lengths,
    pub(super) eval_autocast: Option<Dtype>,
    pub(super) eval_dropout: bool,
    pub(super) empties: Empties,
    pub(super) save: u64,
    pub(super) leak: Leak,
    pub(super) seed: u64,
    pub(super) experts: ExpertsForm,
    pub(super) skew: f64,
    pub(super) drift: u64,
    /// How the model is spread over ranks, if it is.
    pub(super) layout: Option<Layout>,
}

/// What ranks share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sharing {
    Alone,
    Replicas,
    States,
    Gradients,
    Weights,
    Fsdp,
}

impl Sharing {
    /// Whether DeepSpeed does it, which computes in 16 bits and updates weights in 32.
    pub(super) fn is_deepspeed(self) -> bool {
        matches!(self, Sharing::States | Sharing::Gradients | Sharing::Weights)
    }
}

/// What is kept on the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Offload {
    Nothing,
    Optimizer,
    All,
}

/// Where `empty_cache` is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Empties {
    Never,
    Step,
    Phase,
}

/// What is kept by mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leak {
    Nothing,
    Loss,
    Graph,
}

fn dtype(word: &str) -> Option<Dtype> {
    match word {
        "fp32" => Some(Dtype::F32),
        "bf16" => Some(Dtype::Bf16),
        "fp16" => Some(Dtype::F16),
        _ => None,
    }
}

fn offload(values: &Values, sharing: Sharing) -> Result<Offload, String> {
    let word = values.text("offload");
    let offload = match word {
        "optimizer" => Offload::Optimizer,
        "all" => Offload::All,
        _ => return Ok(Offload::Nothing),
    };
    let is_possible = if offload == Offload::All { sharing == Sharing::Weights } else { sharing.is_deepspeed() };
    if is_possible {
        return Ok(offload);
    }
    let stages = if offload == Offload::All { "zero=3" } else { "zero=1, zero=2 or zero=3" };
    Err(format!("offload={word} needs {stages}; this is zero={}", values.text("zero")))
}

/// The model that a line means: a published one, with the numbers that are given.
pub(in crate::jobs) fn shape(values: &Values) -> Result<Shape, String> {
    let name = values.text("model");
    let mut shape = shapes::shape(name).ok_or_else(|| format!("model={name}: there is no such shape"))?;
    let published = shape;
    let number = |key: &str, of_model: u64| values.int_or(key, of_model);
    shape.layers = number("layers", shape.layers);
    shape.hidden = number("hidden", shape.hidden);
    shape.heads = number("heads", shape.heads);
    shape.ffn = number("ffn", (published.ffn * shape.hidden / published.hidden).max(1));
    shape.kv_heads = number("kv-heads", (published.kv_heads * shape.heads / published.heads).max(1));
    shape.vocab = number("vocab", shape.vocab);
    shape.positions = number("positions", shape.positions);
    if values.is_given("hidden") || values.is_given("heads") {
        shape.head_width = shape.hidden / shape.heads;
        if !shape.hidden.is_multiple_of(shape.heads) {
            return Err(format!(
                "hidden={} elements do not go evenly into heads={}; give a multiple",
                shape.hidden, shape.heads
            ));
        }
    }
    let is_turned = !matches!(shape.family, Family::Gpt2 | Family::Opt) && shape.latent.is_none();
    if is_turned && !shape.head_width.is_multiple_of(2) {
        return Err(format!(
            "hidden={} makes each of heads={} {} elements wide, of which rotary positions turn pairs; give a hidden that is a multiple of twice \
             the heads",
            shape.hidden, shape.heads, shape.head_width
        ));
    }
    if !shape.heads.is_multiple_of(shape.kv_heads) {
        return Err(format!(
            "heads={} cannot share kv-heads={} evenly; give a divisor of the heads",
            shape.heads, shape.kv_heads
        ));
    }
    Ok(shape)
}

/// The model's experts: the numbers of its own that a line does not change.
fn experts(values: &Values, shape: &Shape) -> Result<Option<Experts>, String> {
    let name = values.text("model");
    let published = shapes::shape(name).map_or(shape.ffn, |shape| shape.ffn);
    let Some(experts) = shape.experts else {
        return match ["expert-count", "expert-choices", "expert-ffn"].iter().find(|key| values.is_given(key)) {
            Some(key) => Err(format!("{key} is of a model with experts, and {name} has none; choose another model")),
            None => Ok(None),
        };
    };
    let wide = |width: u64| (width * shape.ffn / published).max(width.min(1));
    let count = values.int_or("expert-count", experts.count);
    let per_token = values.int_or("expert-choices", experts.per_token);
    if per_token > count {
        return Err(format!("expert-choices={per_token} are more than expert-count={count}; give fewer"));
    }
    let ffn = values.int_or("expert-ffn", wide(experts.ffn));
    // What all tokens go through is as wide as so many experts.
    let shared_ffn = experts.shared_ffn * ffn / experts.ffn;
    Ok(Some(Experts { count, per_token, ffn, shared_ffn, ..experts }))
}

/// Bytes that no tensor may have: far beyond any device, and so little that sums do not overflow.
const MOST: u128 = 1 << 52;

/// Refuses batches whose logits, widest activations or scores would be absurdly large.
fn check_sizes(values: &Values, shape: &Shape, batches: &[(&str, &str, &Lengths)]) -> Result<(), String> {
    for (rows, columns, lengths) in batches {
        let batch = values.int(rows);
        let longest = lengths.range().1.min(shape.positions);
        let widest = shape.vocab.max(shape.ffn).max(4 * shape.hidden).max(shape.heads * longest);
        if u128::from(batch) * u128::from(longest) * u128::from(widest) * 8 > MOST {
            return Err(format!(
                "{rows}={batch} sequences of up to {longest} tokens make tensors of more than 2^52 bytes; give a smaller `{rows}`, \
                 shorter `{columns}` or fewer `positions`"
            ));
        }
    }
    Ok(())
}

/// Refuses what changes nothing because something else is missing: whoever gave it meant something.
fn check_idle(values: &Values, sharing: Sharing, shape: &Shape, is_spread: bool) -> Result<(), String> {
    let has_experts = shape.experts.is_some();
    let has_loads = has_experts && (values.text("experts") == "loop" || is_spread);
    let needs: [(&[&str], bool, &str); 5] = [
        (&["overlap"], sharing == Sharing::Weights, "zero=3"),
        (&["deepspeed"], sharing.is_deepspeed(), "zero=1, zero=2 or zero=3"),
        (&["experts"], has_experts, "a model that has experts"),
        (
            &["skew", "drift"],
            has_loads,
            "a model whose experts run one after another (experts=loop) or are spread (ep)",
        ),
        (&["eval-batch", "eval-lengths", "eval-autocast", "eval-dropout"], values.int("evals") > 0, "evals"),
    ];
    for (keys, is_there, needed) in needs {
        if !is_there && let Some(key) = keys.iter().find(|key| values.is_changed(key)) {
            return Err(format!("{key}={} changes nothing without {needed}; leave it out", values.text(key)));
        }
    }
    if values.text("leak") == "graph" && values.int("evals") == 0 {
        return Err("leak=graph is a leak of evaluations, and there are none without evals; leave it out".to_string());
    }
    Ok(())
}

impl Plan {
    /// Reads a line's values.
    pub(super) fn new(values: &Values) -> Result<Plan, String> {
        let lengths = Lengths::parse(values.text("lengths"))?;
        let eval_lengths = match values.text("eval-lengths") {
            "" => lengths.clone(),
            given => Lengths::parse(given)?,
        };
        let mut shape = shape(values)?;
        shape.experts = experts(values, &shape)?;
        check_sizes(values, &shape, &[("batch", "lengths", &lengths), ("eval-batch", "eval-lengths", &eval_lengths)])?;
        let layout = Layout::new(values, &shape)?;
        let (ranks, rank) = (values.int("ranks"), values.int("rank"));
        if rank >= ranks && layout.is_none() {
            return Err(format!(
                "rank={rank} is none of ranks={ranks}, which are numbered from 0 on; a stage of a pipeline needs pp"
            ));
        }
        let sharing = match values.text("zero") {
            "1" => Sharing::States,
            "2" => Sharing::Gradients,
            "3" => Sharing::Weights,
            "fsdp" => Sharing::Fsdp,
            _ if ranks > 1 => Sharing::Replicas,
            _ => Sharing::Alone,
        };
        check_idle(values, sharing, &shape, layout.is_some())?;
        let (steps, accumulate) = (values.int("steps"), values.int("accumulate"));
        if layout.is_none() && accumulate > steps {
            return Err(format!(
                "steps={steps} batches are fewer than accumulate={accumulate}, so that there would be no step; give more"
            ));
        }
        let offload = offload(values, sharing)?;
        let is_new = values.text("deepspeed") == "0.19";
        // Weights in 16 bits need no autocast.
        let is_cast = matches!(sharing, Sharing::Alone | Sharing::Replicas) || values.is_given("autocast");
        let autocast = if is_cast { dtype(values.text("autocast")) } else { None };
        let is_whole = shape.family == Family::Gpt2 && !sharing.is_deepspeed();
        let published = if is_whole { Dtype::F32 } else { Dtype::Bf16 };
        Ok(Plan {
            layout,
            experts: if values.text("experts") == "loop" { ExpertsForm::Loop } else { ExpertsForm::Grouped },
            skew: values.real("skew"),
            drift: values.int("drift"),
            shape,
            dtype: dtype(values.text("dtype")).unwrap_or(published),
            is_converted: values.flag("convert"),
            autocast,
            has_dropout: values.flag("dropout"),
            batch: values.int("batch"),
            lengths,
            shaping: Shaping::parse(values.text("shaping"))?,
            steps: values.int("steps"),
            accumulate: values.int("accumulate"),
            is_clipped: values.flag("clip") || (sharing.is_deepspeed() && is_new),
            holds_frozen: is_new,
            is_recomputed: values.text("recompute") == "full",
            lora: values.int("lora"),
            sharing,
            ranks,
            rank,
            offload,
            overlaps: values.flag("overlap"),
            epoch: values.int("epoch"),
            evals: values.int("evals"),
            eval_batch: values.int("eval-batch"),
            eval_lengths,
            eval_autocast: dtype(values.text("eval-autocast")),
            eval_dropout: values.flag("eval-dropout"),
            empties: match values.text("empty-cache") {
                "step" => Empties::Step,
                "phase" => Empties::Phase,
                _ => Empties::Never,
            },
            save: values.int("save"),
            leak: match values.text("leak") {
                "loss" => Leak::Loss,
                "graph" => Leak::Graph,
                _ => Leak::Nothing,
            },
            seed: values.int("seed"),
        })
    }
}
