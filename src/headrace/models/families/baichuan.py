"""Baichuan 7B: Llama with q, k and v fused."""

from typing import Final

from headrace.core.errors import UnsupportedModel
from headrace.models.families.family import (
    LLAMA_TENSORS,
    Family,
    GgufHeader,
    base_config_spec,
    base_gguf_spec,
    require_activation,
)
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

LAYERS_OF_7B: Final = 32
"""Larger networks have alibi in place of a rotary embedding. Source: llama.cpp."""
VOCAB_SIZE_OF_2: Final = 125_696


def spec_from_config(config: Fields) -> ModelSpec:
    """Read a `baichuan` config."""
    require_activation(config, "silu")
    return _checked(base_config_spec(config, "baichuan"), config.source)


def spec_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata."""
    return _checked(base_gguf_spec(header, "baichuan"), header.fields.source)


def _checked(spec: ModelSpec, source: str) -> ModelSpec:
    """Refuse the networks of the same name that differ; nothing in their files says so."""
    if spec.num_layers > LAYERS_OF_7B:
        raise UnsupportedModel(f"{source}: positions as biases of the scores (alibi, Baichuan 13B) are not supported.")
    if spec.vocab_size == VOCAB_SIZE_OF_2:
        raise UnsupportedModel(f"{source}: an LM head with normalized rows (Baichuan 2) is not supported.")
    return spec


BAICHUAN: Final = Family(
    name="baichuan",
    models="Baichuan 7B (not Baichuan 2)",
    verified=("layout", "GGUF twin"),
    model_types=("baichuan",),
    spec_from_config=spec_from_config,
    gguf_architectures=("baichuan",),
    spec_from_gguf=spec_from_gguf,
    tensors={**LLAMA_TENSORS, **dict.fromkeys(("q", "k", "v"), "self_attn.W_pack.weight")},
    interleaved_gguf_rope=True,
)
