"""gpt-oss: attention sinks, windows on every second layer, and experts with biases and a clamped activation."""

from dataclasses import replace
from typing import Final

from headrace.inference.models.families.family import ATTENTION_BIAS, GGUF_TENSORS, LLAMA_TENSORS, Family, GgufHeader
from headrace.inference.models.families.reading import (
    config_experts,
    config_spec,
    gguf_experts,
    gguf_spec,
    layer_windows,
    sliding_layers,
)
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

_ROPE: Final = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}
"""Source: transformers `GptOssConfig`."""
_LIMIT: Final = 7.0


def _from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a `gpt_oss` config; `intermediate_size` is the width of an expert."""
    if not config.sub("rope_parameters").values and not config.sub("rope_scaling").values:
        config = config.with_defaults({"rope_scaling": _ROPE})
    moe = config_experts(config, num_experts=128, top_k=4, router_bias=True, expert_bias=True)
    spec = config_spec(family, config, moe=moe)
    spec = replace(spec, swiglu_limit=config.positive("swiglu_limit", _LIMIT))
    return _windowed(spec, config, "sliding_window")


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata, which has neither the limit of the activation nor the exact ramp of yarn."""
    moe = replace(gguf_experts(header, renormalize=True), router_bias=True, expert_bias=True)
    spec = gguf_spec(family, header, moe=moe)
    ropes = tuple(replace(rope, truncate=rope.kind != "yarn") for rope in spec.ropes)
    spec = replace(spec, ropes=ropes, swiglu_limit=_LIMIT)
    return _windowed(spec, header.fields, "attention.sliding_window")


def _windowed(spec: ModelSpec, fields: Fields, key: str) -> ModelSpec:
    return layer_windows(fields, spec, fields.whole(key, 128, minimum=0), sliding_layers(spec.num_layers, 2))


GPT_OSS: Final = Family(
    name="gpt_oss",
    models="gpt-oss",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `GptOssConfig`.
    defaults={
        "rope_theta": 150000.0,
        "rms_norm_eps": 1e-5,
        "head_dim": 64,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "attention_bias": True,
    },
    refused={"swiglu_alpha": (1.702, "another factor in the clamped activation")},
    bias_flags=ATTENTION_BIAS,
    parts={"sinks": True, "activation": "clamped_swiglu"},  # which configs call silu
    spec_from_config=_from_config,
    gguf_architectures=("gpt-oss",),
    gguf_biases=("qkv_bias", "o_bias"),
    spec_from_gguf=_from_gguf,
    tensors={
        **LLAMA_TENSORS,
        "sinks": "self_attn.sinks",
        "router": "mlp.router.weight",
        **dict.fromkeys(("expert_gate", "expert_up"), "mlp.experts.gate_up_proj"),
        **dict.fromkeys(("expert_gate_bias", "expert_up_bias"), "mlp.experts.gate_up_proj_bias"),
        "expert_down": "mlp.experts.down_proj",
        "expert_down_bias": "mlp.experts.down_proj_bias",
    },
    gguf_tensors={**GGUF_TENSORS, "mlp_norm": "post_attention_norm.weight"},
    alternating_experts=True,
)
