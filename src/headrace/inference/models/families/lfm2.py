"""LFM2 and LFM2.5: short convolutions in most layers, attention in the others. LFM3 adds windows, gates and norms."""

from dataclasses import replace
from typing import Final

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.families.family import EXPERT_INDEX, GGUF_TENSORS, LLAMA_TENSORS, Family, GgufHeader
from headrace.inference.models.families.reading import (
    config_router,
    config_spec,
    gguf_attention_layers,
    gguf_experts,
    gguf_spec,
    is_null,
    with_local_rope,
)
from headrace.inference.models.families.rope_config import rope_from_scaling
from headrace.inference.models.fields import Fields
from headrace.inference.models.mixers import MAX_TAPS, ConvSpec, Mixer
from headrace.inference.models.spec import ModelSpec, RopeSpec

_FULL, _SLIDING, _CONV = "full_attention", "sliding_attention", "conv"
_SUM_FLOOR: Final = 1e-6
"""Added to the sum of the factors of experts. Source: transformers `Lfm2MoeTopKRouter`."""
_LFM3_ROPES: Final = {
    _FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
    _SLIDING: {"rope_type": "default", "rope_theta": 1e4},
}


def _lfm2_from_config(family: Family, config: Fields) -> ModelSpec:
    size = config.whole("block_ff_dim", config.whole("intermediate_size"))
    if config.flag("block_auto_adjust_ff_dim", default=True):
        size = _adjusted(config, size)
    spec = config_spec(family, Fields({**config.values, "intermediate_size": size}, config.source))
    if config.texts("layer_types"):
        kinds = _kinds(config, spec)
    else:  # as older configs say it
        with_attention = set(config.numbers("full_attn_idxs")) or range(spec.num_layers)
        kinds = tuple(_FULL if layer in with_attention else _CONV for layer in range(spec.num_layers))
    return _with_convolutions(_tied(config, spec), kinds, config.whole("conv_L_cache", 3), config.source)


