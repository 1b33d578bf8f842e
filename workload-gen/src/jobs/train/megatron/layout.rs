//! What a line says about how a model is spread over ranks.

use crate::models::megatron::Recompute;
use crate::models::shapes::Shape;
use crate::spec::{Kind, Param, Values};

const fn ranks(key: &'static str, about: &'static str, unit: &'static str) -> Param {
    Param { key, about, kind: Kind::Int { min: 1, max: 4096 }, default: "1", unit }
}

/// The parameters.
pub(in super::super) const PARAMS: &[Param] = &[
    Param {
        key: "framework",
        about: "whose code runs the model. Megatron-LM's, in bf16, comes with any other than the default value of the next six, and with \
            recompute=selective",
        kind: Kind::Choice(&["transformers", "megatron"]),
        default: "transformers",
        unit: "",
    },
    ranks("pp", "stages of a pipeline", "ranks"),
    ranks("interleave", "parts of the model that each stage has (virtual stages)", "parts"),
    ranks("tp", "ranks that split each layer", "ranks"),
    Param {
        key: "sequence-parallel",
        about: "the ranks of `tp` split what lies between the products, too, along the sequence",
        kind: Kind::Flag,
        default: "no",
        unit: "",
    },
    ranks("ep", "ranks that experts are spread among", "ranks"),
    Param {
        key: "attention",
        about: "attention in one kernel, or written out with a tensor for the scores",
        kind: Kind::Choice(&["fused", "written-out"]),
        default: "fused",
        unit: "",
    },
];

/// Parameters of training that Megatron-LM's has not.
const OTHERS: &[&str] = &[
    "dtype",
    "convert",
    "autocast",
    "lora",
    "zero",
    "ranks",
    "offload",
    "overlap",
    "deepspeed",
    "epoch",
    "evals",
    "eval-batch",
    "eval-lengths",
    "eval-autocast",
    "eval-dropout",
    "save",
    "leak",
    "experts",
];

/// Those that mean Megatron-LM's.
const MEANT: &[&str] = &["pp", "interleave", "tp", "sequence-parallel", "ep", "attention", "framework", "recompute"];

/// How a model is spread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Layout {
    pub(super) stages: u64,
    pub(super) chunks: u64,
    pub(super) stage: u64,
    pub(super) tensor_parallel: u64,
    pub(super) is_sequence_parallel: bool,
    pub(super) expert_parallel: u64,
    pub(super) is_fused: bool,
    pub(super) recompute: Recompute,
}

impl Layout {
    /// Reads a line's values; `None` if the model is one process's.
    pub(in super::super) fn new(values: &Values, shape: &Shape) -> Result<Option<Layout>, String> {
        let recompute = match values.text("recompute") {
            "selective" => Recompute::Attention,
            "full" => Recompute::Layers,
            _ => Recompute::Nothing,
        };
        let is_spread = ["pp", "interleave", "tp", "ep"].iter().any(|key| values.int(key) > 1);
        let is_meant = is_spread
            || values.flag("sequence-parallel")
            || values.text("attention") != "fused"
            || values.text("framework") == "megatron"
            || recompute == Recompute::Attention;
        if !is_meant {
            return Ok(None);
        }
        let layout = Layout {
            stages: values.int("pp"),
            chunks: values.int("interleave"),
            stage: values.int("rank"),
            tensor_parallel: values.int("tp"),
            is_sequence_parallel: values.flag("sequence-parallel"),
            expert_parallel: values.int("ep"),
            is_fused: values.text("attention") == "fused",
            recompute,
        };
        layout.check(values, shape)?;
        Ok(Some(layout))
    }

    fn check(&self, values: &Values, shape: &Shape) -> Result<(), String> {
        if let Some(key) = OTHERS.iter().find(|key| values.is_changed(key)) {
            let meant = MEANT.iter().find(|key| values.is_changed(key)).unwrap_or(&"framework");
            return Err(format!(
                "{key} does not go with {meant}={}, with which Megatron-LM runs the model; leave one of them out",
                values.text(meant)
            ));
        }
        if shape.latent.is_some() {
            return Err("a model with latent attention is not split among ranks here; choose another model".to_string());
        }
        if self.stages == 1 && self.stage > 0 {
            return Err(format!(
                "rank={} is a stage of pp, which is not given; leave it out, as ranks of tp and ep are alike",
                self.stage
            ));
        }
        if self.stage >= self.stages {
            return Err(format!(
                "rank={} is no stage of pp={}; the last is {}",
                self.stage,
                self.stages,
                self.stages - 1
            ));
        }
        if self.chunks > 1 && self.stages == 1 {
            return Err(format!("interleave={} parts need a pipeline; give its stages with pp", self.chunks));
        }
        let evenly = |what: &str, number: u64, key: &str, parts: u64| match number.is_multiple_of(parts) {
            true => Ok(()),
            false => Err(format!("{what}={number} does not go evenly into {key}={parts}; change one of them")),
        };
        let parts = if self.chunks > 1 { "pp*interleave" } else { "pp" };
        evenly("layers", shape.layers, parts, self.stages * self.chunks)?;
        evenly("heads", shape.heads, "tp", self.tensor_parallel)?;
        evenly("kv-heads", shape.kv_heads, "tp", self.tensor_parallel)?;
        evenly("ffn", shape.ffn, "tp", self.tensor_parallel)?;
        if self.chunks > 1 {
            evenly("accumulate", values.int("accumulate"), "pp", self.stages)?;
            evenly("steps", values.int("steps"), "pp", self.stages)?;
        }
        match shape.experts {
            Some(experts) => {
                evenly("expert-count", experts.count, "ep", self.expert_parallel)?;
                evenly("the width of shared experts", experts.shared_ffn, "tp", self.tensor_parallel)
            }
            None if self.expert_parallel > 1 => {
                Err(format!("ep={} spreads experts, which this model has not; choose another", self.expert_parallel))
            }
            None => Ok(()),
        }
    }
}
