//! Puts a plan's model on the device.

use super::ROUTING;
use super::plan::{Plan, Sharing};
use crate::lengths::Rng;
use crate::models::routing::Loads;
use crate::models::shapes::Family;
use crate::models::{self, Adapted, Llama, LlamaShape, Lora, Making, Mixed, Model, Parts, Weights, convert_all};
use crate::tensor::{Dtype, Gpu};
use std::rc::Rc;

/// Makes the model.
pub(super) fn model(gpu: &Gpu, plan: &Plan) -> Rc<dyn Model> {
    let shape = &plan.shape;
    let lora = (plan.lora > 0).then_some(Lora {
        rank: plan.lora,
        adapted: Adapted::Attention,
        has_type_of_model: matches!(plan.sharing, Sharing::States | Sharing::Gradients),
    });
    // Weights are made in their type, or are put into it later; then so are buffers, which are made in 32 bits in any case.
    let made = if plan.is_converted { Dtype::F32 } else { plan.dtype };
    let is_in_type = plan.is_converted || plan.sharing.is_deepspeed();
    let buffers = if is_in_type { plan.dtype } else { Dtype::F32 };
    let making = Making {
        weights: Weights { dtype: made, are_trained: lora.is_none() },
        buffers,
        has_cache: !plan.is_recomputed,
        is_adapted: lora.is_some(),
    };
    let mut model: Box<dyn Model> = match shape.family {
        Family::Gpt2 => models::gpt2(gpu, shape, &making),
        Family::Opt => models::opt(gpu, shape, &making),
        Family::Neox => models::gpt_neox(gpu, shape, &making),
        Family::Llama | Family::Moe => {
            let shape = LlamaShape {
                layers: shape.layers as usize,
                hidden: shape.hidden,
                ffn: shape.ffn,
                heads: shape.heads,
                kv_heads: shape.kv_heads,
                head_width: shape.head_width,
                vocabulary: shape.vocab,
                made,
                dtype: plan.dtype,
                is_tied: shape.is_tied,
                is_adapted: lora.is_some(),
                is_checkpointed: plan.is_recomputed,
                parts: parts(plan),
            };
            Box::new(Llama::new(gpu, &shape))
        }
    };
    convert_all(gpu, &*model, plan.dtype);
    if let Some(lora) = &lora {
        model.adapt(gpu, lora);
    }
    Rc::from(model)
}

/// What the model has that Llama has not. The router's choices are drawn from the seed.
fn parts(plan: &Plan) -> Parts {
    let experts = plan.shape.experts.map(|shape| {
        let rng = Rng::new(plan.seed).fork(ROUTING);
        let loads = Loads::new(rng, shape.count, shape.per_token, plan.skew, plan.drift);
        Mixed { shape, form: plan.experts, loads }
    });
    let is_qwen = plan.shape.has_qkv_bias;
    Parts { has_qkv_bias: is_qwen, has_window_mask: is_qwen, latent: plan.shape.latent, experts }
}
