"""GLM-4.5, 4.6 and Air: GLM's attention with experts that are chosen by sigmoids."""

from dataclasses import replace
from typing import Final

from headrace.inference.models.families.family import (
    DEEPSEEK_EXPERT_TENSORS,
    GGUF_TENSORS,
    Family,
    GgufHeader,
)
from headrace.inference.models.families.reading import config_router, config_spec, gguf_experts, gguf_spec
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec


def _from_config(family: Family, config: Fields) -> ModelSpec:
    spec = config_spec(family, config, moe=config_router(config))
    return replace(spec, qk_norm="head" if config.flag("use_qk_norm", default=False) else None)


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    spec = gguf_spec(family, header, moe=gguf_experts(header, renormalize=True, scoring="sigmoid", sum_floor=1e-20))
    return replace(spec, qk_norm="head" if "blk.0.attn_q_norm.weight" in header.tensor_shapes else None)


GLM4_MOE: Final = Family(
    name="glm4_moe",
    models="GLM-4.5, 4.6 and 4.5 Air",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `Glm4MoeConfig`.
    defaults={
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "n_routed_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1408,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
    },
    bias_flags={"qkv_bias": "attention_bias"},
    rotary_fraction=0.5,
    spec_from_config=_from_config,
    gguf_architectures=("glm4moe",),
    gguf_biases=("qkv_bias",),
    spec_from_gguf=_from_gguf,
    tensors=DEEPSEEK_EXPERT_TENSORS,
    gguf_tensors={**GGUF_TENSORS, "mlp_norm": "post_attention_norm.weight"},
)
