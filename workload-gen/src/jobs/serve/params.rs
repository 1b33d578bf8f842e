//! What a line may say about a server.

use crate::jobs::churn::is_lengths;
use crate::lengths::Arrivals;
use crate::spec::{Kind, Param};

const fn int(
    key: &'static str,
    about: &'static str,
    range: (u64, u64),
    default: &'static str,
    unit: &'static str,
) -> Param {
    Param { key, about, kind: Kind::Int { min: range.0, max: range.1 }, default, unit }
}

const fn choice(key: &'static str, about: &'static str, words: &'static [&'static str]) -> Param {
    Param { key, about, kind: Kind::Choice(words), default: words[0], unit: "" }
}

fn is_arrivals(text: &str) -> Result<(), String> {
    Arrivals::parse(text).map(drop)
}

/// The model: one by name, and numbers that differ from it.
pub(super) const MODEL: &[Param] = &[
    Param {
        key: "model",
        about: "a published model",
        kind: Kind::Name(&["llama-3-8b", "llama-2-7b", "llama-2-13b", "llama-2-70b"]),
        default: "llama-3-8b",
        unit: "",
    },
    int("layers", "layers; by default the model's", (1, 1000), "", "layers"),
    int("hidden", "width of what passes from layer to layer; by default the model's", (1, 1 << 17), "", "elements"),
    int("heads", "heads of the queries; by default the model's", (1, 1024), "", "heads"),
    int("kv-heads", "heads of the keys and values; by default the model's", (1, 1024), "", "heads"),
    int("head-dim", "width of a head; by default hidden / heads", (1, 4096), "", "elements"),
    int("ffn", "width of the feed-forward layers; by default the model's", (1, 1 << 20), "", "elements"),
    int("vocab", "tokens that there are; by default the model's", (2, 1 << 22), "", "tokens"),
    choice("dtype", "type of activations, and of weights that are not quantised", &["bf16", "f16", "f32"]),
    choice("weight-bits", "bits of a weight, if the layers are quantised", &["dtype", "8", "4"]),
    int("tp", "devices that share each layer (tensor parallelism); the trace is one device's", (1, 64), "1", "devices"),
    choice("attention", "flash: one kernel; math: the scores are written out", &["flash", "math"]),
];

/// The requests.
pub(super) const LOAD: &[Param] = &[
    int("steps", "decode steps of each model", (1, 1_000_000_000), "500", "steps"),
    Param {
        key: "prompt",
        about: "distribution of the lengths of prompts",
        kind: Kind::Text("a distribution such as lognormal(6,1), or a table such as azure-chat", is_lengths),
        default: "azure-chat",
        unit: "tokens",
    },
    Param {
        key: "output",
        about: "distribution of the lengths of answers",
        kind: Kind::Text("a distribution such as lognormal(5,1), or a table such as azure-chat-out", is_lengths),
        default: "azure-chat-out",
        unit: "tokens",
    },
    Param {
        key: "arrivals",
        about: "requests in each decode step",
        kind: Kind::Text("poisson(RATE), burst(RATE,CV), every(N) or list(N,...)", is_arrivals),
        default: "poisson(0.2)",
        unit: "requests",
    },
    int("max-batch", "sequences that run at a time", (1, 65536), "64", "sequences"),
    int("max-tokens", "tokens of a prefill pass; longer ones take several", (1, 1 << 20), "8192", "tokens"),
    int(
        "max-length",
        "tokens of a sequence, prompt and answer, the rest is cut off; by default those that the model knows positions for",
        (2, 1 << 24),
        "",
        "tokens",
    ),
    choice("sampling", "how the next token is chosen; top-p sorts the whole vocabulary", &["greedy", "top-p"]),
    int("models", "models of that shape that share the card, and take turns", (1, 64), "1", "models"),
    Param {
        key: "own-streams",
        about: "whether each model has a stream of its own",
        kind: Kind::Flag,
        default: "no",
        unit: "",
    },
];

/// The caches of keys and values.
pub(super) const CACHE: &[Param] = &[
    choice(
        "kv",
        "paged: blocks of tokens; contiguous: one tensor of keys and one of values for each sequence and layer, copied into a larger \
         one when it is full",
        &["paged", "contiguous"],
    ),
    choice(
        "pages",
        "with kv=paged. pool: all blocks are allocated in the beginning; demand: each when it is needed",
        &["pool", "demand"],
    ),
    int("block", "tokens of a block, with kv=paged", (1, 1 << 16), "16", "tokens"),
    int("step", "tokens by which a cache grows, with kv=contiguous", (1, 1 << 20), "1", "tokens"),
    choice("kv-dtype", "type of keys and values", &["dtype", "fp8"]),
    Param {
        key: "memory-share",
        about: "share of `device` (of 80GiB if that is 0) that weights, activations and caches may take together",
        kind: Kind::Real { min: 0.01, max: 1.0 },
        default: "0.9",
        unit: "",
    },
];

/// CUDA graphs.
pub(super) const GRAPHS: &[Param] = &[
    choice(
        "capture",
        "in which order of batch sizes decode passes are captured into CUDA graphs before the first request",
        &["none", "ascending", "descending"],
    ),
    Param {
        key: "batch-sizes",
        about: "batch sizes of the graphs; a batch runs in the next larger one",
        kind: Kind::Ints { min: 1, max: 65536 },
        default: "1+2+4+8+16+24+32+40+48+56+64",
        unit: "sequences",
    },
    choice("graph-pools", "one: all graphs of a model share a private pool; many: each has its own", &["one", "many"]),
];

/// Sleep, as in training by reinforcement, where rollouts and training take turns on a card.
pub(super) const SLEEP: &[Param] = &[
    int(
        "sleep-every",
        "decode steps after which the server finishes what runs, frees weights and caches, and lets training have the card; 0 for never",
        (0, 1_000_000_000),
        "0",
        "steps",
    ),
    int("train-batches", "micro-batches of a training phase", (1, 1_000_000), "4", "batches"),
    int("train-tokens", "tokens of a micro-batch", (1, 1 << 20), "4096", "tokens"),
    int(
        "train-shards",
        "devices over which gradients and the optimizer's state are spread in training",
        (1, 65536),
        "8",
        "devices",
    ),
];
