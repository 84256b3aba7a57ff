"""
Gemma 4: heads of two shapes, keys that the last layers share, and inputs of each layer from a table of their own.

Layers with a window and those without differ in the size of their heads, in the number of KV heads, and in whether
their keys are also their values. Unlike in Gemma 1 to 3, norm weights are stored as they are.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.attention import AttentionShape
from headrace.inference.models.experts import MoeSpec
from headrace.inference.models.families.family import (
    EXPERT_INDEX,
    GGUF_TENSORS,
    POST_NORM_TENSORS,
    Family,
    GgufHeader,
)
from headrace.inference.models.families.gemma import GLOBAL_THETA, LOCAL_THETA, PATTERN
from headrace.inference.models.families.reading import (
    check_heads,
    config_spec,
    gguf_experts,
    gguf_spec,
    is_null,
    layer_windows,
    listed_slides,
    sliding_layers,
    with_local_rope,
)
from headrace.inference.models.families.rope_config import rope_from_scaling
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec, RopeSpec

FULL, SLIDING = "full_attention", "sliding_attention"
_ROPES: Final = {
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": GLOBAL_THETA},
    SLIDING: {"rope_type": "default", "rope_theta": LOCAL_THETA},
}
"""Source: transformers `Gemma4TextConfig`."""
_STILL: Final = 1e29
"""Divisors of frequencies in GGUF files that are larger stop a pair: llama.cpp's converter writes 1e30."""


def _from_config(family: Family, config: Fields) -> ModelSpec:
    config.refuse("use_bidirectional_attention", "bidirectional attention", unless=("vision",))
    rope_keys = [key for key in config.values if key.startswith("rope_")]
    others = config.without("use_bidirectional_attention", "final_logit_softcapping", *rope_keys)
    moe = _experts(config) if config.flag("enable_moe_block", default=False) else None
    spec = config_spec(family, others, moe=moe)
    spec = layer_windows(config, spec, config.whole("sliding_window"), sliding_layers(spec.num_layers, PATTERN))
    is_full = [not spec.window(layer) for layer in range(spec.num_layers)]
    shapes = tuple(_shape(config, spec, layer, is_full=full) for layer, full in enumerate(is_full))
    input_key = "hidden_size_per_layer_input"
    default = 256 if config.text("model_type") == "gemma4_text" else 0
    input_size = 0 if is_null(config, input_key) else config.whole(input_key, default, minimum=0)
    if input_size and config.whole("vocab_size_per_layer_input", spec.vocab_size) != spec.vocab_size:
        raise UnsupportedModel(f"{config.source}: vocab_size_per_layer_input differs from vocab_size.")
    num_shared = config.whole("num_kv_shared_layers", 0, minimum=0)
    wide = num_shared if config.flag("use_double_wide_mlp", default=False) else 0
    if wide and moe is not None:
        raise UnsupportedModel(f"{config.source}: use_double_wide_mlp is not supported beside experts.")
    max_positions = config.whole("max_position_embeddings", minimum=2)
    ropes = (
        _rope(config, FULL, _full_dim(shapes, spec), max_positions),
        _rope(config, SLIDING, spec.head_dim, max_positions),
    )
    first_wide = spec.num_layers - wide
    spec = replace(
        spec,
        ropes=ropes,
        logit_softcap=config.number("final_logit_softcapping", 0.0),
        layer_input_size=input_size,
        layer_scales=True,
        intermediate_sizes=_sizes([spec.intermediate_size * (1 + (i >= first_wide)) for i in range(spec.num_layers)]),
    )
    return _completed(spec, shapes, num_shared, config.source)


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    fields = header.fields
    num_layers = fields.whole("block_count")
    slides = listed_slides(fields, num_layers)
    if not slides:
        raise BrokenModel(f"{fields.source}: attention.sliding_window_pattern must have a value for each layer.")
    kv_heads = fields.wholes("attention.head_count_kv", num_layers)
    inner = fields.wholes("feed_forward_length", num_layers)
    sizes = (fields.whole("attention.key_length"), fields.whole("attention.key_length_swa"))
    plain = fields.without(
        "attention.value_length", "final_logit_softcapping", *(k for k in fields.values if "rope." in k)
    )
    values = {"feed_forward_length": inner[0], "attention.head_count_kv": kv_heads[0], "attention.key_length": sizes[1]}
    moe = None
    if fields.whole("expert_count", 0, minimum=0):
        own = {"renormalize": True, "own_norms": True, "shared_size": inner[0]}
        moe = replace(gguf_experts(header, renormalize=True), **own)  # type: ignore[arg-type]
    plain = Fields({**plain.values, **values}, fields.source)
    spec = gguf_spec(family, replace(header, fields=plain, rope_tensors={}), moe=moe)
    window = fields.whole("attention.sliding_window")
    spec = replace(spec, windows=tuple(window if sliding else 0 for sliding in slides))
    shapes = tuple(
        AttentionShape(
            num_heads=spec.num_heads,
            num_kv_heads=kv_heads[layer],
            head_dim=sizes[sliding],
            keys_as_values=f"blk.{layer}.{GGUF_TENSORS['v']}" not in header.tensor_shapes,
        )
        for layer, sliding in enumerate(slides)
    )
    local_theta = fields.positive("rope.freq_base_swa", LOCAL_THETA)
    spec = replace(
        spec,
        ropes=(_gguf_rope(header, sizes[0]), RopeSpec(theta=local_theta)),
        logit_softcap=fields.number("final_logit_softcapping", 0.0),
        layer_input_size=fields.whole("embedding_length_per_layer_input", 0, minimum=0),
        layer_scales=f"blk.0.{GEMMA4.gguf_tensors['layer_scale']}" in header.tensor_shapes,
        intermediate_sizes=_sizes(inner),
    )
    return _completed(spec, shapes, fields.whole("attention.shared_kv_layers", 0, minimum=0), fields.source)


