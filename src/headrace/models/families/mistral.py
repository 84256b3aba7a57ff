"""Mistral: Llama with a sliding window on every layer, if the checkpoint has a window."""

from dataclasses import replace
from typing import Final

from headrace.models.families.family import Family, base_config_spec, require_activation
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

DEFAULT_WINDOW_TOKENS: Final = 4096


def spec_from_config(config: Fields) -> ModelSpec:
    """Read a config; a `sliding_window` of null means none, a missing key means 4096 as in transformers."""
    require_activation(config, "silu")
    config.refuse("layer_types", "a window on some layers only")
    spec = base_config_spec(config, "mistral")
    if "sliding_window" in config.values and not config.has("sliding_window"):
        return spec
    window = config.whole("sliding_window", DEFAULT_WINDOW_TOKENS)
    return replace(spec, windows=(window,) * spec.num_layers)


MISTRAL: Final = Family(name="mistral", model_types=("mistral",), spec_from_config=spec_from_config)
