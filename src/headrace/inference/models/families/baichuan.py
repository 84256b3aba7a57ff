"""Baichuan 7B: Llama with q, k and v fused."""

from typing import Final

from headrace.core.errors import UnsupportedModel
from headrace.inference.models.families.family import LLAMA_TENSORS, QKV, Family
from headrace.inference.models.families.reading import config_spec, gguf_spec
from headrace.inference.models.spec import ModelSpec

LAYERS_OF_7B: Final = 32
"""Larger networks have alibi in place of a rotary embedding. Source: llama.cpp."""
VOCAB_SIZE_OF_2: Final = 125_696


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
    spec_from_config=lambda family, config: _checked(config_spec(family, config), config.source),
    gguf_architectures=("baichuan",),
    spec_from_gguf=lambda family, header: _checked(gguf_spec(family, header), header.fields.source),
    tensors={**LLAMA_TENSORS, **dict.fromkeys(QKV, "self_attn.W_pack.weight")},
    interleaved_gguf_rope=True,
)
