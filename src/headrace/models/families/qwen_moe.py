"""Qwen 2 and Qwen 3 with experts; Qwen 2 also has a shared expert that every token passes through."""

from dataclasses import replace
from typing import Final

from headrace.core.errors import BrokenModel
from headrace.models.families.family import (
    MAX_LAYERS,
    QWEN_EXPERT_TENSORS,
    Family,
    GgufHeader,
    base_config_spec,
    base_gguf_spec,
    gguf_experts,
    require_activation,
)
from headrace.models.families.qwen import with_windows
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec, MoeSpec


def qwen2_moe_from_config(config: Fields) -> ModelSpec:
    """Read a Qwen 2 MoE config."""
    require_activation(config, "silu")
    moe = replace(
        _experts(config, num_experts=60, top_k=4, expert_size=1408),
        shared_size=config.whole("shared_expert_intermediate_size", 5632),
        has_shared_router=True,
    )
    spec = base_config_spec(config, "qwen2_moe", moe=moe)
    return with_windows(config, replace(spec, qkv_bias=config.flag("qkv_bias", default=True)))


def qwen3_moe_from_config(config: Fields) -> ModelSpec:
    """Read a Qwen 3 MoE config."""
    require_activation(config, "silu")
    moe = _experts(config, num_experts=128, top_k=8, expert_size=768)
    spec = base_config_spec(config, "qwen3_moe", moe=moe)
    biased = config.flag("attention_bias", default=False)
    return with_windows(config, replace(spec, qk_norm="head", qkv_bias=biased, o_bias=biased))


def _experts(config: Fields, *, num_experts: int, top_k: int, expert_size: int) -> MoeSpec:
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


def qwen2_moe_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read the GGUF metadata of Qwen 2 MoE."""
    return replace(base_gguf_spec(header, "qwen2_moe", moe=gguf_experts(header, renormalize=False)), qkv_bias=True)


def qwen3_moe_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read the GGUF metadata of Qwen 3 MoE."""
    return replace(base_gguf_spec(header, "qwen3_moe", moe=gguf_experts(header, renormalize=True)), qk_norm="head")


QWEN2_MOE: Final = Family(
    name="qwen2_moe",
    models="Qwen 1.5 and 2 MoE, with a shared expert",
    verified=("transformers",),
    model_types=("qwen2_moe",),
    spec_from_config=qwen2_moe_from_config,
    gguf_architectures=("qwen2moe",),
    spec_from_gguf=qwen2_moe_from_gguf,
    tensors=QWEN_EXPERT_TENSORS,
)
QWEN3_MOE: Final = Family(
    name="qwen3_moe",
    models="Qwen 3 MoE",
    verified=("transformers",),
    model_types=("qwen3_moe",),
    spec_from_config=qwen3_moe_from_config,
    gguf_architectures=("qwen3moe",),
    spec_from_gguf=qwen3_moe_from_gguf,
    tensors=QWEN_EXPERT_TENSORS,
)
