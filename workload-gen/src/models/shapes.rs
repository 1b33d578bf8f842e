//! Published models by name: the numbers of their `config.json`, and how many weights follow from them.

/// How a model's layers are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// GPT-2: learned positions, one product for queries, keys and values, dropout.
    Gpt2,
    /// OPT: learned positions of which two are spare, products of their own, ReLU, dropout.
    Opt,
    /// GPT-NeoX: rotary positions on a part of each head, attention and MLP side by side.
    Neox,
    /// Llama: root-mean-square normalisation, rotary positions, gated MLP, no biases.
    Llama,
    /// Llama with a mixture of experts for its MLP: Mixtral, Qwen-MoE, DeepSeek.
    Moe,
}

/// The mixture that takes the place of an MLP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Experts {
    /// Experts that tokens are sent to.
    pub count: u64,
    /// Experts that each token is sent to.
    pub per_token: u64,
    /// Width of an expert's MLP.
    pub ffn: u64,
    /// Width of the MLP that all tokens go through: that of all shared experts together. 0 if there is none.
    pub shared_ffn: u64,
    /// Whether a gate scales what the shared experts return (Qwen).
    pub has_shared_gate: bool,
    /// Layers at the bottom that have an MLP and no experts (DeepSeek).
    pub dense_layers: u64,
}

/// Attention whose keys and values are made of a short vector (DeepSeek's multi-head latent attention).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Latent {
    /// Width of what keys and values are made of (`kv_lora_rank`).
    pub rank: u64,
    /// The part of a query's or key's head without positions (`qk_nope_head_dim`).
    pub plain: u64,
    /// The part that is turned, and that all heads of the keys share (`qk_rope_head_dim`).
    pub turned: u64,
    /// Width of a value's head (`v_head_dim`).
    pub value: u64,
}

/// The numbers that make a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// How its layers are made.
    pub family: Family,
    /// Layers.
    pub layers: u64,
    /// Width of the hidden states.
    pub hidden: u64,
    /// Width of an MLP that is no expert.
    pub ffn: u64,
    /// Heads of the queries.
    pub heads: u64,
    /// Heads of the keys and values.
    pub kv_heads: u64,
    /// Width of a head.
    pub head_width: u64,
    /// Rows of the table of tokens.
    pub vocab: u64,
    /// Tokens of the longest sequence.
    pub positions: u64,
    /// Whether the output's table is the input's.
    pub is_tied: bool,
    /// Whether queries, keys and values have a bias although the family has none (Qwen).
    pub has_qkv_bias: bool,
    /// Experts.
    pub experts: Option<Experts>,
    /// Latent attention.
    pub latent: Option<Latent>,
}

/// OPT's positions begin at two (`OPTLearnedPositionalEmbedding`).
const OPT_OFFSET: u64 = 2;

/// The names, in the order of [`shape`]'s table.
pub const NAMES: &[&str] = &[
    "gpt2",
    "gpt2-xl",
    "opt-1.3b",
    "opt-13b",
    "gpt-neox-20b",
    "llama-2-7b",
    "llama-2-13b",
    "llama-2-70b",
    "llama-3-8b",
    "mixtral-8x7b",
    "qwen1.5-moe-a2.7b",
    "deepseek-v2-lite",
];

/// The published model of that name.
pub fn shape(name: &str) -> Option<Shape> {
    let at = NAMES.iter().position(|&known| known == name)?;
    Some(SHAPES[at])
}

/// A model without experts whose heads fill the hidden states.
const fn dense(family: Family, layers: u64, hidden: u64, ffn: u64, heads: u64, vocab: u64, positions: u64) -> Shape {
    Shape {
        family,
        layers,
        hidden,
        ffn,
        heads,
        kv_heads: heads,
        head_width: hidden / heads,
        vocab,
        positions,
        is_tied: matches!(family, Family::Gpt2 | Family::Opt),
        has_qkv_bias: false,
        experts: None,
        latent: None,
    }
}

