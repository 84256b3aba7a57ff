"""
Gemma 1, the text part of Gemma 3, and EmbeddingGemma.

All scale the embeddings and add 1 to norm weights. Gemma 3 has norms around both halves of a layer, and five local
layers to one global one. EmbeddingGemma is a Gemma 3 whose tokens attend to those before and after them.
"""

import math
from dataclasses import replace
from typing import Final

from headrace.inference.models.families.family import POST_NORM_TENSORS, Family, GgufHeader
from headrace.inference.models.families.reading import (
    config_spec,
    gguf_spec,
    layer_windows,
    pattern_windows,
    sliding_layers,
    with_local_rope,
)
from headrace.inference.models.families.rope_config import rope_from_scaling
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec, RopeSpec

GLOBAL_THETA: Final = 1_000_000.0
LOCAL_THETA: Final = 10_000.0
PATTERN: Final = 6
"""Every sixth layer attends to the whole context."""
LAYERS_OF_27B: Final = 62
"""The 27B model scales its scores by hidden size / heads, all others by the head size. Source: llama.cpp gemma3."""


def _gemma_from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a `gemma` config; its `gelu` means the tanh approximation."""
    config.refuse("hidden_act", "the activation", unless=("gelu", "gelu_pytorch_tanh"))
    return _scaled(config_spec(family, config))


def _scaled(spec: ModelSpec) -> ModelSpec:
    return replace(spec, embedding_scale=math.sqrt(spec.hidden_size))


def _gemma3_from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a `gemma3_text` config in the format of transformers 4 or 5."""
    max_positions = config.whole("max_position_embeddings", minimum=2)
    is_causal = not config.flag("use_bidirectional_attention", default=False)
    rope_keys = [key for key in config.values if key.startswith("rope_")]
    spec = replace(
        _scaled(config_spec(family, config.without("use_bidirectional_attention", *rope_keys))),
        is_causal=is_causal,
        ropes=tuple(_rope(config, layer_type, max_positions) for layer_type in ("full_attention", "sliding_attention")),
        attention_scale=config.positive("query_pre_attn_scalar") ** -0.5,
    )
    pattern = config.whole("sliding_window_pattern", PATTERN)
    window = config.whole("sliding_window")
    window = window if is_causal else window // 2 + 1
    return with_local_rope(layer_windows(config, spec, window, sliding_layers(spec.num_layers, pattern)))


def _gemma3_from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata, which omits the layer pattern and the local theta: they are the same for all sizes."""
    spec = _scaled(gguf_spec(family, header))
    window = header.fields.whole("attention.sliding_window")
    local_theta = header.fields.positive("rope.freq_base_swa", LOCAL_THETA)
    scalar = spec.hidden_size // spec.num_heads if spec.num_layers == LAYERS_OF_27B else spec.head_dim
    spec = replace(spec, ropes=(*spec.ropes, RopeSpec(theta=local_theta)), attention_scale=scalar**-0.5)
    return with_local_rope(pattern_windows(spec, window, PATTERN))


def _rope(config: Fields, layer_type: str, max_positions: int) -> RopeSpec:
    is_global = layer_type == "full_attention"
    theta = GLOBAL_THETA if is_global else LOCAL_THETA
    scaling = config.sub("rope_parameters").sub(layer_type)
    if not scaling.values:
        theta = config.positive("rope_theta" if is_global else "rope_local_base_freq", theta)
        scaling = config.sub("rope_scaling") if is_global else Fields({}, config.source)
    values = {"rope_theta": theta, **scaling.values}
    return rope_from_scaling(Fields(values, scaling.source), config.whole("head_dim"), max_positions)


GEMMA: Final = Family(
    name="gemma",
    models="Gemma 1",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `GemmaConfig`.
    defaults={
        "head_dim": 256,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    refused={"attention_bias": (False, "biases in attention")},
    activation="gelu_tanh",
    activation_key="hidden_activation",
    spec_from_config=_gemma_from_config,
    gguf_architectures=("gemma",),
    spec_from_gguf=lambda family, header: _scaled(gguf_spec(family, header)),
    norm_offset=1.0,
)
GEMMA3: Final = replace(
    GEMMA,
    name="gemma3",
    models="Gemma 3, also the text part of checkpoints with images; EmbeddingGemma",
    verified=("transformers", "real model"),
    model_types=("gemma3_text",),
    # Source: transformers `Gemma3TextConfig`.
    defaults={
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
    },
    parts={"qk_norm": "head", "norms": "both"},
    spec_from_config=_gemma3_from_config,
    gguf_architectures=("gemma3",),
    spec_from_gguf=_gemma3_from_gguf,
    tensors=POST_NORM_TENSORS,
)
