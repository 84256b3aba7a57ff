"""OLMoE: experts in every layer, norms over all heads of q and k at once, and optionally clipped q, k and v."""

from dataclasses import replace
from typing import Final

from headrace.inference.models.experts import MoeSpec
from headrace.inference.models.families.family import ATTENTION_BIAS, QWEN_EXPERT_TENSORS, Family, GgufHeader
from headrace.inference.models.families.reading import config_spec, gguf_experts, gguf_spec
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec


def _from_config(family: Family, config: Fields) -> ModelSpec:
    """Read an `olmoe` config; `intermediate_size` is the width of an expert."""
    moe = MoeSpec(
        num_experts=config.whole("num_experts", 64),
        top_k=config.whole("num_experts_per_tok", 8),
        expert_size=config.whole("intermediate_size"),
        renormalize=config.flag("norm_topk_prob", default=False),
    )
    return _clipped(config_spec(family, config.without("clip_qkv"), moe=moe), config, "clip_qkv")


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    spec = gguf_spec(family, header, moe=gguf_experts(header, renormalize=False))
    return _clipped(spec, header.fields, "attention.clamp_kqv")


def _clipped(spec: ModelSpec, fields: Fields, key: str) -> ModelSpec:
    return replace(spec, qkv_clip=fields.positive(key) if fields.has(key) else 0.0)


OLMOE: Final = Family(
    name="olmoe",
    models="OLMoE",
    verified=("transformers", "GGUF twin"),
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},  # source: transformers `OlmoeConfig`
    bias_flags=ATTENTION_BIAS,
    parts={"qk_norm": "full"},
    spec_from_config=_from_config,
    gguf_architectures=("olmoe",),
    spec_from_gguf=_from_gguf,
    tensors=QWEN_EXPERT_TENSORS,
)