/// Numbers of the models' `config.json` at huggingface.co: openai-community/gpt2 and gpt2-xl, facebook/opt-1.3b and opt-13b, EleutherAI/gpt-neox-20b,
/// meta-llama/Llama-2-7b-hf, -13b-hf, -70b-hf and Meta-Llama-3-8B, mistralai/Mixtral-8x7B-v0.1, Qwen/Qwen1.5-MoE-A2.7B,
/// deepseek-ai/DeepSeek-V2-Lite.
const SHAPES: [Shape; NAMES.len()] = [
    dense(Family::Gpt2, 12, 768, 3072, 12, 50_257, 1024),
    dense(Family::Gpt2, 48, 1600, 6400, 25, 50_257, 1024),
    dense(Family::Opt, 24, 2048, 8192, 32, 50_272, 2048),
    dense(Family::Opt, 40, 5120, 20_480, 40, 50_272, 2048),
    dense(Family::Neox, 44, 6144, 24_576, 64, 50_432, 2048),
    dense(Family::Llama, 32, 4096, 11_008, 32, 32_000, 4096),
    dense(Family::Llama, 40, 5120, 13_824, 40, 32_000, 4096),
    Shape { kv_heads: 8, ..dense(Family::Llama, 80, 8192, 28_672, 64, 32_000, 4096) },
    Shape { kv_heads: 8, ..dense(Family::Llama, 32, 4096, 14_336, 32, 128_256, 8192) },
    Shape {
        kv_heads: 8,
        experts: Some(Experts {
            count: 8,
            per_token: 2,
            ffn: 14_336,
            shared_ffn: 0,
            has_shared_gate: false,
            dense_layers: 0,
        }),
        ..dense(Family::Moe, 32, 4096, 14_336, 32, 32_000, 32_768)
    },
    Shape {
        has_qkv_bias: true,
        experts: Some(Experts {
            count: 60,
            per_token: 4,
            ffn: 1408,
            shared_ffn: 5632,
            has_shared_gate: true,
            dense_layers: 0,
        }),
        ..dense(Family::Moe, 24, 2048, 5632, 16, 151_936, 8192)
    },
    Shape {
        experts: Some(Experts {
            count: 64,
            per_token: 6,
            ffn: 1408,
            shared_ffn: 2 * 1408,
            has_shared_gate: false,
            dense_layers: 1,
        }),
        latent: Some(Latent { rank: 512, plain: 128, turned: 64, value: 128 }),
        ..dense(Family::Moe, 27, 2048, 10_944, 16, 102_400, 163_840)
    },
];

impl Shape {
    /// Rows of the table of positions; 0 if positions are rotary.
    pub fn position_rows(&self) -> u64 {
        match self.family {
            Family::Gpt2 => self.positions,
            Family::Opt => self.positions + OPT_OFFSET,
            Family::Neox | Family::Llama | Family::Moe => 0,
        }
    }

    /// Whether its layers drop out activations in training.
    pub fn has_dropout(&self) -> bool {
        matches!(self.family, Family::Gpt2 | Family::Opt)
    }

    /// All weights.
    pub fn parameters(&self) -> u64 {
        let tables = if self.is_tied { 1 } else { 2 };
        let norm = self.norm_parameters();
        let layers: u64 = (0..self.layers).map(|layer| self.layer_parameters(layer)).sum();
        tables * self.vocab * self.hidden + self.position_rows() * self.hidden + layers + norm
    }

    fn has_biases(&self) -> bool {
        matches!(self.family, Family::Gpt2 | Family::Opt | Family::Neox)
    }

    fn norm_parameters(&self) -> u64 {
        if self.has_biases() { 2 * self.hidden } else { self.hidden }
    }

    fn layer_parameters(&self, layer: u64) -> u64 {
        2 * self.norm_parameters() + self.attention_parameters() + self.mlp_parameters(layer)
    }

    fn attention_parameters(&self) -> u64 {
        let hidden = self.hidden;
        if let Some(latent) = self.latent {
            let queries = hidden * self.heads * (latent.plain + latent.turned);
            let down = hidden * (latent.rank + latent.turned) + latent.rank;
            let up = latent.rank * self.heads * (latent.plain + latent.value);
            return queries + down + up + self.heads * latent.value * hidden;
        }
        let (queries, keys) = (self.heads * self.head_width, self.kv_heads * self.head_width);
        let biases = match (self.has_biases(), self.has_qkv_bias) {
            (true, _) => queries + 2 * keys + hidden,
            (false, true) => queries + 2 * keys,
            (false, false) => 0,
        };
        hidden * (queries + 2 * keys) + queries * hidden + biases
    }

    fn mlp_parameters(&self, layer: u64) -> u64 {
        let hidden = self.hidden;
        match self.experts {
            _ if self.has_biases() => 2 * hidden * self.ffn + self.ffn + hidden,
            Some(experts) if layer >= experts.dense_layers => {
                let gate = if experts.has_shared_gate { hidden } else { 0 };
                let width = experts.count * experts.ffn + experts.shared_ffn;
                hidden * experts.count + 3 * hidden * width + gate
            }
            _ => 3 * hidden * self.ffn,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{NAMES, shape};

    /// What `sum(p.numel() for p in model.parameters())` gives for each, with a tied table counted once: the totals of the safetensors files
    /// that huggingface.co shows (Llama, Mixtral, Qwen, DeepSeek), the model card of GPT-NeoX-20B, and for GPT-2 and OPT, whose files hold
    /// buffers too, the count of transformers' model.
    const PUBLISHED: &[(&str, u64)] = &[
        ("gpt2", 124_439_808),
        ("gpt2-xl", 1_557_611_200),
        ("opt-1.3b", 1_315_758_080),
        ("opt-13b", 12_853_473_280),
        ("gpt-neox-20b", 20_554_567_680),
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3-8b", 8_030_261_248),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen1.5-moe-a2.7b", 14_315_784_192),
        ("deepseek-v2-lite", 15_706_484_224),
    ];

    #[test]
    fn weights_are_as_many_as_published() {
        assert_eq!(PUBLISHED.iter().map(|(name, _)| *name).collect::<Vec<_>>(), NAMES);
        for &(name, published) in PUBLISHED {
            let computed = shape(name).map(|shape| shape.parameters());
            assert_eq!(computed, Some(published), "{name}");
        }
    }
}
