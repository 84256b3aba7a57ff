"""Llama 2 and 3, SmolLM 1 and 2, and everything else that calls itself `llama`."""

from dataclasses import replace
from typing import Final

from headrace.models.families.family import (
    Family,
    GgufHeader,
    base_config_spec,
    base_gguf_spec,
    gguf_experts,
    require_activation,
)
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec


def spec_from_config(config: Fields) -> ModelSpec:
    """Read a Llama config; `attention_bias` and `mlp_bias` put a bias on all matrices of a half."""
    require_activation(config, "silu")
    spec = base_config_spec(config.without("mlp_bias"), "llama")
    biased = config.flag("attention_bias", default=False)
    mlp_biased = config.flag("mlp_bias", default=False)
    return replace(spec, qkv_bias=biased, o_bias=biased, mlp_bias=mlp_biased)


def spec_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata; this architecture also covers Mixtral, and Mistral without a sliding window."""
    routed = header.fields.whole("expert_count", 0, minimum=0) > 0
    moe = gguf_experts(header, renormalize=True) if routed else None
    spec = base_gguf_spec(header, "mixtral" if routed else "llama", moe=moe)
    return replace(
        spec,
        qkv_bias="blk.0.attn_q.bias" in header.tensor_shapes,
        o_bias="blk.0.attn_output.bias" in header.tensor_shapes,
    )


LLAMA: Final = Family(
    name="llama",
    models=(
        "Llama 2 and 3, SmolLM 1 and 2, Yi, DeepSeek LLM, Falcon 3 and others of this architecture; "
        "in GGUF files also Mistral, Mixtral and InternLM 3"
    ),
    verified=("transformers", "GGUF twin", "real model"),
    model_types=("llama",),
    spec_from_config=spec_from_config,
    gguf_architectures=("llama",),
    spec_from_gguf=spec_from_gguf,
    interleaved_gguf_rope=True,
)
