"""Muse Glimmer: norms around both halves of a layer, gates after attention, norms of q and k without weights."""

from dataclasses import replace
from typing import Final

from headrace.core.errors import BrokenModel
from headrace.inference.models.families.family import (
    ATTENTION_BIAS,
    GGUF_TENSORS,
    ONES,
    POST_NORM_TENSORS,
    Family,
    GgufHeader,
)
from headrace.inference.models.families.reading import (
    MAX_LAYERS,
    config_spec,
    gguf_spec,
    layer_windows,
    listed_slides,
    sliding_layers,
    without_far_positions,
)
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

_POST_NORM_EPS: Final = 1e-8
_PATTERN: Final = 4
"""Every fourth layer, the last one included, attends to the whole context, without positions."""


def _from_config(family: Family, config: Fields) -> ModelSpec:
    spec = config_spec(family, config.without("final_logit_softcapping"))
    last = (spec.num_layers - 1) % _PATTERN
    slides = tuple(layer % _PATTERN != last for layer in range(spec.num_layers))
    spec = layer_windows(config, spec, config.whole("sliding_window"), slides)
    thetas = config.numbers("layer_rope_theta") or tuple(map(float, slides))
    if len(thetas) != spec.num_layers:
        raise BrokenModel(
            f"{config.source}: layer_rope_theta has {len(thetas)} entries; expected one for each of the "
            f"{spec.num_layers} layers."
        )
    return replace(
        spec,
        rope_of_layer=tuple(0 if theta else -1 for theta in thetas),
        attention_scale=config.positive("qk_scale_factor") * spec.head_dim**-0.5,
        post_norm_eps=config.positive("post_norm_eps"),
        logit_scale=config.positive("output_multiplier"),
        logit_softcap=config.positive("final_logit_softcapping"),
    )


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata; the factor of the scores is in the norms of q, whose weights the converter writes."""
    fields = header.fields
    plain = replace(header, fields=fields.without("final_logit_softcapping", "logit_scale"))
    spec = gguf_spec(family, plain)
    window = fields.whole("attention.sliding_window")
    num_layers = min(spec.num_layers, MAX_LAYERS)
    slides = listed_slides(fields, num_layers) or sliding_layers(num_layers, _PATTERN)
    spec = replace(
        spec,
        windows=tuple(window * slide for slide in slides),
        post_norm_eps=_POST_NORM_EPS,
        logit_scale=fields.positive("logit_scale"),
        logit_softcap=fields.number("final_logit_softcapping", 0.0),
    )
    return without_far_positions(spec)


MUSE_GLIMMER: Final = Family(
    name="muse_glimmer",
    models="the text part of Muse Glimmer (30B)",
    verified=("transformers", "GGUF twin"),
    model_types=("muse_glimmer_text",),
    # Source: transformers `MuseGlimmerTextConfig`.
    defaults={
        "vocab_size": 202_048,
        "hidden_size": 6656,
        "intermediate_size": 19_968,
        "num_hidden_layers": 52,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "sliding_window": 2048,
        "qk_scale_factor": 3.87,
        "output_multiplier": 0.19611613513818404,
        "post_norm_eps": _POST_NORM_EPS,
        "final_logit_softcapping": 20.0,
    },
    activation_key="hidden_activation",
    bias_flags=ATTENTION_BIAS,
    parts={"qk_norm": "head", "norms": "both", "embedding_norm": True, "attention_gate": "element"},
    spec_from_config=_from_config,
    gguf_architectures=("muse-glimmer",),
    gguf_biases=("qkv_bias", "o_bias"),
    spec_from_gguf=_from_gguf,
    tensors={
        **POST_NORM_TENSORS,
        **dict.fromkeys(("embed_norm", "q_norm", "k_norm"), ONES),
        "attn_gate": "self_attn.gate_proj.weight",
    },
    gguf_tensors={**GGUF_TENSORS, "embed_norm": ONES, "attn_gate": "attn_gate.weight"},
    norm_offset=1.0,
    plain_norms=("final_norm", "q_norm", "k_norm"),
    interleaved_gguf_rope=True,
)
