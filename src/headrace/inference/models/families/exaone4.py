"""EXAONE 4: norms after attention and MLP; the 32B model has windows, and no positions on the layers without one."""

from typing import Final

from headrace.inference.models.experts import MoeSpec
from headrace.inference.models.families.family import POST_NORM_TENSORS, Family, GgufHeader
from headrace.inference.models.families.reading import (
    config_spec,
    gguf_spec,
    is_null,
    layer_windows,
    pattern_windows,
    sliding_layers,
    without_far_positions,
)
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

PATTERN: Final = 4
"""Every fourth layer has no window, in all released models."""
DEFAULT_WINDOW_TOKENS: Final = 4096


def from_config(family: Family, config: Fields, moe: MoeSpec | None = None) -> ModelSpec:
    """Read a config; a `sliding_window` of null means that all layers are alike."""
    spec = config_spec(family, config, moe=moe)
    if is_null(config, "sliding_window"):
        return spec
    window = config.whole("sliding_window", DEFAULT_WINDOW_TOKENS)
    return without_far_positions(layer_windows(config, spec, window, sliding_layers(spec.num_layers, PATTERN)))


def from_gguf(family: Family, header: GgufHeader, moe: MoeSpec | None = None) -> ModelSpec:
    spec = gguf_spec(family, header, moe=moe)
    window = header.fields.whole("attention.sliding_window", 0, minimum=0)
    return without_far_positions(pattern_windows(spec, window, PATTERN)) if window else spec


EXAONE4: Final = Family(
    name="exaone4",
    models="EXAONE 4, also the text part of EXAONE 4.5",
    verified=("transformers", "GGUF twin"),
    model_types=("exaone4", "exaone4_5_text"),
    # Source: transformers `Exaone4Config`.
    defaults={"num_key_value_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5},
    parts={"norms": "post", "qk_norm": "head"},
    spec_from_config=from_config,
    gguf_architectures=("exaone4",),
    spec_from_gguf=from_gguf,
    tensors=POST_NORM_TENSORS,
)
