"""EXAONE 4: norms after attention and MLP; the 32B model has windows, and no positions on the layers without one."""

from dataclasses import replace
from typing import Final

from headrace.models.families.family import (
    POST_NORM_TENSORS,
    Family,
    GgufHeader,
    base_config_spec,
    base_gguf_spec,
    layer_windows,
    require_activation,
    sliding_layers,
    without_far_positions,
)
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

DEFAULTS: Final = {"num_key_value_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5}
"""Source: transformers `Exaone4Config`."""
PATTERN: Final = 4
"""Every fourth layer has no window, in all released models."""
DEFAULT_WINDOW_TOKENS: Final = 4096


def spec_from_config(config: Fields) -> ModelSpec:
    """Read an `exaone4` config; a `sliding_window` of null means that all layers are alike."""
    has_window = "sliding_window" not in config.values or config.has("sliding_window")
    config = config.with_defaults(DEFAULTS)
    require_activation(config, "silu")
    spec = replace(base_config_spec(config, "exaone4"), norms="post", qk_norm="head")
    if not has_window:
        return spec
    window = config.whole("sliding_window", DEFAULT_WINDOW_TOKENS)
    return without_far_positions(layer_windows(config, spec, window, sliding_layers(spec.num_layers, PATTERN)))


def spec_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata."""
    spec = replace(base_gguf_spec(header, "exaone4"), norms="post", qk_norm="head")
    window = header.fields.whole("attention.sliding_window", 0, minimum=0)
    if not window:
        return spec
    return without_far_positions(
        replace(spec, windows=tuple(window if sliding else 0 for sliding in sliding_layers(spec.num_layers, PATTERN)))
    )


EXAONE4: Final = Family(
    name="exaone4",
    models="EXAONE 4",
    verified=("transformers", "GGUF twin"),
    model_types=("exaone4",),
    spec_from_config=spec_from_config,
    gguf_architectures=("exaone4",),
    spec_from_gguf=spec_from_gguf,
    tensors=POST_NORM_TENSORS,
)
