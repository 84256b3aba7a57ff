"""Command-R and R+, Aya (Cohere), Command R7B and A (Cohere 2): the MLP beside attention, norms without biases."""

from dataclasses import replace
from typing import Final

from headrace.models.families.family import (
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

DEFAULTS: Final = {
    "max_position_embeddings": 8192,
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.0625,
    "tie_word_embeddings": True,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}
"""Source: transformers `CohereConfig` and `Cohere2Config`."""
THETA: Final = {"cohere": 500_000.0, "cohere2": 10_000.0}
"""Defaults for configs without a theta. Source: the same."""


def cohere_from_config(config: Fields) -> ModelSpec:
    """Read a `cohere` config; Command-R+ also norms each head of q and k, with weights of its own."""
    spec = _read(config, "cohere")
    return replace(spec, qk_norm="layer") if config.flag("use_qk_norm", default=False) else spec


def cohere2_from_config(config: Fields) -> ModelSpec:
    """Read a `cohere2` config; every fourth layer has no window and no positions."""
    spec = _read(config, "cohere2")
    config = config.with_defaults(DEFAULTS)
    default = sliding_layers(spec.num_layers, config.whole("sliding_window_pattern"))
    return without_far_positions(layer_windows(config, spec, config.whole("sliding_window"), default))


def cohere_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read the GGUF metadata of Command-R."""
    spec = _read_gguf(header, "cohere")
    return replace(spec, qk_norm="layer") if "blk.0.attn_q_norm.weight" in header.tensor_shapes else spec


def cohere2_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read the GGUF metadata of Command R7B, which omits the pattern of windows."""
    spec = _read_gguf(header, "cohere2")
    window = header.fields.whole("attention.sliding_window")
    sliding = sliding_layers(spec.num_layers, 4)
    return without_far_positions(replace(spec, windows=tuple(window if slides else 0 for slides in sliding)))


def _read(config: Fields, family: str) -> ModelSpec:
    config = config.with_defaults(DEFAULTS).renamed({"rms_norm_eps": "layer_norm_eps"})
    require_activation(config, "silu")
    if not config.sub("rope_parameters").values:
        config = config.with_defaults({"rope_theta": THETA[family]})
    biased = config.flag("attention_bias", default=False)
    spec = replace(base_config_spec(config, family), qkv_bias=biased, o_bias=biased)
    return _with_parts(spec, config.positive("logit_scale"))


def _read_gguf(header: GgufHeader, family: str) -> ModelSpec:
    fields = header.fields
    spec = base_gguf_spec(replace(header, fields=fields.without("logit_scale")), family)
    return _with_parts(spec, fields.positive("logit_scale", 0.0625))


def _with_parts(spec: ModelSpec, logit_scale: float) -> ModelSpec:
    return replace(spec, norm="layer", parallel="one", logit_scale=logit_scale)


COHERE: Final = Family(
    name="cohere",
    models="Command-R, Command-R+, Aya",
    verified=("transformers", "GGUF twin"),
    model_types=("cohere",),
    spec_from_config=cohere_from_config,
    gguf_architectures=("command-r",),
    spec_from_gguf=cohere_from_gguf,
    interleaved_rope=True,
    interleaved_gguf_rope=True,
)
COHERE2: Final = Family(
    name="cohere2",
    models="Command R7B, Command A",
    verified=("transformers", "GGUF twin"),
    model_types=("cohere2",),
    spec_from_config=cohere2_from_config,
    gguf_architectures=("cohere2",),
    spec_from_gguf=cohere2_from_gguf,
    interleaved_rope=True,
    interleaved_gguf_rope=True,
)
