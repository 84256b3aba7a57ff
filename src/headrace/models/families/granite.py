"""Granite 3 and 4, dense and with experts: multipliers of embeddings, attention scores, residuals and logits."""

from dataclasses import replace
from typing import Final

from headrace.core.errors import UnsupportedModel
from headrace.models.families.family import (
    LLAMA_TENSORS,
    Family,
    GgufHeader,
    base_config_spec,
    base_gguf_spec,
    gguf_experts,
    require_activation,
)
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec, MoeSpec

_GGUF_SCALES: Final = ("attention.scale", "embedding_scale", "residual_scale", "logit_scale")


def spec_from_config(config: Fields) -> ModelSpec:
    """Read a `granite` config."""
    return _read(config, "granite")


def hybrid_from_config(config: Fields) -> ModelSpec:
    """Read a `granitemoehybrid` config without experts or recurrent layers, whose MLP is the shared one."""
    config.refuse("num_local_experts", "a mixture of experts", unless=(0,))
    width = config.whole("shared_intermediate_size", 1024)
    kinds = set(config.texts("layer_types") or config.texts("layers_block_type") or ("mamba",))
    if kinds - {"attention", "full_attention"}:
        raise UnsupportedModel(f"{config.source}: layers with a recurrent state are not supported.", key="layer_types")
    others = {key: value for key, value in config.values.items() if key not in {"layer_types", "layers_block_type"}}
    spec = _read(Fields({**others, "intermediate_size": width}, config.source), "granite_hybrid")
    has_positions = config.has("position_embedding_type") and config.text("position_embedding_type") == "rope"
    return spec if has_positions else replace(spec, rope_of_layer=(-1,) * spec.num_layers)


def experts_from_config(config: Fields) -> ModelSpec:
    """Read a `granitemoe` or `granitemoeshared` config."""
    moe = MoeSpec(
        num_experts=config.whole("num_local_experts", 8),
        top_k=config.whole("num_experts_per_tok", 2),
        expert_size=config.whole("intermediate_size"),
        renormalize=True,
        shared_size=config.whole("shared_intermediate_size", 0, minimum=0),
    )
    return _read(config, "granite_moe", moe)


def _read(config: Fields, family: str, moe: MoeSpec | None = None) -> ModelSpec:
    require_activation(config, "silu")
    spec = base_config_spec(config, family, moe=moe)
    biased = config.flag("attention_bias", default=False)
    return with_multipliers(
        replace(spec, qkv_bias=biased, o_bias=biased),
        attention=config.positive("attention_multiplier", 1.0),
        embedding=config.positive("embedding_multiplier", 1.0),
        residual=config.positive("residual_multiplier", 1.0),
        logits=config.positive("logits_scaling", 1.0),
    )


def spec_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata; its `logit_scale` divides, as in the config."""
    return _read_gguf(header, "granite")


def experts_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read the GGUF metadata of a mixture of experts."""
    return _read_gguf(header, "granite_moe", gguf_experts(header, renormalize=True))


def _read_gguf(header: GgufHeader, family: str, moe: MoeSpec | None = None) -> ModelSpec:
    others, scales = header.without(_GGUF_SCALES)
    spec = base_gguf_spec(others, family, moe=moe)
    attention, embedding, residual, logits = (scales.positive(key, 1.0) for key in _GGUF_SCALES)
    return with_multipliers(spec, attention=attention, embedding=embedding, residual=residual, logits=logits)


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
    model_types=("granite",),
    spec_from_config=spec_from_config,
    gguf_architectures=("granite",),
    spec_from_gguf=spec_from_gguf,
    interleaved_gguf_rope=True,
)
_SHARED_MLP: Final = ("shared_mlp.input_linear.weight", "shared_mlp.output_linear.weight")
"""Names of the fused gate and up, and of down."""
GRANITE_HYBRID: Final = Family(
    name="granite_hybrid",
    models="Granite 4, dense, without recurrent layers",
    verified=("transformers",),
    model_types=("granitemoehybrid",),
    spec_from_config=hybrid_from_config,
    tensors={**LLAMA_TENSORS, **dict.fromkeys(("gate", "up"), _SHARED_MLP[0]), "down": _SHARED_MLP[1]},
)
GRANITE_MOE: Final = Family(
    name="granite_moe",
    models="Granite 3 MoE, also with a shared expert",
    verified=("transformers", "GGUF twin"),
    model_types=("granitemoe", "granitemoeshared"),
    spec_from_config=experts_from_config,
    gguf_architectures=("granitemoe",),
    spec_from_gguf=experts_from_gguf,
    tensors={
        **LLAMA_TENSORS,
        "router": "block_sparse_moe.router.layer.weight",
        **dict.fromkeys(("expert_gate", "expert_up"), "block_sparse_moe.input_linear.weight"),
        "expert_down": "block_sparse_moe.output_linear.weight",
        **dict.fromkeys(("shared_gate", "shared_up"), _SHARED_MLP[0]),
        "shared_down": _SHARED_MLP[1],
    },
    interleaved_gguf_rope=True,
)
