"""Phi-3.5-MoE: layer norms, biases, and two experts whose factors are each a softmax of their own (sparsemixer)."""

from dataclasses import replace
from typing import Final

from headrace.core.errors import UnsupportedModel
from headrace.models.families.family import (
    EXPERT_INDEX,
    LLAMA_TENSORS,
    Family,
    GgufHeader,
    base_config_spec,
    base_gguf_spec,
    gguf_experts,
    require_activation,
    uniform_window,
)
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec, MoeSpec

_DEFAULTS: Final = {
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
}
"""Source: transformers `PhimoeConfig`."""
_JITTER: Final = 0.01
_TOP_K: Final = 2
_EXPERT: Final = f"block_sparse_moe.experts.{EXPERT_INDEX}"


def spec_from_config(config: Fields) -> ModelSpec:
    """Read a `phimoe` config; `intermediate_size` is the width of an expert."""
    config = _with_attention_factor(config.with_defaults(_DEFAULTS))
    require_activation(config, "silu")
    config.refuse("num_experts_per_tok", "another number of experts for a token", unless=(_TOP_K,))
    moe = MoeSpec(
        num_experts=config.whole("num_local_experts", 16),
        top_k=_TOP_K,
        expert_size=config.whole("intermediate_size"),
        tolerance=2 * config.positive("router_jitter_noise", _JITTER),
    )
    spec = base_config_spec(config, "phimoe", moe=moe)
    biased = config.flag("attention_bias", default=False)
    spec = _completed(spec, biased=biased, head_bias=config.flag("lm_head_bias", default=False))
    return uniform_window(spec, config.whole("sliding_window", 0, minimum=0))


def _with_attention_factor(config: Fields) -> Fields:
    """Return the config with `short_mscale` and `long_mscale`, if they are equal, as the attention factor."""
    renamed: dict[str, object] = {}
    for key in ("rope_scaling", "rope_parameters"):
        scaling = config.sub(key)
        if not scaling.has("short_mscale") and not scaling.has("long_mscale"):
            continue
        short, long = scaling.positive("short_mscale"), scaling.positive("long_mscale")
        if short != long:
            raise UnsupportedModel(
                f"{scaling.source}: short_mscale is {short} and long_mscale {long}; expected the same number."
            )
        renamed[key] = {**scaling.values, "attention_factor": short}
    return Fields({**config.values, **renamed}, config.source)


def spec_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata, which does not have the tolerance of the router."""
    moe = replace(gguf_experts(header, renormalize=False), tolerance=2 * _JITTER)
    spec = base_gguf_spec(header, "phimoe", moe=moe)
    shapes = header.tensor_shapes
    spec = _completed(spec, biased="blk.0.attn_q.bias" in shapes, head_bias="output.bias" in shapes)
    return uniform_window(spec, header.fields.whole("attention.sliding_window", 0, minimum=0))


def _completed(spec: ModelSpec, *, biased: bool, head_bias: bool) -> ModelSpec:
    return replace(spec, norm="layer", norm_bias=True, qkv_bias=biased, o_bias=biased, head_bias=head_bias)


PHIMOE: Final = Family(
    name="phimoe",
    models="Phi-3.5-MoE",
    verified=("transformers", "GGUF twin"),
    model_types=("phimoe",),
    spec_from_config=spec_from_config,
    gguf_architectures=("phimoe",),
    spec_from_gguf=spec_from_gguf,
    tensors={
        **LLAMA_TENSORS,
        "router": "block_sparse_moe.gate.weight",
        "expert_gate": f"{_EXPERT}.w1.weight",
        "expert_up": f"{_EXPERT}.w3.weight",
        "expert_down": f"{_EXPERT}.w2.weight",
    },
)
