"""Phi-3.5-MoE: layer norms, biases, and two experts whose factors are each a softmax of their own (sparsemixer)."""

from dataclasses import replace
from typing import Final

from headrace.core.errors import UnsupportedModel
from headrace.inference.models.families.family import ATTENTION_BIAS, Family, GgufHeader
from headrace.inference.models.families.mixtral import MIXTRAL_TENSORS
from headrace.inference.models.families.reading import (
    config_experts,
    config_spec,
    gguf_experts,
    gguf_spec,
    uniform_window,
)
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

_JITTER: Final = 0.01
_TOP_K: Final = 2


def _from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a `phimoe` config; `intermediate_size` is the width of an expert."""
    config = _with_attention_factor(config)
    tolerance = 2 * config.positive("router_jitter_noise", _JITTER)
    moe = config_experts(config, num_experts=16, top_k=_TOP_K, renormalize=False, tolerance=tolerance)
    spec = config_spec(family, config, moe=moe)
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


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata, which does not have the tolerance of the router."""
    moe = replace(gguf_experts(header, renormalize=False), tolerance=2 * _JITTER)
    spec = gguf_spec(family, header, moe=moe)
    return uniform_window(spec, header.fields.whole("attention.sliding_window", 0, minimum=0))


PHIMOE: Final = Family(
    name="phimoe",
    models="Phi-3.5-MoE",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `PhimoeConfig`.
    defaults={
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
    },
    refused={"num_experts_per_tok": (_TOP_K, "another number of experts for a token")},
    bias_flags={**ATTENTION_BIAS, "head_bias": "lm_head_bias"},
    parts={"norm": "layer", "norm_bias": True},
    spec_from_config=_from_config,
    gguf_architectures=("phimoe",),
    gguf_biases=("qkv_bias", "o_bias", "head_bias"),
    spec_from_gguf=_from_gguf,
    tensors=MIXTRAL_TENSORS,
)
