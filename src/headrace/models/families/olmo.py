"""
OLMo 1: layer norms without weights.

OLMo 2 and 3: norms after attention and MLP, and over all heads of q and k at once.
"""

from dataclasses import replace
from typing import Final

from headrace.models.families.family import (
    GGUF_TENSORS,
    LLAMA_TENSORS,
    ONES,
    POST_NORM_TENSORS,
    Family,
    GgufHeader,
    base_config_spec,
    base_gguf_spec,
    layer_windows,
    require_activation,
    sliding_layers,
)
from headrace.models.families.rope_config import rope_from_scaling, scaled_positions
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec, RopeSpec

OLMO2_DEFAULTS: Final = {"rms_norm_eps": 1e-5, "max_position_embeddings": 2048}
"""Source: transformers `Olmo2Config` and `Olmo3Config`."""
OLMO_EPS: Final = 1e-5
"""Source: transformers `OlmoLayerNorm`."""
OLMO3_THETA: Final = 500_000.0


def olmo_from_config(config: Fields) -> ModelSpec:
    """Read an `olmo` config."""
    config = config.with_defaults({"max_position_embeddings": 2048, "rms_norm_eps": OLMO_EPS})
    require_activation(config, "silu")
    biased = config.flag("attention_bias", default=False)
    spec = replace(base_config_spec(config.without("clip_qkv"), "olmo"), qkv_bias=biased, o_bias=biased)
    return replace(spec, norm="layer", qkv_clip=config.positive("clip_qkv") if config.has("clip_qkv") else 0.0)


def olmo_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read the GGUF metadata of OLMo 1."""
    clip = header.fields.number("attention.clamp_kqv", 0.0)
    return replace(base_gguf_spec(header, "olmo"), norm="layer", qkv_clip=clip)


def olmo2_from_config(config: Fields) -> ModelSpec:
    """Read an `olmo2` config."""
    return _with_post_norms(config, base_config_spec(config.with_defaults(OLMO2_DEFAULTS), "olmo2"))


def olmo3_from_config(config: Fields) -> ModelSpec:
    """Read an `olmo3` config: three layers with a window, then one without, which alone has the scaled rope."""
    config = config.with_defaults(OLMO2_DEFAULTS)
    spec = _with_post_norms(config, base_config_spec(config.without("rope_parameters", "rope_scaling"), "olmo3"))
    default = sliding_layers(spec.num_layers, 4)
    spec = layer_windows(config, spec, config.whole("sliding_window", 4096), default)
    full, sliding = _ropes(config, spec)
    return with_rope_of_full_layers(
        replace(spec, max_positions=scaled_positions(full, spec.max_positions)), full, sliding
    )


def olmo2_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read the GGUF metadata of OLMo 2, and of OLMo 3, which adds a window."""
    spec = replace(base_gguf_spec(header, "olmo2"), norms="post", qk_norm="full")
    window = header.fields.whole("attention.sliding_window", 0, minimum=0)
    if not window:
        return spec
    windows = tuple(window if sliding else 0 for sliding in sliding_layers(spec.num_layers, 4))
    rope = spec.ropes[0]
    return with_rope_of_full_layers(replace(spec, family="olmo3", windows=windows), rope, RopeSpec(theta=rope.theta))


def with_rope_of_full_layers(spec: ModelSpec, full: RopeSpec, sliding: RopeSpec) -> ModelSpec:
    """Give the layers with a window a rotary embedding of their own if it differs."""
    if full == sliding:
        return replace(spec, ropes=(full,))
    order = tuple(int(spec.window(layer) > 0) for layer in range(spec.num_layers))
    return replace(spec, ropes=(full, sliding), rope_of_layer=order)


def _with_post_norms(config: Fields, spec: ModelSpec) -> ModelSpec:
    require_activation(config, "silu")
    biased = config.flag("attention_bias", default=False)
    return replace(spec, norms="post", qk_norm="full", qkv_bias=biased, o_bias=biased)


def _ropes(config: Fields, spec: ModelSpec) -> tuple[RopeSpec, RopeSpec]:
    """Return the rotary embeddings of full and sliding layers; `rope_scaling` (transformers 4) is that of full ones."""
    parameters = config.sub("rope_parameters")
    full, sliding = parameters.sub("full_attention"), parameters.sub("sliding_attention")
    common = {"rope_theta": config.positive("rope_theta", OLMO3_THETA)}
    first, second = (
        rope_from_scaling(Fields(common | dict(part.values), part.source), spec.head_dim, spec.max_positions)
        for part in (full if full.values else config.sub("rope_scaling"), sliding)
    )
    return first, second


_NORMS_OF_ONES: Final = dict.fromkeys(("attn_norm", "mlp_norm", "final_norm"), ONES)
OLMO: Final = Family(
    name="olmo",
    models="OLMo 1",
    verified=("transformers", "GGUF twin"),
    model_types=("olmo",),
    spec_from_config=olmo_from_config,
    gguf_architectures=("olmo",),
    spec_from_gguf=olmo_from_gguf,
    tensors={**LLAMA_TENSORS, **_NORMS_OF_ONES},
    gguf_tensors={**GGUF_TENSORS, **_NORMS_OF_ONES},
    interleaved_gguf_rope=True,
)
OLMO2: Final = Family(
    name="olmo2",
    models="OLMo 2; in GGUF files also OLMo 3",
    verified=("transformers", "GGUF twin"),
    model_types=("olmo2",),
    spec_from_config=olmo2_from_config,
    gguf_architectures=("olmo2",),
    spec_from_gguf=olmo2_from_gguf,
    tensors=POST_NORM_TENSORS,
)
OLMO3: Final = Family(
    name="olmo3",
    models="OLMo 3",
    verified=("transformers",),
    model_types=("olmo3",),
    spec_from_config=olmo3_from_config,
    tensors=POST_NORM_TENSORS,
)
