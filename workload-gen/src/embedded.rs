//! The recordings that come with the crate.

use crate::format::{TraceError, read};
use crate::trace::Trace;

/// A recording that is part of the program.
#[derive(Clone, Copy, Debug)]
pub struct Embedded {
    /// Its name, which is also the file's name in `workload-gen/traces` before `.trace.zst`.
    pub name: &'static str,
    /// One line on what it is.
    pub about: &'static str,
    /// The trace file, compressed.
    pub bytes: &'static [u8],
}

impl Embedded {
    /// The trace.
    pub fn trace(&self) -> Result<Trace, TraceError> {
        read(self.bytes, &format!("{}.trace.zst", self.name))
    }
}

macro_rules! recordings {
    ($($name:literal: $about:literal,)*) => {
        &[$(Embedded {
            name: $name,
            about: $about,
            bytes: include_bytes!(concat!("../traces/", $name, ".trace.zst")),
        },)*]
    };
}

/// All recordings that come with the crate, by name.
pub fn embedded() -> &'static [Embedded] {
    recordings! {
        "cudagraph.default": "four blocks under CUDA graphs for seven batch sizes in a private pool, some graphs dropped",
        "fsdp_gpt2.default.rank1": "GPT-2 (16 layers) trained with FSDP2 on two cards, one of them; three streams",
        "generate.default": "batched generation by a Llama (12 layers) with a growing KV cache",
        "gnn.default": "a graph network (6 layers) trained on graphs of varying size",
        "gpt2_varlen.default": "GPT-2 (12 layers) trained on batches of varying length",
        "llama_lora_ckpt.default": "a Llama (16 layers) fine-tuned with LoRA and gradient checkpointing, varying length",
        "multistream.default": "an MLP with prefetch and reduction on side streams; 2,080 frees complete late",
    }
}
