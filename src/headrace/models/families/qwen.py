"""Qwen 2 and 2.5 (biases on q, k and v) and Qwen 3 (norms on q and k instead)."""

from dataclasses import replace
from typing import Final

from headrace.models.families.family import (
    Family,
    GgufHeader,
    base_config_spec,
    base_gguf_spec,
    layer_windows,
    require_activation,
)
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

QWEN3_HEAD_DIM: Final = 128


def qwen2_from_config(config: Fields) -> ModelSpec:
    """Read a Qwen 2 config."""
    require_activation(config, "silu")
    return with_windows(config, replace(base_config_spec(config, "qwen2"), qkv_bias=True))


def qwen3_from_config(config: Fields) -> ModelSpec:
    """Read a Qwen 3 config; the head size does not follow from the hidden size."""
    require_activation(config, "silu")
    head_dim = config.whole("head_dim", QWEN3_HEAD_DIM)
    spec = base_config_spec(Fields({**config.values, "head_dim": head_dim}, config.source), "qwen3")
    biased = config.flag("attention_bias", default=False)
    return with_windows(config, replace(spec, qk_norm="head", qkv_bias=biased, o_bias=biased))


def qwen2_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read the GGUF metadata of Qwen 2."""
    return replace(base_gguf_spec(header, "qwen2"), qkv_bias=True)


def qwen3_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read the GGUF metadata of Qwen 3."""
    return replace(base_gguf_spec(header, "qwen3"), qk_norm="head")


def with_windows(config: Fields, spec: ModelSpec) -> ModelSpec:
    """Set the windows, which apply only with `use_sliding_window` and from layer `max_window_layers` on."""
    if not config.flag("use_sliding_window", default=False) or _window_is_off(config):
        config.refuse("layer_types", "sliding layers without a window", unless=(["full_attention"] * spec.num_layers,))
        return spec
    first = config.whole("max_window_layers", 28, minimum=0)
    default = tuple(layer >= first for layer in range(spec.num_layers))
    return layer_windows(config, spec, config.whole("sliding_window", 4096), default)


def _window_is_off(config: Fields) -> bool:
    return "sliding_window" in config.values and not config.has("sliding_window")


QWEN2: Final = Family(
    name="qwen2",
    models="Qwen 2 and 2.5",
    verified=("transformers", "GGUF twin"),
    model_types=("qwen2",),
    spec_from_config=qwen2_from_config,
    gguf_architectures=("qwen2",),
    spec_from_gguf=qwen2_from_gguf,
)
QWEN3: Final = Family(
    name="qwen3",
    models="Qwen 3",
    verified=("transformers", "GGUF twin"),
    model_types=("qwen3",),
    spec_from_config=qwen3_from_config,
    gguf_architectures=("qwen3",),
    spec_from_gguf=qwen3_from_gguf,
)
