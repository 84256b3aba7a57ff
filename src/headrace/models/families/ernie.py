"""ERNIE 4.5, dense: Llama whose heads turn interleaved pairs."""

from typing import Final

from headrace.models.families.family import Family, GgufHeader, base_config_spec, base_gguf_spec, require_activation
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

DEFAULTS: Final = {
    "head_dim": 128,
    "num_key_value_heads": 2,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "rope_theta": 500_000.0,
}
"""Source: transformers `Ernie4_5Config`."""


def spec_from_config(config: Fields) -> ModelSpec:
    """Read an `ernie4_5` config."""
    config = config.with_defaults(DEFAULTS)
    require_activation(config, "silu")
    config.refuse("use_bias", "biases in all matrices", unless=(False,))
    return base_config_spec(config, "ernie4_5")


def spec_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata."""
    return base_gguf_spec(header, "ernie4_5")


ERNIE4_5: Final = Family(
    name="ernie4_5",
    models="ERNIE 4.5, dense",
    verified=("transformers", "GGUF twin"),
    model_types=("ernie4_5",),
    spec_from_config=spec_from_config,
    gguf_architectures=("ernie4_5",),
    spec_from_gguf=spec_from_gguf,
    interleaved_rope=True,
    interleaved_gguf_rope=True,
)
