"""AFMoE (Trinity): norms on both sides, gates after attention, and experts that are chosen by sigmoids."""

import math
from dataclasses import replace
from typing import Final

from headrace.inference.models.families.family import (
    ATTENTION_BIAS,
    DEEPSEEK_EXPERT_TENSORS,
    GGUF_TENSORS,
    Family,
    GgufHeader,
)
from headrace.inference.models.families.reading import (
    config_router,
    config_spec,
    gguf_experts,
    gguf_spec,
    layer_windows,
    listed_slides,
    sliding_layers,
    without_far_positions,
)
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

_PATTERN: Final = 4
"""Every fourth layer has no window. Source: llama.cpp `afmoe.cpp`."""


def _from_config(family: Family, config: Fields) -> ModelSpec:
    moe = config_router(config, renormalize=True, num_groups=1, top_groups=1)
    spec = config_spec(family, config, moe=moe)
    slides = sliding_layers(spec.num_layers, config.whole("global_attn_every_n_layers"))
    spec = without_far_positions(layer_windows(config, spec, config.whole("sliding_window"), slides))
    return _scaled(spec) if config.flag("mup_enabled", default=False) else spec


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    moe = gguf_experts(header, renormalize=True, scoring="sigmoid", sum_floor=1e-20)
    spec = gguf_spec(family, header, moe=moe)
    window = header.fields.whole("attention.sliding_window", 0, minimum=0)
    slides = listed_slides(header.fields, spec.num_layers) or sliding_layers(spec.num_layers, _PATTERN)
    spec = replace(spec, windows=tuple(window * slide for slide in slides) if window else ())
    return _scaled(without_far_positions(spec))


def _scaled(spec: ModelSpec) -> ModelSpec:
    return replace(spec, embedding_scale=math.sqrt(spec.hidden_size))


AFMOE: Final = Family(
    name="afmoe",
    models="Trinity (Nano, Mini, Large)",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `AfmoeConfig`.
    defaults={
        "vocab_size": 200_192,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "head_dim": 128,
        "max_position_embeddings": 16_384,
        "rms_norm_eps": 1e-5,
        "sliding_window": 1024,
        "global_attn_every_n_layers": _PATTERN,
        "num_experts": 64,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1408,
        "num_shared_experts": 2,
        "num_dense_layers": 1,
    },
    keys={
        "n_routed_experts": "num_experts",
        "n_shared_experts": "num_shared_experts",
        "routed_scaling_factor": "route_scale",
        "first_k_dense_replace": "num_dense_layers",
    },
    refused={
        "score_func": ("sigmoid", "another score of experts"),
        "route_norm": (True, "factors of experts without a common sum"),
    },
    bias_flags=ATTENTION_BIAS,
    parts={"qk_norm": "head", "norms": "both", "attention_gate": "element"},
    spec_from_config=_from_config,
    gguf_architectures=("afmoe",),
    gguf_biases=("qkv_bias", "o_bias"),
    spec_from_gguf=_from_gguf,
    tensors={
        **DEEPSEEK_EXPERT_TENSORS,
        "attn_gate": "self_attn.gate_proj.weight",
        "post_attn_norm": "post_attention_layernorm.weight",
        "mlp_norm": "pre_mlp_layernorm.weight",
        "post_mlp_norm": "post_mlp_layernorm.weight",
        "router": "mlp.router.gate.weight",
        "choice_bias": "mlp.expert_bias",
    },
    gguf_tensors={**GGUF_TENSORS, "attn_gate": "attn_gate.weight"},
)
