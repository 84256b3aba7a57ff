"""Mixtral: Mistral with experts in every layer, of which the two with the best scores share the softmax."""

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from headrace.models.families.family import (
    EXPERT_INDEX,
    LLAMA_TENSORS,
    Family,
    base_config_spec,
    require_activation,
)
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec, MoeSpec

_EXPERT: Final = f"block_sparse_moe.experts.{EXPERT_INDEX}"


def spec_from_config(config: Fields) -> ModelSpec:
    """Read a Mixtral config; unlike Mistral it has no window unless the config names one."""
    require_activation(config, "silu")
    config.refuse("layer_types", "a window on some layers only")
    moe = MoeSpec(
        num_experts=config.whole("num_local_experts", 8),
        top_k=config.whole("num_experts_per_tok", 2),
        expert_size=config.whole("intermediate_size"),
        renormalize=True,
    )
    spec = base_config_spec(config, "mixtral", moe=moe)
    if not config.has("sliding_window"):
        return spec
    return replace(spec, windows=(config.whole("sliding_window"),) * spec.num_layers)


MIXTRAL: Final = Family(
    name="mixtral",
    models="Mixtral",
    verified=("transformers",),
    model_types=("mixtral",),
    spec_from_config=spec_from_config,
    tensors=MappingProxyType(
        {
            **LLAMA_TENSORS,
            "router": "block_sparse_moe.gate.weight",
            "expert_gate": f"{_EXPERT}.w1.weight",
            "expert_up": f"{_EXPERT}.w3.weight",
            "expert_down": f"{_EXPERT}.w2.weight",
        }
    ),
)
