"""Kimi-Linear: Kimi Delta Attention in most layers, latent attention without positions in every fourth, and experts."""

from typing import Final

from headrace.core.errors import BrokenModel
from headrace.inference.models.families.family import (
    EXPERT_INDEX,
    GGUF_TENSORS,
    QKV_INDEX,
    Family,
    GgufHeader,
)
from headrace.inference.models.families.latent import (
    LATENT_TENSORS,
    latent_config_spec,
    latent_gguf_spec,
    without_query_latent,
)
from headrace.inference.models.families.qwen_delta import with_delta
from headrace.inference.models.families.reading import (
    config_router,
    gguf_attention_layers,
    gguf_experts,
    without_positions,
)
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

_ATTENTION_INTERVAL: Final = 4
_HEADS: Final = 32
_HEAD_DIM: Final = 128
_TAPS: Final = 4


def _from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a config; the sizes of the delta rule and its layers are keys of their own, or in `linear_attn_config`."""
    linear = config.sub("linear_attn_config")
    spec = latent_config_spec(family, config, moe=config_router(config))
    return _with_delta(
        spec,
        kinds=config.texts("layer_types") or _kinds(linear, spec.num_layers),
        heads=linear.whole("num_heads", config.whole("linear_num_heads", _HEADS)),
        head_dim=linear.whole("head_dim", config.whole("linear_head_dim", _HEAD_DIM)),
        taps=linear.whole("short_conv_kernel_size", config.whole("linear_conv_kernel_dim", _TAPS)),
        source=config.source,
    )


def _kinds(linear: Fields, num_layers: int) -> tuple[str, ...]:
    """Return the kinds of layers, of which `full_attn_layers` counts those with attention from 1 on."""
    full = {int(number) - 1 for number in linear.numbers("full_attn_layers")}
    if not full:
        full = set(range(_ATTENTION_INTERVAL, num_layers, _ATTENTION_INTERVAL))
    if not full.issubset(range(num_layers)):
        raise BrokenModel(
            f"{linear.source}: full_attn_layers names layers {sorted(layer + 1 for layer in full)!r:.200}; expected "
            f"numbers from 1 to {num_layers}."
        )
    return tuple("full_attention" if layer in full else "linear_attention" for layer in range(num_layers))


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    """Read metadata; layers with the delta rule have no KV heads, and as many heads as those with attention."""
    header, attends = gguf_attention_layers(header)
    fields = header.fields
    moe = gguf_experts(header, renormalize=True, scoring="sigmoid", sum_floor=1e-20)
    return _with_delta(
        latent_gguf_spec(family, header, moe=moe),
        kinds=tuple("full_attention" if attention else "linear_attention" for attention in attends),
        heads=fields.whole("attention.head_count"),
        head_dim=fields.whole("kda.head_dim"),
        taps=fields.whole("ssm.conv_kernel"),
        source=fields.source,
    )


def _with_delta(
    spec: ModelSpec, *, kinds: tuple[str, ...], heads: int, head_dim: int, taps: int, source: str
) -> ModelSpec:
    sizes = {
        "layer_types": list(kinds),
        **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), heads),
        **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), head_dim),
        "linear_conv_kernel_dim": taps,
    }
    return with_delta(without_positions(spec), Fields(sizes, source), by_channel=True)


_MIXER_TENSORS: Final = {
    **{f"mix_{part}": f"self_attn.{part}_proj.weight" for part in "qkv"},
    "mix_beta": "self_attn.b_proj.weight",
    "mix_dt_a": "self_attn.f_a_proj.weight",
    "mix_dt_b": "self_attn.f_b_proj.weight",
    "mix_z_a": "self_attn.g_a_proj.weight",
    "mix_z_b": "self_attn.g_b_proj.weight",
    "mix_conv": f"self_attn.{QKV_INDEX}_conv1d.weight",
    "mix_decay": "self_attn.A_log",
    "mix_dt_bias": "self_attn.dt_bias",
    "mix_norm": "self_attn.o_norm.weight",
}
_EXPERTS: Final = "block_sparse_moe"
_EXPERT_TENSORS: Final = {
    "router": f"{_EXPERTS}.gate.weight",
    "choice_bias": f"{_EXPERTS}.gate.e_score_correction_bias",
    **{
        f"expert_{part}": f"{_EXPERTS}.experts.{EXPERT_INDEX}.{name}.weight"
        for part, name in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
    },
    **{f"shared_{part}": f"{_EXPERTS}.shared_experts.{part}_proj.weight" for part in ("gate", "up", "down")},
}
_GGUF_MIXER_TENSORS: Final = {
    **{f"mix_{part}": GGUF_TENSORS[part] for part in "qkv"},
    "mix_beta": "ssm_beta.weight",
    "mix_dt_a": "ssm_f_a.weight",
    "mix_dt_b": "ssm_f_b.weight",
    "mix_z_a": "ssm_g_a.weight",
    "mix_z_b": "ssm_g_b.weight",
    "mix_conv": f"ssm_conv1d_{QKV_INDEX}.weight",
    "mix_decay": "ssm_a",
    "mix_dt_bias": "ssm_dt.bias",
    "mix_norm": "ssm_norm.weight",
}

KIMI_LINEAR: Final = Family(
    name="kimi_linear",
    models="Kimi-Linear",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `KimiLinearConfig`.
    defaults={
        "rms_norm_eps": 1e-5,
        "model_max_length": 1_048_576,
        "first_k_dense_replace": 1,
        "num_experts": 256,
        "num_experts_per_token": 8,
        "num_shared_experts": 1,
        "moe_intermediate_size": 1024,
        "routed_scaling_factor": 2.446,
        "q_lora_rank": None,
    },
    keys={
        "max_position_embeddings": "model_max_length",
        "n_routed_experts": "num_experts",
        "num_experts_per_tok": "num_experts_per_token",
        "n_shared_experts": "num_shared_experts",
        "n_group": "num_expert_group",
        "norm_topk_prob": "moe_renormalize",
    },
    refused={
        "moe_router_activation_func": ("sigmoid", "another score of experts"),
        "moe_layer_freq": (1, "experts in some of the later layers only"),
        "mla_use_nope": (True, "positions in latent attention"),
        "attention_bias": (False, "biases of attention"),
    },
    spec_from_config=_from_config,
    gguf_architectures=("kimi-linear",),
    spec_from_gguf=_from_gguf,
    # transformers 5 writes the prefix of experts before the MLP of dense layers too.
    other_names={"mlp.": f"{_EXPERTS}."},
    tensors={**LATENT_TENSORS, **_EXPERT_TENSORS, **_MIXER_TENSORS},
    gguf_tensors={**GGUF_TENSORS, **_GGUF_MIXER_TENSORS},
    variant=without_query_latent,
)
