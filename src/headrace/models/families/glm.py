"""GLM-4-9B and GLM-4-0414 (in the format of transformers): fused gate and up, half of each head turns, interleaved."""

from dataclasses import replace
from typing import Final

from headrace.models.families.family import (
    GGUF_TENSORS,
    LLAMA_TENSORS,
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
    "num_key_value_heads": 2,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 0.00000015625,
    "attention_bias": True,
}
"""Source: transformers `GlmConfig` and `Glm4Config`."""
ROTARY_FRACTION: Final = 0.5
_TENSORS: Final = dict(LLAMA_TENSORS) | dict.fromkeys(("gate", "up"), "mlp.gate_up_proj.weight")


def glm_from_config(config: Fields) -> ModelSpec:
    """Read a `glm` config."""
    return _read(config, "glm")


def glm4_from_config(config: Fields) -> ModelSpec:
    """Read a `glm4` config, whose layers have a second norm after attention and MLP."""
    return replace(_read(config, "glm4"), norms="both")


def glm4_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata."""
    spec = base_gguf_spec(header, "glm4")
    return replace(spec, norms="both", qkv_bias="blk.0.attn_q.bias" in header.tensor_shapes)


def _read(config: Fields, family: str) -> ModelSpec:
    config = config.with_defaults(DEFAULTS)
    require_activation(config, "silu")
    spec = base_config_spec(config, family, rotary_fraction=ROTARY_FRACTION)
    return replace(spec, qkv_bias=config.flag("attention_bias"))


GLM: Final = Family(
    name="glm",
    models="GLM-4-9B in the format of transformers",
    verified=("transformers",),
    model_types=("glm",),
    spec_from_config=glm_from_config,
    tensors=_TENSORS,
    interleaved_rope=True,
)
GLM4: Final = Family(
    name="glm4",
    models="GLM-4-0414",
    verified=("transformers", "GGUF twin"),
    model_types=("glm4",),
    spec_from_config=glm4_from_config,
    gguf_architectures=("glm4",),
    spec_from_gguf=glm4_from_gguf,
    tensors=_TENSORS
    | {
        "post_attn_norm": "post_self_attn_layernorm.weight",
        "mlp_norm": "post_attention_layernorm.weight",
        "post_mlp_norm": "post_mlp_layernorm.weight",
    },
    gguf_tensors=dict(GGUF_TENSORS) | dict.fromkeys(("gate", "up"), "ffn_up.weight"),
    interleaved_rope=True,
    interleaved_gguf_rope=True,
)
