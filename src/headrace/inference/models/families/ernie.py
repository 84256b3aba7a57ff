"""ERNIE 4.5, dense and with experts: Llama whose heads turn interleaved pairs."""

from dataclasses import replace
from typing import Final

from headrace.inference.models.families.family import DEEPSEEK_EXPERT_TENSORS, Family, GgufHeader
from headrace.inference.models.families.reading import (
    MAX_LAYERS,
    config_router,
    config_spec,
    gguf_experts,
    gguf_spec,
)
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

ERNIE4_5: Final = Family(
    name="ernie4_5",
    models="ERNIE 4.5, dense",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `Ernie4_5Config`.
    defaults={
        "head_dim": 128,
        "num_key_value_heads": 2,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "rope_theta": 500_000.0,
    },
    refused={"use_bias": (False, "biases in all matrices")},
    gguf_architectures=("ernie4_5",),
    interleaved_rope=True,
    interleaved_gguf_rope=True,
)


def _moe_from_config(family: Family, config: Fields) -> ModelSpec:
    """Read experts in every `moe_layer_interval`-th layer from the start to the end index."""
    num_layers = min(config.whole("num_hidden_layers"), MAX_LAYERS)
    start, step = config.whole("moe_layer_start_index", 1, minimum=0), config.whole("moe_layer_interval", 1)
    end = config.whole("moe_layer_end_index", -1, minimum=-1)
    last = num_layers - 1 if end == -1 else end
    layers = tuple((layer + 1) % step == 0 and start <= layer <= last for layer in range(num_layers))
    floor = config.positive("moe_norm_min", 1e-12)
    moe = config_router(config, scoring="softmax", layers=layers, renormalize=True, sum_floor=floor)
    return config_spec(family, config, moe=moe)


def _moe_from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    return gguf_spec(family, header, moe=gguf_experts(header, renormalize=True, sum_floor=1e-12))


ERNIE4_5_MOE: Final = replace(
    ERNIE4_5,
    name="ernie4_5_moe",
    models="ERNIE 4.5 with experts",
    model_types=(),
    # Source: transformers `Ernie4_5_MoeConfig`.
    defaults={
        "num_key_value_heads": 4,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "rope_theta": 500_000.0,
        "moe_num_experts": 64,
        "moe_k": 6,
        "moe_num_shared_experts": 2,
        "moe_intermediate_size": 1536,
    },
    keys={
        "n_routed_experts": "moe_num_experts",
        "num_experts_per_tok": "moe_k",
        "n_shared_experts": "moe_num_shared_experts",
    },
    spec_from_config=_moe_from_config,
    gguf_architectures=("ernie4_5-moe",),
    spec_from_gguf=_moe_from_gguf,
    tensors={**DEEPSEEK_EXPERT_TENSORS, "choice_bias": "mlp.moe_statics.e_score_correction_bias"},
)
