"""Arcee (AFM): Llama with a plain MLP and a squared ReLU."""

from dataclasses import replace
from typing import Final

from headrace.models.families.family import Family, GgufHeader, base_config_spec, base_gguf_spec, require_activation
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

DEFAULTS: Final = {"hidden_act": "relu2", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
"""Source: transformers `ArceeConfig`."""


def spec_from_config(config: Fields) -> ModelSpec:
    """Read an `arcee` config."""
    config = config.with_defaults(DEFAULTS)
    require_activation(config, "relu2")
    biased = config.flag("attention_bias", default=False)
    return replace(_with_parts(base_config_spec(config, "arcee")), qkv_bias=biased, o_bias=biased)


def spec_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata."""
    return _with_parts(base_gguf_spec(header, "arcee"))


def _with_parts(spec: ModelSpec) -> ModelSpec:
    return replace(spec, mlp="plain", activation="relu2")


ARCEE: Final = Family(
    name="arcee",
    models="Arcee AFM",
    verified=("transformers", "GGUF twin"),
    model_types=("arcee",),
    spec_from_config=spec_from_config,
    gguf_architectures=("arcee",),
    spec_from_gguf=spec_from_gguf,
    interleaved_gguf_rope=True,
)
