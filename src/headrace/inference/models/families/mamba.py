"""
Mamba2, and the keys and names of state space models that hybrids of it share (Granite 4, Bamba, Nemotron-H).

Released models limit dt to 0 and more, which softplus does anyway; other limits are refused.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.families.family import GGUF_TENSORS, LLAMA_TENSORS, Family, GgufHeader
from headrace.inference.models.families.reading import config_spec, gguf_spec, without_positions
from headrace.inference.models.fields import Fields
from headrace.inference.models.mixers import MAX_TAPS, Mixer, SsdSpec
from headrace.inference.models.spec import ModelSpec

_LARGEST: Final = 1 << 20
"""Largest number of channels of the convolution, and of numbers in a head's state."""
_MAX_POSITIONS: Final = 1 << 20
"""Contexts that networks without positions offer; llama.cpp's converter writes the same number."""
_KINDS: Final[Mapping[str, Mixer]] = MappingProxyType(
    {"mamba": "ssd", "linear_attention": "ssd", "attention": "attention", "full_attention": "attention"}
)
SSD_GGUF_TENSORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **GGUF_TENSORS,
        **dict.fromkeys(("mix_in", "mix_small"), "ssm_in.weight"),
        "mix_conv": "ssm_conv1d.weight",
        "mix_decay": "ssm_a",
        "mix_dt_bias": "ssm_dt.bias",
        "mix_skip": "ssm_d",
        "mix_norm": "ssm_norm.weight",
        "ssd.o": "ssm_out.weight",
    }
)
"""Names in GGUF files of families with state space models."""


def ssd_tensors(prefix: str) -> dict[str, str]:
    """Return the names of a state space model in Hugging Face checkpoints, below `prefix`."""
    return {
        **dict.fromkeys(("mix_in", "mix_small"), f"{prefix}.in_proj.weight"),
        "mix_conv": f"{prefix}.conv1d.weight",
        "mix_decay": f"{prefix}.A_log",
        "mix_dt_bias": f"{prefix}.dt_bias",
        "mix_skip": f"{prefix}.D",
        "mix_norm": f"{prefix}.norm.weight",
        "ssd.o": f"{prefix}.out_proj.weight",
    }


