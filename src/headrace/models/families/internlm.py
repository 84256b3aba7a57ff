"""InternLM 3: Llama with a key for the biases of q, k and v, and another for all others."""

from dataclasses import replace
from typing import Final

from headrace.models.families.family import Family, base_config_spec, require_activation
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

DEFAULTS: Final = {"head_dim": 128, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-5}
"""Source: transformers `InternLM3Config`."""


def internlm3_from_config(config: Fields) -> ModelSpec:
    """Read an `internlm3` config: `qkv_bias` where the checkpoint was published, `attention_bias` in transformers."""
    config = config.with_defaults(DEFAULTS)
    require_activation(config, "silu")
    config.refuse("bias", "biases in the MLP", unless=(False,))
    spec = base_config_spec(config, "internlm3")
    all_biased = config.flag("attention_bias", default=False)
    return replace(spec, qkv_bias=config.flag("qkv_bias", default=all_biased), o_bias=all_biased)


INTERNLM3: Final = Family(name="internlm3", model_types=("internlm3",), spec_from_config=internlm3_from_config)
