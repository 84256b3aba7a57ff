"""Hunyuan: norms of q and k after the rotary embedding; with experts, or dense. HY3: the experts of MiniMax-M2."""

from dataclasses import replace
from typing import Final

from headrace.core.errors import UnsupportedModel
from headrace.inference.models.experts import MoeSpec
from headrace.inference.models.families.family import (
    ATTENTION_BIAS,
    DEEPSEEK_EXPERT_TENSORS,
    GGUF_TENSORS,
    LLAMA_TENSORS,
    Family,
    GgufHeader,
)
from headrace.inference.models.families.reading import config_router, config_spec, gguf_experts, gguf_spec
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

_NORMS: Final = {"q_norm": "self_attn.query_layernorm.weight", "k_norm": "self_attn.key_layernorm.weight"}
_SHARED: Final = {f"shared_{part}": f"mlp.shared_mlp.{part}_proj.weight" for part in ("gate", "up", "down")}


def _from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a config; rope scaling by `alpha` raises theta once, whatever the context."""
    return config_spec(family, _with_alpha(config))


def _moe_from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a config whose values of the experts may be lists with an equal value for each layer."""
    size = _same(config, "moe_intermediate_size", config.whole("intermediate_size"))
    moe = MoeSpec(
        num_experts=_same(config, "num_experts", 1),
        top_k=_same(config, "moe_topk", 1),
        expert_size=size,
        renormalize=True,
        shared_size=config.whole("intermediate_size") * _same(config, "num_shared_expert", 1),
    )
    return config_spec(family, _with_alpha(config), moe=moe)


def _same(config: Fields, key: str, default: int) -> int:
    value = config.values.get(key)
    if isinstance(value, list) and value:
        if any(item != value[0] for item in value):
            raise UnsupportedModel(
                f"{config.source}: {key} is {value!r:.200}; the native backend needs one value for all layers. "
                "Use --backend transformers."
            )
        config = Fields({**config.values, key: value[0]}, config.source)
    return config.whole(key, default)


def _with_alpha(config: Fields) -> Fields:
    for key in ("rope_parameters", "rope_scaling"):
        rope = config.sub(key)
        if rope.has("alpha"):
            head_dim = config.whole("head_dim", config.whole("hidden_size") // config.whole("num_attention_heads"))
            theta = rope.positive("rope_theta", config.positive("rope_theta", 10_000.0))
            scaled = theta * rope.positive("alpha") ** (head_dim / (head_dim - 2))
            others = {name: value for name, value in config.values.items() if name != key}
            return Fields({**others, "rope_theta": scaled}, config.source)
    return config


HUNYUAN: Final = Family(
    name="hunyuan_v1_dense",
    models="Hunyuan, dense",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `HunYuanDenseV1Config`.
    defaults={"rms_norm_eps": 1e-5},
    bias_flags=ATTENTION_BIAS,
    parts={"qk_norm": "rotated"},
    spec_from_config=_from_config,
    gguf_architectures=("hunyuan-dense",),
    gguf_biases=("qkv_bias", "o_bias"),
    tensors={**LLAMA_TENSORS, **_NORMS},
)
HUNYUAN_MOE: Final = replace(
    HUNYUAN,
    name="hunyuan_v1_moe",
    models="Hunyuan with experts (A13B)",
    model_types=(),
    spec_from_config=_moe_from_config,
    gguf_architectures=("hunyuan-moe",),
    spec_from_gguf=lambda family, header: gguf_spec(family, header, moe=gguf_experts(header, renormalize=True)),
    tensors={**DEEPSEEK_EXPERT_TENSORS, **_NORMS, **_SHARED, "router": "mlp.gate.wg.weight"},
)


def _hy_v3_from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    moe = gguf_experts(header, renormalize=True, scoring="sigmoid", sum_floor=1e-20)
    return gguf_spec(family, header, moe=moe)


HY_V3: Final = Family(
    name="hy_v3",
    models="HY3",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `HYV3Config`.
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 11_158_840.0,
        "num_experts": 192,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "moe_intermediate_size": 1536,
        "router_scaling_factor": 2.826,
        "first_k_dense_replace": 1,
    },
    keys={
        "n_routed_experts": "num_experts",
        "n_shared_experts": "num_shared_experts",
        "routed_scaling_factor": "router_scaling_factor",
    },
    bias_flags=ATTENTION_BIAS,
    parts={"qk_norm": "head"},
    spec_from_config=lambda family, config: config_spec(family, config, moe=config_router(config)),
    gguf_architectures=("hy_v3",),
    spec_from_gguf=_hy_v3_from_gguf,
    tensors={
        **DEEPSEEK_EXPERT_TENSORS,
        **_SHARED,
        "router": "mlp.router.gate.weight",
        "choice_bias": "mlp.expert_bias",
    },
    # llama.cpp's converter adds no suffix to a name without one.
    gguf_tensors={**GGUF_TENSORS, "choice_bias": "exp_probs_b"},
)
