"""Phi-1, Phi-1.5 and Phi-2: the MLP beside attention with the same norm, and biases everywhere."""

from dataclasses import replace
from typing import Final

from headrace.models.families.family import (
    LLAMA_TENSORS,
    Family,
    GgufHeader,
    base_config_spec,
    base_gguf_spec,
    read_activation,
)
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

DEFAULTS: Final = {"hidden_act": "gelu_new", "max_position_embeddings": 2048, "layer_norm_eps": 1e-5}
"""Source: transformers `PhiConfig`."""
ROTARY_FRACTION: Final = 0.5


def spec_from_config(config: Fields) -> ModelSpec:
    """Read a `phi` config."""
    config = config.with_defaults(DEFAULTS).renamed({"rms_norm_eps": "layer_norm_eps"})
    config.refuse("qk_layernorm", "layer norms of q and k", unless=(False,))
    spec = _with_parts(base_config_spec(config, "phi", rotary_fraction=ROTARY_FRACTION))
    return replace(spec, activation=read_activation(config))


def spec_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata."""
    return _with_parts(base_gguf_spec(header, "phi"))


def _with_parts(spec: ModelSpec) -> ModelSpec:
    return replace(
        spec,
        norm="layer",
        norm_bias=True,
        parallel="one",
        mlp="plain",
        activation="gelu_tanh",
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        head_bias=True,
    )


PHI: Final = Family(
    name="phi",
    models="Phi-1, Phi-1.5, Phi-2",
    verified=("transformers", "GGUF twin"),
    model_types=("phi",),
    spec_from_config=spec_from_config,
    gguf_architectures=("phi2",),
    spec_from_gguf=spec_from_gguf,
    tensors={
        **LLAMA_TENSORS,
        "final_norm": "model.final_layernorm.weight",
        "o": "self_attn.dense.weight",
        "up": "mlp.fc1.weight",
        "down": "mlp.fc2.weight",
    },
)
