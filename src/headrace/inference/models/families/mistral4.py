"""The text part of Mistral 4: latent attention whose queries grow with their position, with experts."""

from dataclasses import replace
from typing import Final

from headrace.inference.models.families.deepseek import DEEPSEEK_V3, v3_from_gguf
from headrace.inference.models.families.family import Family, GgufHeader
from headrace.inference.models.families.latent import LATENT_TENSORS, latent_config_spec
from headrace.inference.models.families.reading import config_router
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

_GROWTH: Final = 0.1
"""`llama_4_scaling_beta` of the released models, which GGUF files do not have."""
_STACKED: Final = "mlp.experts.gate_up_proj"


def _from_config(family: Family, config: Fields) -> ModelSpec:
    moe = config_router(config, scoring="softmax", choice_bias=False)
    return latent_config_spec(family, config, moe=moe, query_rank=1024)


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    fields = header.fields.with_defaults({"attention.temperature_scale": _GROWTH})
    spec = v3_from_gguf(family, replace(header, fields=fields))
    if spec.moe is None:
        return spec
    return replace(spec, moe=replace(spec.moe, group_score="best_two", sum_floor=1e-20))


MISTRAL4: Final = replace(
    DEEPSEEK_V3,
    name="mistral4",
    models="The text part of Mistral 4",
    verified=("transformers", "GGUF twin"),
    model_types=("mistral4",),
    # Source: transformers `Mistral4Config`.
    defaults={
        "kv_lora_rank": 256,
        "qk_nope_head_dim": 64,
        "first_k_dense_replace": 0,
        "n_routed_experts": 128,
        "num_experts_per_tok": 4,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048,
        "max_position_embeddings": 1_048_576,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 128.0,
            "original_max_position_embeddings": 8192,
            "mscale_all_dim": 1.0,
            "mscale": 1.0,
            "llama_4_scaling_beta": _GROWTH,
        },
    },
    refused={"rope_interleave": DEEPSEEK_V3.refused["rope_interleave"]},
    spec_from_config=_from_config,
    gguf_architectures=("mistral4",),
    spec_from_gguf=_from_gguf,
    tensors={
        **LATENT_TENSORS,
        **dict.fromkeys(("expert_gate", "expert_up"), _STACKED),
        "expert_down": "mlp.experts.down_proj",
    },
)
