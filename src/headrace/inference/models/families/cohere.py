"""Command-R and R+, Aya (Cohere), Command R7B and A (Cohere 2): the MLP beside attention, norms without biases."""

from dataclasses import replace
from typing import Final

from headrace.inference.models.families.family import ATTENTION_BIAS, Family, GgufHeader
from headrace.inference.models.families.reading import (
    config_spec,
    gguf_spec,
    layer_windows,
    pattern_windows,
    sliding_layers,
    without_far_positions,
)
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

THETA: Final = {"cohere": 500_000.0, "cohere2": 10_000.0}
"""Defaults for configs without a theta. Source: transformers `CohereConfig` and `Cohere2Config`."""


def _cohere_from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a `cohere` config; Command-R+ also norms each head of q and k, with weights of its own."""
    spec = _read(family, config)
    return replace(spec, qk_norm="layer") if config.flag("use_qk_norm", default=False) else spec


def _cohere2_from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a `cohere2` config; every fourth layer has no window and no positions."""
    spec = _read(family, config)
    default = sliding_layers(spec.num_layers, config.whole("sliding_window_pattern"))
    return without_far_positions(layer_windows(config, spec, config.whole("sliding_window"), default))


def _cohere2_from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    """Read the GGUF metadata of Command R7B, which omits the pattern of windows."""
    spec = _read_gguf(family, header)
    return without_far_positions(pattern_windows(spec, header.fields.whole("attention.sliding_window"), 4))


def _read(family: Family, config: Fields) -> ModelSpec:
    if not config.sub("rope_parameters").values:
        config = config.with_defaults({"rope_theta": THETA[family.name]})
    return replace(config_spec(family, config), logit_scale=config.positive("logit_scale"))


def _read_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    spec = gguf_spec(family, replace(header, fields=header.fields.without("logit_scale")))
    return replace(spec, logit_scale=header.fields.positive("logit_scale", 0.0625))


COHERE: Final = Family(
    name="cohere",
    models="Command-R, Command-R+, Aya",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `CohereConfig` and `Cohere2Config`.
    defaults={
        "max_position_embeddings": 8192,
        "layer_norm_eps": 1e-5,
        "logit_scale": 0.0625,
        "tie_word_embeddings": True,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    },
    keys={"rms_norm_eps": "layer_norm_eps"},
    bias_flags=ATTENTION_BIAS,
    parts={"norm": "layer", "parallel": "one"},
    spec_from_config=_cohere_from_config,
    gguf_architectures=("command-r",),
    spec_from_gguf=lambda family, header: replace(
        _read_gguf(family, header), qk_norm="layer" if "blk.0.attn_q_norm.weight" in header.tensor_shapes else None
    ),
    interleaved_rope=True,
    interleaved_gguf_rope=True,
)
COHERE2: Final = replace(
    COHERE,
    name="cohere2",
    models="Command R7B, Command A",
    model_types=("cohere2",),
    spec_from_config=_cohere2_from_config,
    gguf_architectures=("cohere2",),
    spec_from_gguf=_cohere2_from_gguf,
)
