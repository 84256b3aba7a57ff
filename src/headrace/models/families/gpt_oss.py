"""gpt-oss: attention sinks, windows on every second layer, and experts with biases and a clamped activation."""

from dataclasses import replace
from typing import Final

from headrace.models.families.family import (
    GGUF_TENSORS,
    LLAMA_TENSORS,
    Family,
    GgufHeader,
    base_config_spec,
    base_gguf_spec,
    gguf_experts,
    layer_windows,
    require_activation,
)
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec, MoeSpec

_DEFAULTS: Final = {
    "rope_theta": 150000.0,
    "rms_norm_eps": 1e-5,
    "head_dim": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}
_ROPE: Final = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}
"""Source: transformers `GptOssConfig`."""
_ALPHA: Final = 1.702
_LIMIT: Final = 7.0


def spec_from_config(config: Fields) -> ModelSpec:
    """Read a `gpt_oss` config; `intermediate_size` is the width of an expert."""
    config = config.with_defaults(_DEFAULTS)
    if not config.sub("rope_parameters").values and not config.sub("rope_scaling").values:
        config = config.with_defaults({"rope_scaling": _ROPE})
    require_activation(config, "silu")
    config.refuse("swiglu_alpha", "another factor in the clamped activation", unless=(_ALPHA,))
    moe = MoeSpec(
        num_experts=config.whole("num_local_experts", 128),
        top_k=config.whole("num_experts_per_tok", 4),
        expert_size=config.whole("intermediate_size"),
        renormalize=True,
    )
    spec = base_config_spec(config, "gpt_oss", moe=moe)
    biased = config.flag("attention_bias", default=True)
    spec = _completed(replace(spec, qkv_bias=biased, o_bias=biased), config.positive("swiglu_limit", _LIMIT))
    return layer_windows(config, spec, config.whole("sliding_window", 128, minimum=0), _even(spec))


def spec_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata, which has neither the limit of the activation nor the exact ramp of yarn."""
    spec = base_gguf_spec(header, "gpt_oss", moe=gguf_experts(header, renormalize=True))
    ropes = tuple(replace(rope, truncate=rope.kind != "yarn") for rope in spec.ropes)
    spec = _completed(replace(spec, ropes=ropes, qkv_bias=True, o_bias=True), _LIMIT)
    return layer_windows(
        header.fields, spec, header.fields.whole("attention.sliding_window", 128, minimum=0), _even(spec)
    )


def _completed(spec: ModelSpec, limit: float) -> ModelSpec:
    """Return the spec with the parts that every network of the family has."""
    moe = None if spec.moe is None else replace(spec.moe, router_bias=True, expert_bias=True)
    return replace(spec, moe=moe, sinks=True, activation="clamped_swiglu", swiglu_limit=limit)


def _even(spec: ModelSpec) -> tuple[bool, ...]:
    return tuple(layer % 2 == 0 for layer in range(spec.num_layers))


GPT_OSS: Final = Family(
    name="gpt_oss",
    models="gpt-oss",
    verified=("transformers", "GGUF twin"),
    model_types=("gpt_oss",),
    spec_from_config=spec_from_config,
    gguf_architectures=("gpt-oss",),
    spec_from_gguf=spec_from_gguf,
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
