"""MiniMax-M2: one norm over all heads of q and k, and experts that are chosen by sigmoids."""

from typing import Final

from headrace.inference.models.families.family import Family, GgufHeader
from headrace.inference.models.families.mixtral import MIXTRAL_TENSORS
from headrace.inference.models.families.reading import config_router, config_spec, gguf_experts, gguf_spec
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec


def _from_config(family: Family, config: Fields) -> ModelSpec:
    moe = config_router(config, renormalize=True, sum_floor=0.0)
    if config.has("rotary_dim"):  # the released configs name the size instead of the fraction
        fraction = config.whole("rotary_dim") / config.whole("head_dim")
        config = config.with_defaults({"partial_rotary_factor": fraction})
    return config_spec(family, config, moe=moe)


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    return gguf_spec(family, header, moe=gguf_experts(header, renormalize=True, scoring="sigmoid"))


MINIMAX_M2: Final = Family(
    name="minimax_m2",
    models="MiniMax-M2",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `MiniMaxM2Config`.
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 196_608,
        "rope_theta": 5_000_000.0,
        "num_local_experts": 256,
        "num_experts_per_tok": 8,
    },
    keys={"n_routed_experts": "num_local_experts", "moe_intermediate_size": "intermediate_size"},
    rotary_fraction=1.0,
    parts={"qk_norm": "full"},
    spec_from_config=_from_config,
    gguf_architectures=("minimax-m2",),
    spec_from_gguf=_from_gguf,
    tensors={**MIXTRAL_TENSORS, "choice_bias": "block_sparse_moe.e_score_correction_bias"},
)
