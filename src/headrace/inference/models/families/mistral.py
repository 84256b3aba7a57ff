"""Mistral, Ministral and the text part of Mistral Small 3: Llama with windows, or with yarn."""

from dataclasses import replace
from typing import Final

from headrace.inference.models.families.family import Family
from headrace.inference.models.families.reading import config_spec, is_null, layer_windows, uniform_window
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

DEFAULT_WINDOW_TOKENS: Final = 4096


def _ministral_from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a `ministral` config, whose `layer_types` say which layers have the window."""
    spec = config_spec(family, config)
    window = _window(config)
    return layer_windows(config, spec, window, (window > 0,) * spec.num_layers)


def _ministral3_from_config(family: Family, config: Fields) -> ModelSpec:
    """
    Read a `ministral3` config.

    Beyond the original context queries are scaled by position (`llama_4_scaling_beta`), so this context ends there.
    """
    rope = config.sub("rope_parameters")
    others = rope.without("llama_4_scaling_beta").values
    spec = config_spec(family, Fields({**config.values, "rope_parameters": others}, config.source))
    if rope.has("llama_4_scaling_beta"):
        unscaled = rope.whole("original_max_position_embeddings", spec.max_positions)
        spec = replace(spec, max_positions=min(spec.max_positions, unscaled))
    return uniform_window(spec, config.whole("sliding_window", 0, minimum=0))


def _window(config: Fields) -> int:
    """Return the window in tokens; null means none, a missing key 4096 as in transformers."""
    return 0 if is_null(config, "sliding_window") else config.whole("sliding_window", DEFAULT_WINDOW_TOKENS)


MISTRAL: Final = Family(
    name="mistral",
    models="Mistral, with its sliding window; the text part of Mistral Small 3",
    verified=("transformers",),
    refused={"layer_types": (None, "a window on some layers only")},
    spec_from_config=lambda family, config: uniform_window(config_spec(family, config), _window(config)),
)
MINISTRAL: Final = Family(
    name="ministral",
    models="Ministral, with windows on some layers",
    verified=("transformers",),
    spec_from_config=_ministral_from_config,
)
MINISTRAL3: Final = Family(
    name="ministral3",
    models="Ministral 3, up to its original context (16,384)",
    verified=("transformers",),
    # Source: transformers `Ministral3Config`.
    defaults={
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
    },
    spec_from_config=_ministral3_from_config,
)
