"""
Qwen3-Next, Qwen 3.5, 3.6 and 3.8: the gated delta rule in most layers, attention with gates in every fourth.

Heads that predict several tokens (`mtp.*`) are not read: they only propose draft tokens.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import numpy as np

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.families.family import GGUF_TENSORS, QWEN_EXPERT_TENSORS, Family, GgufHeader
from headrace.inference.models.families.qwen_moe import sparse_experts
from headrace.inference.models.families.reading import config_spec, gguf_experts, gguf_spec
from headrace.inference.models.fields import Fields
from headrace.inference.models.mixers import DeltaSpec, Mixer
from headrace.inference.models.spec import ModelSpec

_LARGEST: Final = 1 << 20
"""Largest number of channels of the convolution."""
_MOST_TAPS: Final = 64
_KINDS: Final[Mapping[str, Mixer]] = MappingProxyType({"linear_attention": "delta", "full_attention": "attention"})
_MIXER_TENSORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "attn_gate": "self_attn.q_proj.weight",
        **dict.fromkeys(("mix_q", "mix_k", "mix_v"), "linear_attn.in_proj_qkv.weight"),
        "mix_z": "linear_attn.in_proj_z.weight",
        "mix_beta": "linear_attn.in_proj_b.weight",
        "mix_dt": "linear_attn.in_proj_a.weight",
        "mix_conv": "linear_attn.conv1d.weight",
        "mix_decay": "linear_attn.A_log",
        "mix_dt_bias": "linear_attn.dt_bias",
        "mix_norm": "linear_attn.norm.weight",
        "delta.o": "linear_attn.out_proj.weight",
    }
)
_GGUF_TENSORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **GGUF_TENSORS,
        "attn_gate": "attn_q.weight",
        "mlp_norm": "post_attention_norm.weight",
        **dict.fromkeys(("mix_q", "mix_k", "mix_v"), "attn_qkv.weight"),
        "mix_z": "attn_gate.weight",
        "mix_beta": "ssm_beta.weight",
        "mix_dt": "ssm_alpha.weight",
        "mix_conv": "ssm_conv1d.weight",
        "mix_decay": "ssm_a",
        "mix_dt_bias": "ssm_dt.bias",
        "mix_norm": "ssm_norm.weight",
        "delta.o": "ssm_out.weight",
    }
)


def _from_config(family: Family, config: Fields) -> ModelSpec:
    return with_delta(config_spec(family, config), config)


def _experts_from_config(family: Family, config: Fields) -> ModelSpec:
    moe = sparse_experts(config, num_experts=512, top_k=10, expert_size=512)
    size = config.whole("shared_expert_intermediate_size", 512)
    layers = () if all(moe.layers) else moe.layers
    moe = replace(moe, shared_size=size, has_shared_router=True, layers=layers)
    return with_delta(config_spec(family, config, moe=moe), config)


def with_delta(
    spec: ModelSpec, config: Fields, *, beta_scale: float = 1.0, norm_eps: float = 0.0, by_channel: bool = False
) -> ModelSpec:
    """Add the layers with the delta rule: those that `layer_types` names, or all but every fourth."""
    interval = config.whole("full_attention_interval", 4)
    kinds = config.texts("layer_types") or tuple(
        "linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(spec.num_layers)
    )
    if unknown := set(kinds) - set(_KINDS):
        raise UnsupportedModel(f"{config.source}: layers of type {', '.join(sorted(unknown))} are not supported.")
    delta = DeltaSpec(
        key_heads=config.whole("linear_num_key_heads", 16),
        value_heads=config.whole("linear_num_value_heads", 32),
        key_dim=config.whole("linear_key_head_dim", 128),
        value_dim=config.whole("linear_value_head_dim", 128),
        taps=config.whole("linear_conv_kernel_dim", 4),
        norm_eps=norm_eps or spec.norm_eps,
        beta_scale=beta_scale,
        by_channel=by_channel,
    )
    return _checked(replace(spec, mixers=tuple(_KINDS[kind] for kind in kinds), delta=delta), config.source)


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    has_experts = header.fields.whole("expert_count", 0, minimum=0) > 0
    moe = gguf_experts(header, renormalize=True) if has_experts else None
    fields = header.fields.with_defaults({"feed_forward_length": moe.expert_size} if moe else {})
    spec = gguf_spec(family, replace(header, fields=fields), moe=moe)
    interval = fields.whole("full_attention_interval", 4)
    recurrent = fields.values.get("attention.recurrent_layers")
    if not isinstance(recurrent, np.ndarray) or len(recurrent) < spec.num_layers:
        recurrent = np.arange(1, spec.num_layers + 1) % interval != 0
    value_heads = fields.whole("ssm.time_step_rank")
    delta = DeltaSpec(
        key_heads=fields.whole("ssm.group_count"),
        value_heads=value_heads,
        key_dim=fields.whole("ssm.state_size"),
        value_dim=fields.whole("ssm.inner_size") // value_heads,
        taps=fields.whole("ssm.conv_kernel"),
        norm_eps=spec.norm_eps,
        is_tiled=family.name != "qwen3_next",
    )
    mixers: tuple[Mixer, ...] = tuple("delta" if is_delta else "attention" for is_delta in recurrent[: spec.num_layers])
    return _checked(replace(spec, mixers=mixers, delta=delta), fields.source)


def _checked(spec: ModelSpec, source: str) -> ModelSpec:
    assert spec.delta is not None
    delta = spec.delta
    if len(spec.mixers) != spec.num_layers:
        raise BrokenModel(f"{source}: layer_types has {len(spec.mixers)} entries for {spec.num_layers} layers.")
    channels = delta.state_shape(spec.hidden_size).channels
    if channels > _LARGEST or not 1 < delta.taps <= _MOST_TAPS or not delta.value_dim:
        raise BrokenModel(
            f"{source}: the delta rule has {channels} channels, {delta.taps} taps and values of {delta.value_dim}; "
            f"expected at most {_LARGEST} channels, and 2 to {_MOST_TAPS} taps."
        )
    if delta.value_heads % delta.key_heads:
        raise BrokenModel(
            f"{source}: there are {delta.value_heads} value heads; expected a multiple of {delta.key_heads} key heads."
        )
    return spec


QWEN3_NEXT: Final = Family(
    name="qwen3_next",
    models="Qwen3-Next and Qwen3-Coder-Next",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `Qwen3NextConfig`.
    defaults={"head_dim": 256, "num_key_value_heads": 2, "max_position_embeddings": 32_768, "norm_topk_prob": True},
    rotary_fraction=0.25,
    parts={"qk_norm": "head", "attention_gate": "element"},
    norm_offset=1.0,
    spec_from_config=_experts_from_config,
    gguf_architectures=("qwen3next",),
    spec_from_gguf=_from_gguf,
    tensors={
        **QWEN_EXPERT_TENSORS,
        **_MIXER_TENSORS,
        **dict.fromkeys(("mix_q", "mix_k", "mix_v", "mix_z"), "linear_attn.in_proj_qkvz.weight"),
        **dict.fromkeys(("mix_beta", "mix_dt"), "linear_attn.in_proj_ba.weight"),
    },
    gguf_tensors={**_GGUF_TENSORS, **dict.fromkeys(("mix_beta", "mix_dt"), "ssm_ba.weight")},
)
QWEN3_5: Final = replace(
    QWEN3_NEXT,
    name="qwen3_5",
    models="the text part of Qwen 3.5, 3.6 and 3.8",
    model_types=("qwen3_5_text",),
    # Source: transformers `Qwen3_5TextConfig`.
    defaults={"head_dim": 256, "num_key_value_heads": 4, "max_position_embeddings": 32_768},
    refused={"attn_output_gate": (True, "attention without gates")},
    spec_from_config=_from_config,
    gguf_architectures=("qwen35",),
    tensors={**QWEN_EXPERT_TENSORS, **_MIXER_TENSORS},
    gguf_tensors=_GGUF_TENSORS,
)
QWEN3_5_MOE: Final = replace(
    QWEN3_5,
    name="qwen3_5_moe",
    models="the text part of Qwen 3.5 and 3.6 MoE",
    model_types=("qwen3_5_moe_text",),
    # Source: transformers `Qwen3_5MoeTextConfig`.
    defaults={
        **QWEN3_NEXT.defaults,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "intermediate_size": 512,
    },
    spec_from_config=_experts_from_config,
    gguf_architectures=("qwen35moe",),
)
