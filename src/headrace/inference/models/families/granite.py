"""Granite 3 and 4, dense and with experts: multipliers of embeddings, attention scores, residuals and logits."""

from dataclasses import replace
from typing import Final

from headrace.core.errors import UnsupportedModel
from headrace.inference.models.families.family import ATTENTION_BIAS, LLAMA_TENSORS, Family, GgufHeader
from headrace.inference.models.families.reading import (
    config_experts,
    config_spec,
    gguf_experts,
    gguf_spec,
    without_positions,
)
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec, MoeSpec

_SCALES: Final = {
    "attention": ("attention_multiplier", "attention.scale"),
    "embedding": ("embedding_multiplier", "embedding_scale"),
    "residual": ("residual_multiplier", "residual_scale"),
    "logits": ("logits_scaling", "logit_scale"),
}
"""Keys in config.json and in GGUF files; `logit_scale` divides, as in the config."""


def _from_config(family: Family, config: Fields, moe: MoeSpec | None = None) -> ModelSpec:
    scales = {name: config.positive(key, 1.0) for name, (key, _) in _SCALES.items()}
    return with_multipliers(config_spec(family, config, moe=moe), **scales)


def _hybrid_from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a `granitemoehybrid` config without experts or recurrent layers, whose MLP is the shared one."""
    width = config.whole("shared_intermediate_size", 1024)
    kinds = set(config.texts("layer_types") or config.texts("layers_block_type") or ("mamba",))
    if kinds - {"attention", "full_attention"}:
        raise UnsupportedModel(f"{config.source}: layers with a recurrent state are not supported.", key="layer_types")
    others = config.without("layer_types", "layers_block_type")
    spec = _from_config(family, Fields({**others.values, "intermediate_size": width}, config.source))
    has_positions = config.has("position_embedding_type") and config.text("position_embedding_type") == "rope"
    return spec if has_positions else without_positions(spec)


def _experts_from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a `granitemoe` or `granitemoeshared` config."""
    shared_size = config.whole("shared_intermediate_size", 0, minimum=0)
    return _from_config(family, config, config_experts(config, num_experts=8, top_k=2, shared_size=shared_size))


def _from_gguf(family: Family, header: GgufHeader, moe: MoeSpec | None = None) -> ModelSpec:
    others = header.fields.without(*(key for _, key in _SCALES.values()))
    spec = gguf_spec(family, replace(header, fields=others), moe=moe)
    return with_multipliers(spec, **{name: header.fields.positive(key, 1.0) for name, (_, key) in _SCALES.items()})


def with_multipliers(
    spec: ModelSpec, *, attention: float, embedding: float, residual: float, logits: float
) -> ModelSpec:
    """
    Fold the multipliers into parameters that every network has.

    The residual stream is divided by the residual multiplier; norms cancel this except for their epsilon.
    """
    return replace(
        spec,
        attention_scale=attention,
        embedding_scale=embedding / residual,
        norm_eps=spec.norm_eps / residual**2,
        logit_scale=1 / logits,
    )


GRANITE: Final = Family(
    name="granite",
    models="Granite 3, dense",
    verified=("transformers", "GGUF twin"),
    bias_flags=ATTENTION_BIAS,
    spec_from_config=_from_config,
    gguf_architectures=("granite",),
    spec_from_gguf=_from_gguf,
    interleaved_gguf_rope=True,
)
_SHARED_MLP: Final = ("shared_mlp.input_linear.weight", "shared_mlp.output_linear.weight")
"""Names of the fused gate and up, and of down."""
GRANITE_HYBRID: Final = Family(
    name="granite_hybrid",
    models="Granite 4, dense, without recurrent layers",
    verified=("transformers",),
    model_types=("granitemoehybrid",),
    refused={"num_local_experts": (0, "a mixture of experts")},
    bias_flags=ATTENTION_BIAS,
    spec_from_config=_hybrid_from_config,
    tensors={**LLAMA_TENSORS, **dict.fromkeys(("gate", "up"), _SHARED_MLP[0]), "down": _SHARED_MLP[1]},
)
GRANITE_MOE: Final = replace(
    GRANITE,
    name="granite_moe",
    models="Granite 3 MoE, also with a shared expert",
    model_types=("granitemoe", "granitemoeshared"),
    spec_from_config=_experts_from_config,
    gguf_architectures=("granitemoe",),
    spec_from_gguf=lambda family, header: _from_gguf(family, header, gguf_experts(header, renormalize=True)),
    tensors={
        **LLAMA_TENSORS,
        "router": "block_sparse_moe.router.layer.weight",
        **dict.fromkeys(("expert_gate", "expert_up"), "block_sparse_moe.input_linear.weight"),
        "expert_down": "block_sparse_moe.output_linear.weight",
        **dict.fromkeys(("shared_gate", "shared_up"), _SHARED_MLP[0]),
        "shared_down": _SHARED_MLP[1],
    },
)
