"""Gemma 2: norms around both halves of a layer, windows on even layers, softcaps of scores and logits; VaultGemma."""

import math
from dataclasses import replace
from typing import Final

from headrace.models.families.family import (
    LLAMA_TENSORS,
    POST_NORM_TENSORS,
    Family,
    GgufHeader,
    base_config_spec,
    base_gguf_spec,
    layer_windows,
    require_activation,
)
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

DEFAULTS: Final = {
    "vocab_size": 256_000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
"""Source: transformers `Gemma2Config` and `VaultGemmaConfig`."""
SOFTCAPS: Final = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
"""Softcaps of scores and of logits in configs without the key; null means none."""
LAYERS_OF_27B: Final = 46
"""The 27B model scales its scores by hidden size / heads, all others by the head size. Source: llama.cpp gemma2."""


def gemma2_from_config(config: Fields) -> ModelSpec:
    """Read a `gemma2` config."""
    return replace(_read(config, "gemma2"), norms="both")


def vaultgemma_from_config(config: Fields) -> ModelSpec:
    """Read a `vaultgemma` config, whose layers have norms before their halves only."""
    return _read(config, "vaultgemma")


def gemma2_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata, which omits the layers with a window and the scale of the scores."""
    fields = header.fields
    spec = base_gguf_spec(replace(header, fields=fields.without(*SOFTCAPS)), "gemma2")
    attention_cap, logit_cap = (fields.number(key, default) for key, default in SOFTCAPS.items())
    window = fields.whole("attention.sliding_window", 4096)
    scalar = spec.hidden_size // spec.num_heads if spec.num_layers == LAYERS_OF_27B else spec.head_dim
    return replace(
        _scaled(spec, attention_cap, logit_cap),
        norms="both",
        windows=tuple(window if sliding else 0 for sliding in _sliding(spec.num_layers)),
        attention_scale=scalar**-0.5,
    )


def _read(config: Fields, family: str) -> ModelSpec:
    config = config.with_defaults(DEFAULTS)
    require_activation(config, "gelu_tanh", key="hidden_activation")
    config.refuse("attention_bias", "biases in attention", unless=(False,))
    spec = base_config_spec(config.without(*SOFTCAPS), family)
    spec = _scaled(spec, *(_softcap(config, key, default) for key, default in SOFTCAPS.items()))
    spec = replace(spec, attention_scale=config.positive("query_pre_attn_scalar") ** -0.5)
    return layer_windows(config, spec, config.whole("sliding_window"), _sliding(spec.num_layers))


def _softcap(config: Fields, key: str, default: float) -> float:
    is_null = key in config.values and not config.has(key)
    return 0.0 if is_null else config.positive(key, default)


def _scaled(spec: ModelSpec, attention_cap: float, logit_cap: float) -> ModelSpec:
    return replace(
        spec,
        activation="gelu_tanh",
        embedding_scale=math.sqrt(spec.hidden_size),
        attention_softcap=attention_cap,
        logit_softcap=logit_cap,
    )


def _sliding(num_layers: int) -> tuple[bool, ...]:
    return tuple(layer % 2 == 0 for layer in range(num_layers))


GEMMA2: Final = Family(
    name="gemma2",
    models="Gemma 2",
    verified=("transformers", "GGUF twin"),
    model_types=("gemma2",),
    spec_from_config=gemma2_from_config,
    gguf_architectures=("gemma2",),
    spec_from_gguf=gemma2_from_gguf,
    tensors=POST_NORM_TENSORS,
    norm_offset=1.0,
)
VAULTGEMMA: Final = Family(
    name="vaultgemma",
    models="VaultGemma",
    verified=("transformers",),
    model_types=("vaultgemma",),
    spec_from_config=vaultgemma_from_config,
    tensors={**LLAMA_TENSORS, "mlp_norm": "pre_feedforward_layernorm.weight"},
    norm_offset=1.0,
)
