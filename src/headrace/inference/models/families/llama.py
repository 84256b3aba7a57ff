"""Llama 2 and 3, SmolLM 1 and 2, and everything else that calls itself `llama`."""

from dataclasses import replace
from typing import Final

from headrace.inference.models.families.family import ATTENTION_BIAS, Family, GgufHeader
from headrace.inference.models.families.reading import gguf_experts, gguf_spec
from headrace.inference.models.spec import ModelSpec


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata; this architecture also covers Mixtral, and Mistral without a sliding window."""
    if header.fields.whole("expert_count", 0, minimum=0) == 0:
        return gguf_spec(family, header)
    return replace(gguf_spec(family, header, moe=gguf_experts(header, renormalize=True)), family="mixtral")


LLAMA: Final = Family(
    name="llama",
    models=(
        "Llama 2 and 3, SmolLM 1 and 2, Yi, DeepSeek LLM, Falcon 3 and others of this architecture; "
        "in GGUF files also Mistral, Mixtral and InternLM 3"
    ),
    verified=("transformers", "GGUF twin", "real model"),
    bias_flags={**ATTENTION_BIAS, "mlp_bias": "mlp_bias"},
    gguf_architectures=("llama",),
    gguf_biases=("qkv_bias", "o_bias"),
    spec_from_gguf=_from_gguf,
    interleaved_gguf_rope=True,
)
