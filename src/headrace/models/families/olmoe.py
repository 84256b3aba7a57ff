"""OLMoE: experts in every layer, norms over all heads of q and k at once, and optionally clipped q, k and v."""

from dataclasses import replace
from typing import Final

from headrace.models.families.family import (
    QWEN_EXPERT_TENSORS,
    Family,
    GgufHeader,
    base_config_spec,
    base_gguf_spec,
    gguf_experts,
    require_activation,
)
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec, MoeSpec

_DEFAULTS: Final = {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096}
"""Source: transformers `OlmoeConfig`."""
_GGUF_CLIP: Final = "attention.clamp_kqv"


def spec_from_config(config: Fields) -> ModelSpec:
    """Read an `olmoe` config; `intermediate_size` is the width of an expert."""
    config = config.with_defaults(_DEFAULTS)
    require_activation(config, "silu")
    moe = MoeSpec(
        num_experts=config.whole("num_experts", 64),
        top_k=config.whole("num_experts_per_tok", 8),
        expert_size=config.whole("intermediate_size"),
        renormalize=config.flag("norm_topk_prob", default=False),
    )
    spec = base_config_spec(config.without("clip_qkv"), "olmoe", moe=moe)
    biased = config.flag("attention_bias", default=False)
    clip = config.positive("clip_qkv") if config.has("clip_qkv") else 0.0
    return replace(spec, qk_norm="full", qkv_bias=biased, o_bias=biased, qkv_clip=clip)


def spec_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read the GGUF metadata of OLMoE."""
    clip = header.fields.positive(_GGUF_CLIP) if header.fields.has(_GGUF_CLIP) else 0.0
    spec = base_gguf_spec(header, "olmoe", moe=gguf_experts(header, renormalize=False))
    return replace(spec, qk_norm="full", qkv_clip=clip)


OLMOE: Final = Family(
    name="olmoe",
    models="OLMoE",
    verified=("transformers", "GGUF twin"),
    model_types=("olmoe",),
    spec_from_config=spec_from_config,
    gguf_architectures=("olmoe",),
    spec_from_gguf=spec_from_gguf,
    tensors=QWEN_EXPERT_TENSORS,
)
