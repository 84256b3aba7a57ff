"""Nemotron and Minitron: layer norms of `x * (1 + w) + b`, squared ReLU, half of each head turns."""

from dataclasses import replace
from typing import Final

from headrace.models.families.family import Family, GgufHeader, base_config_spec, base_gguf_spec, read_activation
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

DEFAULTS: Final = {"hidden_act": "relu2", "max_position_embeddings": 4096, "norm_eps": 1e-5}
"""Source: transformers `NemotronConfig`."""
ROTARY_FRACTION: Final = 0.5


def spec_from_config(config: Fields) -> ModelSpec:
    """Read a `nemotron` config."""
    config = config.with_defaults(DEFAULTS).renamed({"rms_norm_eps": "norm_eps"})
    spec = base_config_spec(config.without("mlp_bias"), "nemotron", rotary_fraction=ROTARY_FRACTION)
    biased = config.flag("attention_bias", default=False)
    return replace(
        _with_parts(spec),
        activation=read_activation(config),
        qkv_bias=biased,
        o_bias=biased,
        mlp_bias=config.flag("mlp_bias", default=False),
    )


def spec_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata; files store norms with the 1 added."""
    shapes = header.tensor_shapes
    return replace(
        _with_parts(base_gguf_spec(header, "nemotron")),
        qkv_bias="blk.0.attn_q.bias" in shapes,
        o_bias="blk.0.attn_output.bias" in shapes,
        mlp_bias="blk.0.ffn_up.bias" in shapes,
    )


def _with_parts(spec: ModelSpec) -> ModelSpec:
    return replace(spec, norm="layer", norm_bias=True, mlp="plain", activation="relu2")


NEMOTRON: Final = Family(
    name="nemotron",
    models="Nemotron, Minitron",
    verified=("transformers", "GGUF twin"),
    model_types=("nemotron",),
    spec_from_config=spec_from_config,
    gguf_architectures=("nemotron",),
    spec_from_gguf=spec_from_gguf,
    norm_offset=1.0,
)