def read_ssd(config: Fields, *, norm_eps: float) -> SsdSpec:
    """Read the keys of Granite 4 and Bamba, which families that call them otherwise rename (`Family.keys`)."""
    config.refuse("mamba_proj_bias", "biases of a state space model's matrices", unless=(False,))
    _refuse_limits(config)
    heads = config.whole("mamba_n_heads", 128)
    inner = config.whole("mamba_d_ssm", config.whole("mamba_expand", 2) * config.whole("hidden_size"))
    is_given = config.has("mamba_d_head") and config.values["mamba_d_head"] != "auto"
    ssd = SsdSpec(
        heads=heads,
        head_dim=config.whole("mamba_d_head") if is_given else max(inner // heads, 1),
        state_size=config.whole("mamba_d_state", 256),
        groups=config.whole("mamba_n_groups", 1),
        taps=config.whole("mamba_d_conv", 4),
        norm_eps=norm_eps,
        conv_bias=config.flag("mamba_conv_bias", default=True),
    )
    return _checked(ssd, config.source)


def read_gguf_ssd(header: GgufHeader, *, norm_eps: float) -> SsdSpec:
    fields = header.fields
    heads = fields.whole("ssm.time_step_rank")
    ssd = SsdSpec(
        heads=heads,
        head_dim=max(fields.whole("ssm.inner_size") // heads, 1),
        state_size=fields.whole("ssm.state_size"),
        groups=fields.whole("ssm.group_count", 1),
        taps=fields.whole("ssm.conv_kernel"),
        norm_eps=norm_eps,
        conv_bias=any(name.endswith("ssm_conv1d.bias") for name in header.tensor_shapes),
        norm="gated" if any(name.endswith("ssm_norm.weight") for name in header.tensor_shapes) else None,
    )
    return _checked(ssd, fields.source)


def _refuse_limits(config: Fields) -> None:
    limits = config.values.get("time_step_limit")
    if limits is None:
        return
    least, most = limits if isinstance(limits, list) and len(limits) == 2 else (limits, limits)
    is_infinite = most in (math.inf, "Infinity", {"__float__": "Infinity"})
    if least != 0 or not is_infinite:
        raise UnsupportedModel(
            f"{config.source}: time_step_limit is {limits!r:.200}; the native backend supports [0, Infinity] only. Use "
            "--backend transformers.",
            key="time_step_limit",
        )


def _checked(ssd: SsdSpec, source: str) -> SsdSpec:
    if ssd.num_channels > _LARGEST or ssd.state_size * ssd.head_dim > _LARGEST or not 1 < ssd.taps <= MAX_TAPS:
        raise BrokenModel(
            f"{source}: a state space model has {ssd.heads} heads of {ssd.head_dim} numbers, a state of "
            f"{ssd.state_size} and {ssd.taps} taps; expected at most {_LARGEST} channels and 2 to {MAX_TAPS} taps."
        )
    if ssd.heads % ssd.groups:
        raise BrokenModel(
            f"{source}: a state space model has {ssd.heads} heads in {ssd.groups} groups; expected a multiple."
        )
    return ssd


def with_ssd(spec: ModelSpec, ssd: SsdSpec, is_ssd: Sequence[bool], source: str) -> ModelSpec:
    """Return a network with a state space model in some layers and attention in the others."""
    return with_mixers(spec, ssd, tuple("ssd" if layer else "attention" for layer in is_ssd), source)


def with_mixers(spec: ModelSpec, ssd: SsdSpec, mixers: tuple[Mixer, ...], source: str) -> ModelSpec:
    if len(mixers) != spec.num_layers:
        raise BrokenModel(f"{source}: {len(mixers)} layers have a type; expected {spec.num_layers}.")
    return replace(spec, mixers=mixers, ssd=ssd)


def mixers_of_kinds(
    kinds: Sequence[str], source: str, *, others: Mapping[str, Mixer] = MappingProxyType({})
) -> tuple[Mixer, ...]:
    """Return the mixers of layers by the names of their types in configs; `others` are those of one family."""
    mixers = {**_KINDS, **others}
    unknown = set(kinds) - set(mixers)
    if unknown:
        raise UnsupportedModel(f"{source}: layers of type {', '.join(sorted(unknown))} are not supported.")
    return tuple(mixers[kind] for kind in kinds)


def _from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a config of Mamba2; attention and the MLP, which no layer has, get the smallest size."""
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 1}
    spec = config_spec(family, Fields({**config.values, **heads}, config.source))
    return _without_attention(spec, read_ssd(config, norm_eps=spec.norm_eps), config.source)


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    sizes = {"head_count": 1, "head_count_kv": 1, "key_length": 16, "value_length": 16}
    values = {f"attention.{key}": value for key, value in sizes.items()} | {"feed_forward_length": 1}
    fields = Fields({**header.fields.values, **values}, header.fields.source)
    spec = gguf_spec(family, replace(header, fields=fields))
    return _without_attention(spec, read_gguf_ssd(header, norm_eps=spec.norm_eps), fields.source)


def _without_attention(spec: ModelSpec, ssd: SsdSpec, source: str) -> ModelSpec:
    spec = replace(without_positions(spec), mlps=(False,) * spec.num_layers)
    return with_ssd(spec, ssd, [True] * spec.num_layers, source)


MAMBA2: Final = Family(
    name="mamba2",
    models="Mamba2",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `Mamba2Config`.
    defaults={
        "vocab_size": 32_768,
        "hidden_size": 4096,
        "num_hidden_layers": 64,
        "num_heads": 128,
        "head_dim": 64,
        "n_groups": 8,
        "state_size": 128,
        "layer_norm_epsilon": 1e-5,
        "max_position_embeddings": _MAX_POSITIONS,
    },
    keys={
        "rms_norm_eps": "layer_norm_epsilon",
        "mamba_n_heads": "num_heads",
        "mamba_d_head": "head_dim",
        "mamba_n_groups": "n_groups",
        "mamba_d_state": "state_size",
        "mamba_d_conv": "conv_kernel",
        "mamba_conv_bias": "use_conv_bias",
        "mamba_proj_bias": "use_bias",
    },
    spec_from_config=_from_config,
    gguf_architectures=("mamba2",),
    spec_from_gguf=_from_gguf,
    tensors={
        **LLAMA_TENSORS,
        **ssd_tensors("mixer"),
        "embed": "model.embeddings.weight",
        "final_norm": "model.norm_f.weight",
        "attn_norm": "norm.weight",
    },
    gguf_tensors=SSD_GGUF_TENSORS,
)
