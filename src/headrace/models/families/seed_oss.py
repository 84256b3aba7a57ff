"""Seed-OSS: Llama with biases on q, k and v."""

from dataclasses import replace
from typing import Final

from headrace.models.families.family import (
    GGUF_TENSORS,
    Family,
    GgufHeader,
    base_config_spec,
    base_gguf_spec,
    require_activation,
)
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

DEFAULTS: Final = {
    "head_dim": 128,
    "max_position_embeddings": 524_288,
    "attention_bias": True,
    "attention_out_bias": False,
}
"""Source: transformers `SeedOssConfig`."""


def spec_from_config(config: Fields) -> ModelSpec:
    """Read a `seed_oss` config."""
    config = config.with_defaults(DEFAULTS)
    require_activation(config, "silu")
    spec = base_config_spec(config, "seed_oss")
    return replace(spec, qkv_bias=config.flag("attention_bias"), o_bias=config.flag("attention_out_bias"))


def spec_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata."""
    spec = base_gguf_spec(header, "seed_oss")
    return replace(spec, qkv_bias="blk.0.attn_q.bias" in header.tensor_shapes)


SEED_OSS: Final = Family(
    name="seed_oss",
    models="Seed-OSS",
    verified=("transformers", "GGUF twin"),
    model_types=("seed_oss",),
    spec_from_config=spec_from_config,
    gguf_architectures=("seed_oss",),
    spec_from_gguf=spec_from_gguf,
    gguf_tensors={**GGUF_TENSORS, "mlp_norm": "post_attention_norm.weight"},
)
