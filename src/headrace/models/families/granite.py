"""Granite 3 (dense): Llama with multipliers of embeddings, attention scores, residuals and logits."""

from dataclasses import replace
from typing import Final

from headrace.models.families.family import Family, GgufHeader, base_config_spec, base_gguf_spec, require_activation
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

_GGUF_SCALES: Final = ("attention.scale", "embedding_scale", "residual_scale", "logit_scale")


def spec_from_config(config: Fields) -> ModelSpec:
    """Read a `granite` config."""
    require_activation(config, "silu")
    spec = base_config_spec(config, "granite")
    biased = config.flag("attention_bias", default=False)
    return _scaled(
        replace(spec, qkv_bias=biased, o_bias=biased),
        attention=config.positive("attention_multiplier", 1.0),
        embedding=config.positive("embedding_multiplier", 1.0),
        residual=config.positive("residual_multiplier", 1.0),
        logits=config.positive("logits_scaling", 1.0),
    )


def spec_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata; its `logit_scale` divides, as in the config."""
    fields = header.fields
    others = {key: value for key, value in fields.values.items() if key not in _GGUF_SCALES}
    spec = base_gguf_spec(replace(header, fields=Fields(others, fields.source)), "granite")
    attention, embedding, residual, logits = (fields.positive(key, 1.0) for key in _GGUF_SCALES)
    return _scaled(spec, attention=attention, embedding=embedding, residual=residual, logits=logits)


def _scaled(spec: ModelSpec, *, attention: float, embedding: float, residual: float, logits: float) -> ModelSpec:
    """
    Fold the multipliers into what every network has.

    The stream of residuals is divided by their multiplier, which norms undo but for their epsilon.
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
    model_types=("granite",),
    spec_from_config=spec_from_config,
    gguf_architectures=("granite",),
    spec_from_gguf=spec_from_gguf,
    interleaved_gguf_rope=True,
)
