"""MiniCPM 3: latent attention with a dense MLP, and the multipliers of MiniCPM."""

from typing import Final

from headrace.inference.models.families.family import Family, GgufHeader
from headrace.inference.models.families.granite import with_multipliers
from headrace.inference.models.families.latent import (
    LATENT_TENSORS,
    latent_config_spec,
    latent_gguf_spec,
    without_query_latent,
)
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

_EMBEDDING: Final = 12.0
_DEPTH: Final = 1.4
_BASE: Final = 256.0
"""Multipliers of MiniCPM3-4B, which GGUF files do not have: llama.cpp takes these."""


def _from_config(family: Family, config: Fields) -> ModelSpec:
    value_dim = config.whole("hidden_size") // config.whole("num_attention_heads")
    spec = latent_config_spec(family, config.with_defaults({"v_head_dim": value_dim}), query_rank=768)
    return _multiplied(
        spec,
        config.positive("scale_emb", _EMBEDDING),
        config.positive("scale_depth", _DEPTH),
        config.positive("dim_model_base", _BASE),
    )


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    return _multiplied(latent_gguf_spec(family, header), _EMBEDDING, _DEPTH, _BASE)


def _multiplied(spec: ModelSpec, embedding: float, depth: float, base: float) -> ModelSpec:
    return with_multipliers(
        spec,
        attention=spec.attention_scale,
        embedding=embedding,
        residual=depth / spec.num_layers**0.5,
        logits=spec.hidden_size / base,
    )


MINICPM3: Final = Family(
    name="minicpm3",
    models="MiniCPM 3",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `MiniCPM3Config`.
    defaults={
        "kv_lora_rank": 256,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": True,
    },
    refused={"attention_bias": (False, "biases in attention")},
    spec_from_config=_from_config,
    gguf_architectures=("minicpm3",),
    spec_from_gguf=_from_gguf,
    tensors=LATENT_TENSORS,
    variant=without_query_latent,
)
