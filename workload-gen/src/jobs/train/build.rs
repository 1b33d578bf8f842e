//! Puts a plan's model on the device.

use super::plan::Plan;
use crate::models::shapes::Family;
use crate::models::{Activation, Adapted, Gpt, GptConfig, Llama, LlamaShape, Lora, Model, Positions, Weights};
use crate::ops::Form;
use crate::tensor::{Dtype, Gpu};
use std::rc::Rc;

/// Makes the model.
pub(super) fn model(gpu: &Gpu, plan: &Plan) -> Rc<dyn Model> {
    let shape = &plan.shape;
    let lora = (plan.lora > 0).then_some(Lora {
        rank: plan.lora,
        adapted: Adapted::Attention,
        has_type_of_model: plan.sharing.is_deepspeed(),
    });
    match shape.family {
        Family::Gpt2 | Family::Opt | Family::Neox => {
            let family = shape.family;
            let config = GptConfig {
                layers: shape.layers,
                hidden: shape.hidden,
                heads: shape.heads,
                ffn: shape.ffn,
                vocab: shape.vocab,
                positions: match family {
                    Family::Neox => Positions::Rotary(25),
                    Family::Opt => Positions::Learned(shape.positions + 2),
                    _ => Positions::Learned(shape.positions),
                },
                activation: match family {
                    Family::Gpt2 => Activation::NewGelu,
                    Family::Opt => Activation::Relu,
                    _ => Activation::Gelu,
                },
                form: if family == Family::Gpt2 { Form::Conv1d } else { Form::Linear },
                is_fused: family != Family::Opt,
                is_parallel: family == Family::Neox,
                is_tied: shape.is_tied,
                has_dropout: plan.has_dropout && family != Family::Neox,
                has_cache: !plan.is_recomputed,
                shards: 1,
                lora,
            };
            let are_trained = config.lora.is_none();
            Rc::new(Gpt::new(gpu, config, Weights { dtype: plan.dtype, are_trained }))
        }
        Family::Llama | Family::Moe => Rc::new(Llama::new(
            gpu,
            &LlamaShape {
                layers: shape.layers as usize,
                hidden: shape.hidden,
                ffn: shape.ffn,
                heads: shape.heads,
                kv_heads: shape.kv_heads,
                head_width: shape.head_width,
                vocabulary: shape.vocab,
                made: if plan.is_converted { Dtype::F32 } else { plan.dtype },
                dtype: plan.dtype,
                is_tied: shape.is_tied,
                lora,
                is_checkpointed: plan.is_recomputed,
            },
        )),
    }
}
