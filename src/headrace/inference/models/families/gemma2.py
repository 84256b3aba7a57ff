"""Gemma 2: norms around both halves of a layer, windows on even layers, softcaps of scores and logits; VaultGemma."""

import math
from dataclasses import replace
from typing import Final

from headrace.inference.models.families.family import LLAMA_TENSORS, Family, GgufHeader
from headrace.inference.models.families.gemma import GEMMA3
from headrace.inference.models.families.reading import (
    config_spec,
    gguf_spec,
    is_null,
    layer_windows,
    pattern_windows,
    sliding_layers,
)
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

SOFTCAPS: Final = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
"""Softcaps of scores and of logits in configs without the key; null means none."""
LAYERS_OF_27B: Final = 46
"""The 27B model scales its scores by hidden size / heads, all others by the head size. Source: llama.cpp gemma2."""


def _from_config(family: Family, config: Fields) -> ModelSpec:
    spec = config_spec(family, config.without(*SOFTCAPS))
    caps = [0.0 if is_null(config, key) else config.positive(key, default) for key, default in SOFTCAPS.items()]
    spec = _scaled(spec, *caps, scalar=config.positive("query_pre_attn_scalar"))
    return layer_windows(config, spec, config.whole("sliding_window"), sliding_layers(spec.num_layers, 2))


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata, which omits the layers with a window and the scale of the scores."""
    fields = header.fields
    spec = gguf_spec(family, replace(header, fields=fields.without(*SOFTCAPS)))
    caps = [fields.number(key, default) for key, default in SOFTCAPS.items()]
    scalar = spec.hidden_size // spec.num_heads if spec.num_layers == LAYERS_OF_27B else spec.head_dim
    spec = _scaled(spec, *caps, scalar=scalar)
    return pattern_windows(spec, fields.whole("attention.sliding_window", 4096), 2)


def _scaled(spec: ModelSpec, attention_cap: float, logit_cap: float, *, scalar: float) -> ModelSpec:
    return replace(
        spec,
        embedding_scale=math.sqrt(spec.hidden_size),
        attention_scale=scalar**-0.5,
        attention_softcap=attention_cap,
        logit_softcap=logit_cap,
    )


GEMMA2: Final = replace(
    GEMMA3,
    name="gemma2",
    models="Gemma 2",
    verified=("transformers", "GGUF twin"),
    model_types=("gemma2",),
    # Source: transformers `Gemma2Config` and `VaultGemmaConfig`.
    defaults={**GEMMA3.defaults, "vocab_size": 256_000, "max_position_embeddings": 8192},
    parts={"norms": "both"},
    spec_from_config=_from_config,
    gguf_architectures=("gemma2",),
    spec_from_gguf=_from_gguf,
)
VAULTGEMMA: Final = replace(
    GEMMA2,
    name="vaultgemma",
    models="VaultGemma",
    verified=("transformers",),
    model_types=("vaultgemma",),
    parts={},
    gguf_architectures=(),
    tensors={**LLAMA_TENSORS, "mlp_norm": "pre_feedforward_layernorm.weight"},
)
