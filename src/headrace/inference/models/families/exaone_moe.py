"""EXAONE with experts (K-EXAONE): EXAONE 4 with norms before attention and MLP, and experts chosen by sigmoids."""

from typing import Final

from headrace.inference.models.families.exaone4 import DEFAULT_WINDOW_TOKENS, PATTERN
from headrace.inference.models.families.family import DEEPSEEK_EXPERT_TENSORS, Family, GgufHeader
from headrace.inference.models.families.reading import (
    config_router,
    config_spec,
    gguf_experts,
    gguf_spec,
    is_null,
    layer_windows,
    pattern_windows,
    sliding_layers,
    without_far_positions,
)
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec


def _from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a config; a `sliding_window` of null means that all layers are alike."""
    spec = config_spec(family, config, moe=config_router(config))
    if is_null(config, "sliding_window"):
        return spec
    window = config.whole("sliding_window", DEFAULT_WINDOW_TOKENS)
    return without_far_positions(layer_windows(config, spec, window, sliding_layers(spec.num_layers, PATTERN)))


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    moe = gguf_experts(header, renormalize=True, scoring="sigmoid", sum_floor=1e-20)
    spec = gguf_spec(family, header, moe=moe)
    window = header.fields.whole("attention.sliding_window", 0, minimum=0)
    return without_far_positions(pattern_windows(spec, window, PATTERN)) if window else spec


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
    spec_from_config=_from_config,
    gguf_architectures=("exaone-moe",),
    spec_from_gguf=_from_gguf,
    tensors={**DEEPSEEK_EXPERT_TENSORS, "choice_bias": "mlp.e_score_correction_bias"},
)
