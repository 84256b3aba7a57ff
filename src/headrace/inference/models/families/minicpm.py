"""MiniCPM 1, 2 and 4: Llama with multipliers of embeddings, residuals and logits."""

from dataclasses import replace
from typing import Final

from headrace.inference.models.families.family import Family, GgufHeader
from headrace.inference.models.families.granite import with_multipliers
from headrace.inference.models.families.reading import config_spec, gguf_spec
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec


def _from_config(family: Family, config: Fields) -> ModelSpec:
    config.refuse("sparse_config", "sparse attention")
    spec = config_spec(family, config)
    return with_multipliers(
        spec,
        attention=spec.scale(0),
        embedding=config.positive("scale_emb", 1.0),
        residual=config.positive("scale_depth", 1.0) / spec.num_layers**0.5,
        logits=spec.hidden_size / config.positive("dim_model_base", 1.0),
    )


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata; files of old converters lack the multipliers, and those of MiniCPM-2B apply."""
    fields = header.fields
    others = fields.without("embedding_scale", "residual_scale", "logit_scale")
    spec = gguf_spec(family, replace(header, fields=others))
    return with_multipliers(
        spec,
        attention=spec.scale(0),
        embedding=fields.positive("embedding_scale", 12.0),
        residual=fields.positive("residual_scale", 1.4 / spec.num_layers**0.5),
        logits=fields.positive("logit_scale", spec.hidden_size / 256),
    )


MINICPM: Final = Family(
    name="minicpm",
    models="MiniCPM 1, 2 and 4",
    verified=("layout", "GGUF twin"),
    defaults={"tie_word_embeddings": True},  # source: `MiniCPMConfig`, which comes with the checkpoints
    refused={"attention_bias": (False, "biases in attention")},
    spec_from_config=_from_config,
    gguf_architectures=("minicpm",),
    spec_from_gguf=_from_gguf,
    interleaved_gguf_rope=True,
)
