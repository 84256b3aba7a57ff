"""EXAONE with experts (K-EXAONE): EXAONE 4 with norms before attention and MLP, and experts chosen by sigmoids."""

from typing import Final

from headrace.inference.models.families import exaone4
from headrace.inference.models.families.family import DEEPSEEK_EXPERT_TENSORS, Family
from headrace.inference.models.families.reading import config_router, gguf_experts

EXAONE_MOE: Final = Family(
    name="exaone_moe",
    models="K-EXAONE",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `ExaoneMoeConfig`.
    defaults={
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-5,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1024,
        "num_shared_experts": 1,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 1,
    },
    keys={"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"},
    parts={"qk_norm": "head"},
    spec_from_config=lambda family, config: exaone4.from_config(family, config, config_router(config)),
    gguf_architectures=("exaone-moe",),
    spec_from_gguf=lambda family, header: exaone4.from_gguf(
        family, header, gguf_experts(header, renormalize=True, scoring="sigmoid", sum_floor=1e-20)
    ),
    tensors={**DEEPSEEK_EXPERT_TENSORS, "choice_bias": "mlp.e_score_correction_bias"},
)
