"""
OLMo 1: layer norms without weights.

OLMo 2 and 3: norms after attention and MLP, and over all heads of q and k at once.
"""

from dataclasses import replace
from typing import Final

from headrace.inference.models.families.family import (
    ATTENTION_BIAS,
    GGUF_TENSORS,
    LLAMA_TENSORS,
    ONES,
    POST_NORM_TENSORS,
    Family,
    GgufHeader,
)
from headrace.inference.models.families.reading import (
    config_spec,
    gguf_spec,
    layer_windows,
    pattern_windows,
    sliding_layers,
    with_local_rope,
)
from headrace.inference.models.families.rope_config import rope_from_scaling, scaled_positions
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec, RopeSpec

OLMO3_THETA: Final = 500_000.0


def _olmo_from_config(family: Family, config: Fields) -> ModelSpec:
    spec = config_spec(family, config.without("clip_qkv"))
    return replace(spec, qkv_clip=config.positive("clip_qkv") if config.has("clip_qkv") else 0.0)


def _olmo3_from_config(family: Family, config: Fields) -> ModelSpec:
    """Read an `olmo3` config: three layers with a window, then one without, which alone has the scaled rope."""
    spec = config_spec(family, config.without("rope_parameters", "rope_scaling"))
    default = sliding_layers(spec.num_layers, 4)
    spec = layer_windows(config, spec, config.whole("sliding_window", 4096), default)
    full, sliding = _ropes(config, spec)
    spec = replace(spec, max_positions=scaled_positions(full, spec.max_positions))
    return _with_rope_of_full_layers(spec, full, sliding)


def _olmo2_from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    """Read the GGUF metadata of OLMo 2, and of OLMo 3, which adds a window."""
    spec = gguf_spec(family, header)
    window = header.fields.whole("attention.sliding_window", 0, minimum=0)
    if not window:
        return spec
    rope = spec.ropes[0]
    spec = pattern_windows(replace(spec, family="olmo3"), window, 4)
    return _with_rope_of_full_layers(spec, rope, RopeSpec(theta=rope.theta))


def _with_rope_of_full_layers(spec: ModelSpec, full: RopeSpec, sliding: RopeSpec) -> ModelSpec:
    """Give the layers with a window a rotary embedding of their own if it differs."""
    if full == sliding:
        return replace(spec, ropes=(full,))
    return with_local_rope(replace(spec, ropes=(full, sliding)))


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
    defaults={"max_position_embeddings": 2048, "rms_norm_eps": 1e-5},  # source: transformers `OlmoLayerNorm`
    bias_flags=ATTENTION_BIAS,
    parts={"norm": "layer"},
    spec_from_config=_olmo_from_config,
    gguf_architectures=("olmo",),
    spec_from_gguf=lambda family, header: replace(
        gguf_spec(family, header), qkv_clip=header.fields.number("attention.clamp_kqv", 0.0)
    ),
    tensors={**LLAMA_TENSORS, **_NORMS_OF_ONES},
    gguf_tensors={**GGUF_TENSORS, **_NORMS_OF_ONES},
    interleaved_gguf_rope=True,
)
OLMO2: Final = Family(
    name="olmo2",
    models="OLMo 2; in GGUF files also OLMo 3",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `Olmo2Config` and `Olmo3Config`.
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
    bias_flags=ATTENTION_BIAS,
    parts={"norms": "post", "qk_norm": "full"},
    gguf_architectures=("olmo2",),
    spec_from_gguf=_olmo2_from_gguf,
    tensors=POST_NORM_TENSORS,
)
OLMO3: Final = replace(
    OLMO2,
    name="olmo3",
    models="OLMo 3",
    verified=("transformers",),
    model_types=("olmo3",),
    spec_from_config=_olmo3_from_config,
    gguf_architectures=(),
)
