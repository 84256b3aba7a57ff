"""DeepSeek V2 and V3, and the networks of their shape: latent attention with experts."""

from dataclasses import replace
from typing import Final

from headrace.inference.models.families.family import ATTENTION_BIAS, Family, GgufHeader
from headrace.inference.models.families.latent import (
    LATENT_TENSORS,
    dense_up_to,
    latent_config_spec,
    latent_gguf_spec,
    without_query_latent,
)
from headrace.inference.models.families.reading import config_router, gguf_experts
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

_INDEXED: Final = 2048
"""Default of `index_topk`: the positions that the indexer of sparse attention leaves."""
_INTERLEAVED: Final = (True, "rotary pairs that are halves")
_EVERY_LAYER: Final = (1, "experts in some of the later layers only")


def _v2_from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a config whose experts are chosen by the softmax of all, in the best groups with `group_limited_greedy`."""
    method = config.text("topk_method", "greedy")
    config.refuse("topk_method", "this choice of experts", unless=("greedy", "group_limited_greedy"))
    grouped = method == "group_limited_greedy"
    groups = {} if grouped else {"num_groups": 1, "top_groups": 1}
    router = {"scoring": "softmax", "choice_bias": False, "group_score": "best", "renormalize": False, "sum_floor": 0.0}
    return latent_config_spec(family, config, moe=config_router(config, **router, **groups))


def v3_from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a config; the default rank of the query's latent is in the defaults of the family, unless it is 1536."""
    return latent_config_spec(family, config, moe=config_router(config))


def sparse_from_config(family: Family, config: Fields) -> ModelSpec:
    return dense_up_to(v3_from_config(family, config), config.whole("index_topk", _INDEXED))


def v3_from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    """Read metadata; files that name no score have sigmoids if they have biases for the choice, as GLM-4.7-Flash."""
    has_bias = any(name.endswith("exp_probs_b.bias") for name in header.tensor_shapes)
    moe = gguf_experts(
        header, renormalize=False, scoring="sigmoid" if has_bias else "softmax", sum_floor=1e-20 if has_bias else 0.0
    )
    if moe.scoring == "softmax":
        moe = replace(moe, group_score="best")
    spec = latent_gguf_spec(family, header, moe=moe)
    limit = header.fields.whole("attention.indexer.top_k", spec.max_positions)
    spec = dense_up_to(spec, limit)
    growth = header.fields.number("attention.temperature_scale", 0.0)
    if not growth:
        return spec
    period = header.fields.whole("attention.temperature_length", spec.ropes[0].original_max_positions)
    return replace(spec, query_growth=growth, growth_period=period)


DEEPSEEK_V2: Final = Family(
    name="deepseek_v2",
    models="DeepSeek V2 and V2-Lite, Coder V2",
    verified=("transformers",),
    # Source: transformers `DeepseekV2Config`.
    defaults={
        "first_k_dense_replace": 0,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "moe_intermediate_size": 1407,
        "norm_topk_prob": False,
    },
    refused={
        "scoring_func": ("softmax", "another score of experts"),
        "moe_layer_freq": _EVERY_LAYER,
    },
    bias_flags=ATTENTION_BIAS,
    spec_from_config=_v2_from_config,
    tensors=LATENT_TENSORS,
    variant=without_query_latent,
    interleaved_rope=True,
)
DEEPSEEK_V3: Final = Family(
    name="deepseek_v3",
    models="DeepSeek V3, R1 and models of its shape; Kimi K2; as GGUF files also V2, V3.2, GLM-4.7-Flash and GLM-5",
    verified=("transformers", "GGUF twin"),
    model_types=("deepseek_v3", "kimi_k2"),
    # Source: transformers `DeepseekV3Config`.
    defaults={
        "first_k_dense_replace": 3,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
        "max_position_embeddings": 4096,
    },
    refused={
        "scoring_func": ("sigmoid", "another score of experts"),
        "topk_method": ("noaux_tc", "this choice of experts"),
        "rope_interleave": _INTERLEAVED,
        "moe_layer_freq": _EVERY_LAYER,
    },
    bias_flags=ATTENTION_BIAS,
    spec_from_config=v3_from_config,
    gguf_architectures=("deepseek2", "deepseek32", "glm-dsa"),
    spec_from_gguf=v3_from_gguf,
    tensors=LATENT_TENSORS,
    variant=without_query_latent,
    interleaved_rope=True,
    interleaved_gguf_rope=True,
)
DEEPSEEK_V32: Final = replace(
    DEEPSEEK_V3,
    name="deepseek_v32",
    models="DeepSeek V3.2, up to the 2,048 tokens at which its attention is dense",
    verified=("transformers",),
    model_types=("deepseek_v32",),
    defaults={**DEEPSEEK_V3.defaults, "max_position_embeddings": 163_840},
    spec_from_config=sparse_from_config,
    gguf_architectures=(),
)
GLM4_MOE_LITE: Final = replace(
    DEEPSEEK_V3,
    name="glm4_moe_lite",
    models="GLM-4.7-Flash",
    verified=("transformers",),
    model_types=("glm4_moe_lite",),
    # Source: transformers `Glm4MoeLiteConfig`.
    defaults={
        "rms_norm_eps": 1e-5,
        "first_k_dense_replace": 1,
        "n_routed_experts": 64,
        "num_experts_per_tok": 4,
        "n_shared_experts": 1,
        "moe_intermediate_size": 1536,
        "routed_scaling_factor": 1.8,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "max_position_embeddings": 202_752,
    },
    spec_from_config=lambda family, config: latent_config_spec(
        family, config, moe=config_router(config), query_rank=768
    ),
    gguf_architectures=(),
)
GLM_MOE_DSA: Final = replace(
    GLM4_MOE_LITE,
    name="glm_moe_dsa",
    models="GLM-5, up to the 2,048 tokens at which its attention is dense",
    model_types=("glm_moe_dsa",),
    # Source: transformers `GlmMoeDsaConfig`.
    defaults={
        **GLM4_MOE_LITE.defaults,
        "first_k_dense_replace": 3,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "routed_scaling_factor": 2.5,
        "q_lora_rank": 2048,
    },
    spec_from_config=sparse_from_config,
)
