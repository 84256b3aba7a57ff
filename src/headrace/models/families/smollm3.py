"""SmolLM3: Llama without positions on every fourth layer."""

from dataclasses import replace
from typing import Final

from headrace.core.errors import BrokenModel
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

DEFAULTS: Final = {
    "rope_theta": 2_000_000.0,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
    "no_rope_layer_interval": 4,
}
"""Source: transformers `SmolLM3Config`."""


def spec_from_config(config: Fields) -> ModelSpec:
    """Read a `smollm3` config; a 0 in `no_rope_layers` marks a layer without positions."""
    config = config.with_defaults(DEFAULTS)
    require_activation(config, "silu")
    spec = base_config_spec(config, "smollm3")
    interval = config.whole("no_rope_layer_interval")
    turns = config.numbers("no_rope_layers") or tuple((layer + 1) % interval for layer in range(spec.num_layers))
    if len(turns) < spec.num_layers:
        raise BrokenModel(f"{config.source}: no_rope_layers has {len(turns)} entries for {spec.num_layers} layers.")
    biased = config.flag("attention_bias", default=False)
    spec = replace(spec, rope_of_layer=_ropes(turns[: spec.num_layers]), qkv_bias=biased, o_bias=biased)
    if not config.flag("use_sliding_window", default=False):
        return spec
    default = tuple(rope < 0 for rope in spec.rope_of_layer)
    return layer_windows(config, spec, config.whole("sliding_window"), default)


def spec_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata, which omits the layers without positions: every fourth in all files, as in llama.cpp."""
    spec = base_gguf_spec(header, "smollm3")
    return replace(spec, rope_of_layer=_ropes(tuple((layer + 1) % 4 for layer in range(spec.num_layers))))


def _ropes(turns: tuple[float, ...]) -> tuple[int, ...]:
    return tuple(0 if turn else -1 for turn in turns)


SMOLLM3: Final = Family(
    name="smollm3",
    models="SmolLM3",
    verified=("transformers", "GGUF twin"),
    model_types=("smollm3",),
    spec_from_config=spec_from_config,
    gguf_architectures=("smollm3",),
    spec_from_gguf=spec_from_gguf,
    interleaved_gguf_rope=True,
)
