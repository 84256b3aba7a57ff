"""Phi-3, Phi-3.5-mini, Phi-4 and Phi-4-mini: Llama with fused matrices, longrope and partly turning heads."""

from typing import Final

from headrace.models.families.family import (
    GGUF_TENSORS,
    LLAMA_TENSORS,
    Family,
    GgufHeader,
    base_config_spec,
    base_gguf_spec,
    require_activation,
    uniform_window,
)
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

DEFAULTS: Final = {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
}
"""Source: transformers `Phi3Config`."""


def spec_from_config(config: Fields) -> ModelSpec:
    """Read a `phi3` config; the `yarn` and `su` of old files are longrope."""
    config = config.with_defaults(DEFAULTS)
    require_activation(config, "silu")
    renamed = {
        key: {**scaling.values, "rope_type": "longrope"}
        for key in ("rope_scaling", "rope_parameters")
        if (scaling := config.sub(key)).text("rope_type", scaling.text("type", "")) == "yarn"
    }
    config = Fields({**config.values, **renamed}, config.source)
    spec = base_config_spec(config, "phi3", rotary_fraction=1.0)
    return uniform_window(spec, config.whole("sliding_window", 0, minimum=0))


def spec_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata, where a window of 0 means none."""
    spec = base_gguf_spec(header, "phi3")
    return uniform_window(spec, header.fields.whole("attention.sliding_window", 0, minimum=0))


PHI3: Final = Family(
    name="phi3",
    models="Phi-3, Phi-3.5-mini, Phi-4, Phi-4-mini",
    verified=("transformers", "GGUF twin"),
    model_types=("phi3",),
    spec_from_config=spec_from_config,
    gguf_architectures=("phi3",),
    spec_from_gguf=spec_from_gguf,
    tensors=dict(LLAMA_TENSORS)
    | dict.fromkeys(("q", "k", "v"), "self_attn.qkv_proj.weight")
    | dict.fromkeys(("gate", "up"), "mlp.gate_up_proj.weight"),
    gguf_tensors=dict(GGUF_TENSORS)
    | dict.fromkeys(("q", "k", "v"), "attn_qkv.weight")
    | dict.fromkeys(("gate", "up"), "ffn_up.weight"),
)
