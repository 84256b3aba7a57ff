"""StableLM and StableLM 2: layer norms, a quarter of each head turns; the 12B has norms of q and k by head."""

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from headrace.models.families.family import (
    HEAD_INDEX,
    LLAMA_TENSORS,
    Family,
    GgufHeader,
    base_config_spec,
    base_gguf_spec,
    require_activation,
)
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

DEFAULTS: Final = {"max_position_embeddings": 4096, "num_key_value_heads": 32, "layer_norm_eps": 1e-5}
"""Source: transformers `StableLmConfig`."""
ROTARY_FRACTION: Final = 0.25


def spec_from_config(config: Fields) -> ModelSpec:
    """Read a `stablelm` config."""
    config = config.with_defaults(DEFAULTS).renamed({"rms_norm_eps": "layer_norm_eps"})
    require_activation(config, "silu")
    spec = base_config_spec(config, "stablelm", rotary_fraction=ROTARY_FRACTION)
    if config.flag("qk_layernorm", default=False):
        spec = replace(spec, qk_norm="layer")
    return _with_parts(
        replace(spec, qkv_bias=config.flag("use_qkv_bias", default=False)),
        is_parallel=config.flag("use_parallel_residual", default=False),
    )


def spec_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata."""
    spec = replace(base_gguf_spec(header, "stablelm"), qkv_bias="blk.0.attn_q.bias" in header.tensor_shapes)
    if "blk.0.attn_q_norm.weight" in header.tensor_shapes:
        spec = replace(spec, qk_norm="layer")
    return _with_parts(spec, is_parallel="blk.0.ffn_norm.weight" not in header.tensor_shapes)


def _with_parts(spec: ModelSpec, *, is_parallel: bool) -> ModelSpec:
    return replace(spec, norm="layer", norm_bias=True, parallel="one" if is_parallel else None)


STABLELM: Final = Family(
    name="stablelm",
    models="StableLM, StableLM 2",
    verified=("transformers", "GGUF twin"),
    model_types=("stablelm",),
    spec_from_config=spec_from_config,
    gguf_architectures=("stablelm",),
    spec_from_gguf=spec_from_gguf,
    tensors=MappingProxyType(
        {
            **LLAMA_TENSORS,
            "q_norm": f"self_attn.q_layernorm.norms.{HEAD_INDEX}.weight",
            "k_norm": f"self_attn.k_layernorm.norms.{HEAD_INDEX}.weight",
        }
    ),
)