def _sizes(inner: Sequence[int]) -> tuple[int, ...]:
    """Return the widths of the MLPs, or nothing if all are the same."""
    return tuple(inner) if len(set(inner)) > 1 else ()


def _completed(spec: ModelSpec, shapes: tuple[AttentionShape, ...], num_shared: int, source: str) -> ModelSpec:
    """Set what does not depend on the file format."""
    check_heads(shapes, source)
    sources = _kv_sources(spec, num_shared, source)
    # Where a layer takes the keys of another one, it has no values of its own to tell apart from keys.
    shapes = tuple(
        replace(shape, keys_as_values=shape.keys_as_values and sources[layer] == layer)
        for layer, shape in enumerate(shapes)
    )
    return replace(
        with_local_rope(spec),
        attention_shapes=shapes,
        kv_sources=sources if num_shared else (),
        embedding_scale=math.sqrt(spec.hidden_size),
        attention_scale=1.0,
    )


def _kv_sources(spec: ModelSpec, num_shared: int, source: str) -> tuple[int, ...]:
    """Return the layer whose keys each layer takes: the last ones, those of the last one of their kind before them."""
    first = spec.num_layers - num_shared
    sources = list(range(spec.num_layers))
    for layer in range(first, spec.num_layers):
        kind = [other for other in range(max(first, 0)) if bool(spec.window(other)) == bool(spec.window(layer))]
        if not kind:
            raise BrokenModel(f"{source}: {num_shared} layers share keys, but no layer of their kind has any.")
        sources[layer] = kind[-1]
    return tuple(sources)


def _shape(config: Fields, spec: ModelSpec, layer: int, *, is_full: bool) -> AttentionShape:
    own = config.sub("per_layer_config").sub(str(layer))
    head_dim, num_kv_heads = spec.head_dim, spec.num_kv_heads
    keys_as_values = is_full and config.flag("attention_k_eq_v", default=False)
    if is_full:
        head_dim = config.whole("global_head_dim", 512)
        num_kv_heads = config.whole("num_global_key_value_heads", num_kv_heads) if keys_as_values else num_kv_heads
    return AttentionShape(
        num_heads=spec.num_heads,
        num_kv_heads=own.whole("num_key_value_heads", num_kv_heads),
        head_dim=own.whole("head_dim", head_dim),
        keys_as_values=keys_as_values,
    )


def _full_dim(shapes: tuple[AttentionShape, ...], spec: ModelSpec) -> int:
    return next((shape.head_dim for layer, shape in enumerate(shapes) if not spec.window(layer)), spec.head_dim)


