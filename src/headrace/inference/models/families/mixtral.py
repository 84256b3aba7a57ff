"""Mixtral: Mistral with experts in every layer, of which the two with the best scores share the softmax."""

from typing import Final

from headrace.inference.models.families.family import EXPERT_INDEX, LLAMA_TENSORS, Family
from headrace.inference.models.families.reading import config_experts, config_spec, uniform_window
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

_EXPERT: Final = f"block_sparse_moe.experts.{EXPERT_INDEX}"
MIXTRAL_TENSORS: Final = {
    **LLAMA_TENSORS,
    "router": "block_sparse_moe.gate.weight",
    "expert_gate": f"{_EXPERT}.w1.weight",
    "expert_up": f"{_EXPERT}.w3.weight",
    "expert_down": f"{_EXPERT}.w2.weight",
}


def _from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a Mixtral config; unlike Mistral it has no window unless the config names one."""
    spec = config_spec(family, config, moe=config_experts(config, num_experts=8, top_k=2))
    return uniform_window(spec, config.whole("sliding_window") if config.has("sliding_window") else 0)


MIXTRAL: Final = Family(
    name="mixtral",
    models="Mixtral",
    verified=("transformers",),
    refused={"layer_types": (None, "a window on some layers only")},
    spec_from_config=_from_config,
    tensors=MIXTRAL_TENSORS,
)
