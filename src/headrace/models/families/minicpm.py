"""MiniCPM 1, 2 and 4: Llama with multipliers of embeddings, residuals and logits."""

from typing import Final

from headrace.models.families.family import Family, GgufHeader, base_config_spec, base_gguf_spec, require_activation
from headrace.models.families.granite import with_multipliers
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

DEFAULTS: Final = {"tie_word_embeddings": True}
"""Source: `MiniCPMConfig`, which comes with the checkpoints."""
_GGUF_SCALES: Final = ("embedding_scale", "residual_scale", "logit_scale")


def spec_from_config(config: Fields) -> ModelSpec:
    """Read a `minicpm` config."""
    config = config.with_defaults(DEFAULTS)
    require_activation(config, "silu")
    config.refuse("attention_bias", "biases in attention", unless=(False,))
    config.refuse("sparse_config", "sparse attention")
    spec = base_config_spec(config, "minicpm")
    return with_multipliers(
        spec,
        attention=spec.scale,
        embedding=config.positive("scale_emb", 1.0),
        residual=config.positive("scale_depth", 1.0) / spec.num_layers**0.5,
        logits=spec.hidden_size / config.positive("dim_model_base", 1.0),
    )


def spec_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata; files of old converters lack the multipliers, and those of MiniCPM-2B apply."""
    others, scales = header.without(_GGUF_SCALES)
    spec = base_gguf_spec(others, "minicpm")
    return with_multipliers(
        spec,
        attention=spec.scale,
        embedding=scales.positive("embedding_scale", 12.0),
        residual=scales.positive("residual_scale", 1.4 / spec.num_layers**0.5),
        logits=scales.positive("logit_scale", spec.hidden_size / 256),
    )


MINICPM: Final = Family(
    name="minicpm",
    models="MiniCPM 1, 2 and 4",
    verified=("layout", "GGUF twin"),
    model_types=("minicpm",),
    spec_from_config=spec_from_config,
    gguf_architectures=("minicpm",),
    spec_from_gguf=spec_from_gguf,
    interleaved_gguf_rope=True,
)
