"""SmolLM3: Llama without positions on every fourth layer."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from headrace.core.errors import BrokenModel
from headrace.inference.models.families.family import ATTENTION_BIAS, Family, GgufHeader
from headrace.inference.models.families.reading import config_spec, gguf_spec, layer_windows
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec


def _from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a `smollm3` config; a 0 in `no_rope_layers` marks a layer without positions."""
    spec = config_spec(family, config)
    turns = config.numbers("no_rope_layers") or _usual_turns(spec, config.whole("no_rope_layer_interval"))
    if len(turns) < spec.num_layers:
        raise BrokenModel(f"{config.source}: no_rope_layers has {len(turns)} entries for {spec.num_layers} layers.")
    spec = _with_turns(spec, turns[: spec.num_layers])
    if not config.flag("use_sliding_window", default=False):
        return spec
    default = tuple(rope < 0 for rope in spec.rope_of_layer)
    return layer_windows(config, spec, config.whole("sliding_window"), default)


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata, which omits the layers without positions: every fourth in all files, as in llama.cpp."""
    spec = gguf_spec(family, header)
    return _with_turns(spec, _usual_turns(spec, 4))


def _usual_turns(spec: ModelSpec, interval: int) -> tuple[float, ...]:
    return tuple((layer + 1) % interval for layer in range(spec.num_layers))


def _with_turns(spec: ModelSpec, turns: Iterable[float]) -> ModelSpec:
    return replace(spec, rope_of_layer=tuple(0 if turn else -1 for turn in turns))


SMOLLM3: Final = Family(
    name="smollm3",
    models="SmolLM3",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `SmolLM3Config`.
    defaults={
        "rope_theta": 2_000_000.0,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": True,
        "no_rope_layer_interval": 4,
    },
    bias_flags=ATTENTION_BIAS,
    spec_from_config=_from_config,
    gguf_architectures=("smollm3",),
    spec_from_gguf=_from_gguf,
    interleaved_gguf_rope=True,
)