def _adjusted(config: Fields, size: int) -> int:
    """Return the width of the MLP. Source: transformers `Lfm2MLP`."""
    size = int(2 * size / 3)
    if is_null(config, "block_ffn_dim_multiplier"):
        return size
    multiple = config.whole("block_multiple_of", 256)
    return -(-int(config.positive("block_ffn_dim_multiplier", 1.0) * size) // multiple) * multiple


def _experts_from_config(family: Family, config: Fields) -> ModelSpec:
    has_bias = config.flag("use_expert_bias", default=True)
    spec = config_spec(family, config, moe=config_router(config, sum_floor=_SUM_FLOOR, choice_bias=has_bias))
    kinds = _kinds(config, spec)
    return _with_convolutions(_tied(config, spec), kinds, config.whole("conv_L_cache", 3), config.source)


def _lfm3_from_config(family: Family, config: Fields) -> ModelSpec:
    spec = config_spec(family, config.without("rope_parameters"))
    kinds = _kinds(config, spec)
    window = config.whole("sliding_window", 256)
    spec = replace(
        _tied(config, spec),
        norms="both" if config.flag("use_sandwich_norm", default=True) else "pre",
        attention_gate="head" if config.flag("use_attention_gate", default=True) else None,
        windows=tuple(window if kind == _SLIDING else 0 for kind in kinds),
        ropes=tuple(_lfm3_rope(config, kind, spec) for kind in _LFM3_ROPES),
    )
    return _with_convolutions(with_local_rope(spec), kinds, config.whole("conv_L_cache", 7), config.source)


def _lfm3_rope(config: Fields, kind: str, spec: ModelSpec) -> RopeSpec:
    values = config.sub("rope_parameters").sub(kind)
    scaling = values if values.values else Fields(_LFM3_ROPES[kind], config.source)
    return rope_from_scaling(scaling, spec.head_dim, spec.max_positions)


def _kinds(config: Fields, spec: ModelSpec) -> tuple[str, ...]:
    """Return the kind of each layer; the default is that of LFM3."""
    kinds = config.texts("layer_types") or tuple(
        _FULL if layer % 4 == 2 else _SLIDING if layer % 4 == 0 and layer > 0 else _CONV
        for layer in range(spec.num_layers)
    )
    unknown = set(kinds) - {_FULL, _CONV, *([_SLIDING] if spec.family == "lfm3" else [])}
    if unknown:
        raise UnsupportedModel(f"{config.source}: layers of type {', '.join(sorted(unknown))} are not supported.")
    if len(kinds) != spec.num_layers:
        raise BrokenModel(f"{config.source}: layer_types has {len(kinds)} entries for {spec.num_layers} layers.")
    return kinds


def _tied(config: Fields, spec: ModelSpec) -> ModelSpec:
    """Read whether the embeddings are tied, by both names of the key."""
    ties = config.flag("tie_embedding", default=config.flag("tie_word_embeddings", default=True))
    return replace(spec, tie_embeddings=ties)


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    fields = header.fields
    fields.refuse("attention.sliding_window", "windows in this family", unless=(0,))
    fields.refuse("attention.causal", "convolutions that see later tokens", unless=(True,))
    header, attends = gguf_attention_layers(header)
    has_experts = fields.whole("expert_count", 0, minimum=0) > 0
    moe = gguf_experts(header, renormalize=True, scoring="sigmoid", sum_floor=_SUM_FLOOR) if has_experts else None
    kinds = tuple(_FULL if attention else _CONV for attention in attends)
    return _with_convolutions(
        gguf_spec(family, header, moe=moe), kinds, fields.whole("shortconv.l_cache"), fields.source
    )


def _with_convolutions(spec: ModelSpec, kinds: tuple[str, ...], taps: int, source: str) -> ModelSpec:
    if not 2 <= taps <= MAX_TAPS:
        raise BrokenModel(f"{source}: the convolutions have {taps} taps; expected 2 to {MAX_TAPS}.")
    mixers: tuple[Mixer, ...] = tuple("conv" if kind == _CONV else "attention" for kind in kinds)
    return replace(spec, mixers=mixers, conv=ConvSpec(taps=taps)) if "conv" in mixers else spec


_TENSORS: Final = {
    **LLAMA_TENSORS,
    "mix_in": "conv.in_proj.weight",
    "mix_conv": "conv.conv.weight",
    "conv.o": "conv.out_proj.weight",
    "final_norm": "model.embedding_norm.weight",
    "attn_norm": "operator_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "o": "self_attn.out_proj.weight",
    "q_norm": "self_attn.q_layernorm.weight",
    "k_norm": "self_attn.k_layernorm.weight",
    "gate": "feed_forward.w1.weight",
    "up": "feed_forward.w3.weight",
    "down": "feed_forward.w2.weight",
}
_EXPERT: Final = f"feed_forward.experts.{EXPERT_INDEX}"
LFM2: Final = Family(
    name="lfm2",
    models="LFM2 and LFM2.5, also the text part of LFM2-VL",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `Lfm2Config`.
    defaults={
        "vocab_size": 65_536,
        "hidden_size": 2560,
        "intermediate_size": 12_288,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 128_000,
        "norm_eps": 1e-5,
        "rope_theta": 1e6,
    },
    keys={"rms_norm_eps": "norm_eps"},
    refused={"conv_bias": (False, "convolutions with biases")},
    activation_key="",
    parts={"qk_norm": "head"},
    spec_from_config=_lfm2_from_config,
    gguf_architectures=("lfm2",),
    spec_from_gguf=_from_gguf,
    tensors=_TENSORS,
    gguf_tensors={
        **GGUF_TENSORS,
        "final_norm": "token_embd_norm.weight",
        "mix_in": "shortconv.in_proj.weight",
        "mix_conv": "shortconv.conv.weight",
        "conv.o": "shortconv.out_proj.weight",
    },
)
LFM2_MOE: Final = replace(
    LFM2,
    name="lfm2_moe",
    models="LFM2 MoE (8B-A1B)",
    model_types=("lfm2_moe",),
    # Source: transformers `Lfm2MoeConfig`.
    defaults={
        **LFM2.defaults,
        "hidden_size": 2048,
        "intermediate_size": 7168,
        "moe_intermediate_size": 1792,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "num_dense_layers": 2,
    },
    keys={**LFM2.keys, "n_routed_experts": "num_experts", "first_k_dense_replace": "num_dense_layers"},
    spec_from_config=_experts_from_config,
    gguf_architectures=("lfm2moe",),
    tensors={
        **_TENSORS,
        "router": "feed_forward.gate.weight",
        "choice_bias": "feed_forward.expert_bias",
        "expert_gate": f"{_EXPERT}.w1.weight",
        "expert_up": f"{_EXPERT}.w3.weight",
        "expert_down": f"{_EXPERT}.w2.weight",
    },
)
LFM3: Final = replace(
    LFM2,
    name="lfm3",
    models="LFM3",
    verified=("transformers",),
    model_types=("lfm3",),
    # Source: transformers `Lfm3Config`.
    defaults={
        "vocab_size": 128_000,
        "hidden_size": 2048,
        "intermediate_size": 7680,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 128_000,
        "norm_eps": 1e-5,
    },
    refused={**LFM2.refused, "attention_bias": (False, "biases in attention")},
    spec_from_config=_lfm3_from_config,
    gguf_architectures=(),
    tensors={
        **_TENSORS,
        "o": "self_attn.o_proj.weight",
        "q_norm": "self_attn.q_norm.weight",
        "k_norm": "self_attn.k_norm.weight",
        "attn_gate": "self_attn.gate_proj.weight",
        "post_attn_norm": "post_operator_norm.weight",
        "post_mlp_norm": "post_ffn_norm.weight",
    },
)
