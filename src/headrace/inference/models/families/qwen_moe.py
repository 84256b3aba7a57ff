"""Qwen 2 and Qwen 3 with experts; Qwen 2 also has a shared expert that every token passes through."""

from dataclasses import replace
from typing import Final

from headrace.core.errors import BrokenModel
from headrace.inference.models.experts import MoeSpec
from headrace.inference.models.families import qwen
from headrace.inference.models.families.family import ATTENTION_BIAS, QWEN_EXPERT_TENSORS, Family
from headrace.inference.models.families.reading import MAX_LAYERS, gguf_experts, gguf_spec
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec


def _qwen2_from_config(family: Family, config: Fields) -> ModelSpec:
    shared_size = config.whole("shared_expert_intermediate_size", 5632)
    moe = sparse_experts(config, num_experts=60, top_k=4, expert_size=1408)
    return qwen.from_config(family, config, replace(moe, shared_size=shared_size, has_shared_router=True))


def sparse_experts(config: Fields, *, num_experts: int, top_k: int, expert_size: int) -> MoeSpec:
    """Read the experts with the defaults of a family; every `decoder_sparse_step`-th layer has some."""
    step = config.whole("decoder_sparse_step", 1)
    dense = config.values.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise BrokenModel(f"{config.source}: mlp_only_layers is {dense!r:.200}; expected a list of layers.")
    layers = range(min(config.whole("num_hidden_layers"), MAX_LAYERS))
    return MoeSpec(
        num_experts=config.whole("num_experts", config.whole("num_local_experts", num_experts)),
        top_k=config.whole("num_experts_per_tok", top_k),
        expert_size=config.whole("moe_intermediate_size", expert_size),
        layers=tuple(layer not in dense and (layer + 1) % step == 0 for layer in layers),
        renormalize=config.flag("norm_topk_prob", default=False),
    )


QWEN2_MOE: Final = Family(
    name="qwen2_moe",
    models="Qwen 1.5 and 2 MoE, with a shared expert",
    verified=("transformers",),
    defaults={"qkv_bias": True},
    bias_flags={"qkv_bias": "qkv_bias"},
    spec_from_config=_qwen2_from_config,
    gguf_architectures=("qwen2moe",),
    gguf_biases=("qkv_bias",),
    spec_from_gguf=lambda family, header: gguf_spec(family, header, moe=gguf_experts(header, renormalize=False)),
    tensors=QWEN_EXPERT_TENSORS,
)
QWEN3_MOE: Final = Family(
    name="qwen3_moe",
    models="Qwen 3 MoE",
    verified=("transformers",),
    bias_flags=ATTENTION_BIAS,
    parts={"qk_norm": "head"},
    spec_from_config=lambda family, config: qwen.from_config(
        family, config, sparse_experts(config, num_experts=128, top_k=8, expert_size=768)
    ),
    gguf_architectures=("qwen3moe",),
    spec_from_gguf=lambda family, header: gguf_spec(family, header, moe=gguf_experts(header, renormalize=True)),
    tensors=QWEN_EXPERT_TENSORS,
)
