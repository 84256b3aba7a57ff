"""Mistral, Ministral and the text part of Mistral Small 3: Llama with windows, or with yarn."""

from dataclasses import replace
from typing import Final

from headrace.models.families.family import (
    Family,
    base_config_spec,
    layer_windows,
    require_activation,
    uniform_window,
)
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

DEFAULT_WINDOW_TOKENS: Final = 4096
MINISTRAL3_DEFAULTS: Final = {
    "head_dim": 128,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 262_144,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1_000_000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16_384,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}
"""Source: transformers `Ministral3Config`."""


def mistral_from_config(config: Fields) -> ModelSpec:
    """Read a config; a `sliding_window` of null means none, a missing key means 4096 as in transformers."""
    require_activation(config, "silu")
    config.refuse("layer_types", "a window on some layers only")
    return uniform_window(base_config_spec(config, "mistral"), _window(config))


def ministral_from_config(config: Fields) -> ModelSpec:
    """Read a `ministral` config, whose `layer_types` say which layers have the window."""
    require_activation(config, "silu")
    spec = base_config_spec(config, "ministral")
    window = _window(config)
    return layer_windows(config, spec, window, (window > 0,) * spec.num_layers)


def ministral3_from_config(config: Fields) -> ModelSpec:
    """
    Read a `ministral3` config.

    Beyond the original context queries are scaled by position (`llama_4_scaling_beta`), so this context ends there.
    """
    config = config.with_defaults(MINISTRAL3_DEFAULTS)
    require_activation(config, "silu")
    rope = config.sub("rope_parameters")
    others = {key: value for key, value in rope.values.items() if key != "llama_4_scaling_beta"}
    spec = base_config_spec(Fields({**config.values, "rope_parameters": others}, config.source), "ministral3")
    if rope.has("llama_4_scaling_beta"):
        unscaled = rope.whole("original_max_position_embeddings", spec.max_positions)
        spec = replace(spec, max_positions=min(spec.max_positions, unscaled))
    return uniform_window(spec, config.whole("sliding_window", 0, minimum=0))


def _window(config: Fields) -> int:
    """Return the window in tokens, 0 for none."""
    is_null = "sliding_window" in config.values and not config.has("sliding_window")
    return 0 if is_null else config.whole("sliding_window", DEFAULT_WINDOW_TOKENS)


MISTRAL: Final = Family(
    name="mistral",
    models="Mistral, with its sliding window; the text part of Mistral Small 3",
    verified=("transformers",),
    model_types=("mistral",),
    spec_from_config=mistral_from_config,
)
MINISTRAL: Final = Family(
    name="ministral",
    models="Ministral, with windows on some layers",
    verified=("transformers",),
    model_types=("ministral",),
    spec_from_config=ministral_from_config,
)
MINISTRAL3: Final = Family(
    name="ministral3",
    models="Ministral 3, up to its original context (16,384)",
    verified=("transformers",),
    model_types=("ministral3",),
    spec_from_config=ministral3_from_config,
)