def _rope(config: Fields, layer_type: str, head_dim: int, max_positions: int) -> RopeSpec:
    scaling = config.sub("rope_parameters").sub(layer_type)
    values = dict(scaling.values) or _ROPES[layer_type]
    return rope_from_scaling(Fields(values, scaling.source), head_dim, max_positions)


def _gguf_rope(header: GgufHeader, head_dim: int) -> RopeSpec:
    """Read the rope of full layers, whose file has a divisor for each pair: 1, or one so large that the pair stands."""
    theta = header.fields.positive("rope.freq_base", GLOBAL_THETA)
    divisors = header.rope_tensors.get("rope_freqs.weight", ())
    if not divisors:
        return RopeSpec(theta=theta)
    turning = sum(divisor == 1 for divisor in divisors)
    if list(divisors[:turning]) != [1.0] * turning or min(divisors[turning:], default=_STILL) < _STILL or turning < 2:
        raise UnsupportedModel(f"{header.fields.source}: rope_freqs.weight does not stop the last pairs of a head.")
    return RopeSpec(theta=theta, kind="proportional", rotary_dim=0 if 2 * turning == head_dim else 2 * turning)


def _experts(config: Fields) -> MoeSpec:
    return MoeSpec(
        num_experts=config.whole("num_experts"),
        top_k=config.whole("top_k_experts"),
        expert_size=config.whole("moe_intermediate_size"),
        renormalize=True,
        own_norms=True,
        shared_size=config.whole("intermediate_size"),
    )


GEMMA4: Final = Family(
    name="gemma4",
    models="Gemma 4 (E2B, E4B, 12B, 26B-A4B, 31B), also the text part of checkpoints with images",
    verified=("transformers", "GGUF twin"),
    model_types=("gemma4_text", "gemma4_unified_text"),
    # Source: transformers `Gemma4TextConfig`.
    defaults={
        "vocab_size": 262_144,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 30,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 512,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
    },
    refused={"attention_bias": (False, "biases in attention")},
    activation="gelu_tanh",
    activation_key="hidden_activation",
    parts={"qk_norm": "head", "norms": "both", "value_norm": True},
    spec_from_config=_from_config,
    gguf_architectures=("gemma4",),
    spec_from_gguf=_from_gguf,
    tensors={
        **POST_NORM_TENSORS,
        "layer_embed": "model.embed_tokens_per_layer.weight",
        "layer_proj": "model.per_layer_model_projection.weight",
        "layer_proj_norm": "model.per_layer_projection_norm.weight",
        "input_gate": "per_layer_input_gate.weight",
        "input_out": "per_layer_projection.weight",
        "input_norm": "post_per_layer_input_norm.weight",
        "layer_scale": "layer_scalar",
        "router": "router.proj.weight",
        "router_norm": "router.scale",
        "expert_scales": "router.per_expert_scale",
        "expert_norm": "pre_feedforward_layernorm_2.weight",
        "expert_post_norm": "post_feedforward_layernorm_2.weight",
        "shared_post_norm": "post_feedforward_layernorm_1.weight",
        **{f"expert_{part}": f"experts.{EXPERT_INDEX}.{part}_proj.weight" for part in ("gate", "up", "down")},
        **{f"shared_{part}": f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")},
    },
    gguf_tensors={
        **GGUF_TENSORS,
        "layer_embed": "per_layer_token_embd.weight",
        "layer_proj": "per_layer_model_proj.weight",
        "layer_proj_norm": "per_layer_proj_norm.weight",
        "input_gate": "inp_gate.weight",
        "input_out": "proj.weight",
        "input_norm": "post_norm.weight",
        "layer_scale": "layer_output_scale.weight",
        "router_norm": "ffn_gate_inp.scale",
        "expert_scales": "ffn_down_exps.scale",
        "expert_norm": "pre_ffw_norm_2.weight",
        "expert_post_norm": "post_ffw_norm_2.weight",
        "shared_post_norm": "post_ffw_norm_1.weight",
        **{f"shared_{part}": f"ffn_{part}.weight" for part in ("gate", "up", "down")},
    },
)
