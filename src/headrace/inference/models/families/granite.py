"""
Granite 3 and 4, dense and with experts: multipliers of embeddings, attention scores, residuals and logits.

Granite 4 H has state space models in most layers.
"""

from dataclasses import replace
from typing import Final

from headrace.core.errors import UnsupportedModel
from headrace.inference.models.experts import MoeSpec
from headrace.inference.models.families.family import ATTENTION_BIAS, LLAMA_TENSORS, Family, GgufHeader
from headrace.inference.models.families.mamba import (
    SSD_GGUF_TENSORS,
    mixers_of_kinds,
    read_gguf_ssd,
    read_ssd,
    ssd_tensors,
    with_mixers,
    with_ssd,
)
from headrace.inference.models.families.reading import (
    MAX_LAYERS,
    config_experts,
    config_spec,
    gguf_attention_layers,
    gguf_experts,
    gguf_spec,
    without_positions,
)
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

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
    """Read a `granitemoehybrid` config; without experts its MLP is the shared one."""
    shared_size = config.whole("shared_intermediate_size", 1024)
    num_layers = config.whole("num_hidden_layers")
    kinds = config.texts("layer_types") or config.texts("layers_block_type") or ("mamba",) * min(num_layers, MAX_LAYERS)
    others = config.without("layer_types", "layers_block_type")
    if config.whole("num_local_experts", 8, minimum=0):
        moe = config_experts(config, num_experts=8, top_k=2, shared_size=shared_size)
        spec = _from_config(family, others, moe)
    else:
        spec = _from_config(family, Fields({**others.values, "intermediate_size": shared_size}, config.source))
    has_positions = config.has("position_embedding_type") and config.text("position_embedding_type") == "rope"
    spec = spec if has_positions else without_positions(spec)
    mixers = mixers_of_kinds(kinds, config.source)
    if "ssd" not in mixers:
        return spec
    return with_mixers(spec, read_ssd(config, norm_eps=config.positive("rms_norm_eps", 1e-6)), mixers, config.source)


def _experts_from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a `granitemoe` or `granitemoeshared` config."""
    shared_size = config.whole("shared_intermediate_size", 0, minimum=0)
    return _from_config(family, config, config_experts(config, num_experts=8, top_k=2, shared_size=shared_size))


def _from_gguf(family: Family, header: GgufHeader, moe: MoeSpec | None = None) -> ModelSpec:
    others = header.fields.without(*(key for _, key in _SCALES.values()))
    spec = gguf_spec(family, replace(header, fields=others), moe=moe)
    scales = {name: header.fields.positive(key, 1.0) for name, (_, key) in _SCALES.items()}
    if not header.fields.has(_SCALES["attention"][1]):
        scales["attention"] = 0.0
    return with_multipliers(spec, **scales)


def _hybrid_from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata; this architecture also covers Bamba, whose partial rotary embedding it cannot describe."""
    header, attends = gguf_attention_layers(header)
    has_experts = header.fields.whole("expert_count", 0, minimum=0) > 0
    fields = header.fields if has_experts else header.fields.without("expert_count", "expert_used_count")
    header = replace(header, fields=fields)
    spec = _from_gguf(family, header, gguf_experts(header, renormalize=True) if has_experts else None)
    if not fields.flag("rope.scaling.finetuned", default=True):
        spec = without_positions(spec)
    elif any(rope.rotary_dim not in {0, spec.head_dim} for rope in spec.ropes):
        raise UnsupportedModel(
            f"{fields.source}: Bamba in a GGUF file is not supported, since converters permute its heads as if they "
            "turned whole. Use its Hugging Face folder.",
            key="rope.dimension_count",
        )
    if all(attends):
        return spec
    ssd = read_gguf_ssd(header, norm_eps=fields.positive("attention.layer_norm_rms_epsilon"))
    return with_ssd(spec, ssd, [not attention for attention in attends], fields.source)


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
GRANITE_HYBRID: Final = replace(
    GRANITE_MOE,
    name="granite_hybrid",
    models="Granite 4, dense, with experts, and with state space models (H)",
    verified=("transformers", "GGUF twin"),
    model_types=("granitemoehybrid",),
    spec_from_config=_hybrid_from_config,
    gguf_architectures=("granitehybrid",),
    spec_from_gguf=_hybrid_from_gguf,
    gguf_tensors=SSD_GGUF_TENSORS,
    tensors={
        **GRANITE_MOE.tensors,
        **ssd_tensors("mamba"),
        **dict.fromkeys(("gate", "up"), _SHARED_MLP[0]),
        "down": _SHARED_MLP[1],
    },
)
