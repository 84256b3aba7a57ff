"""
The text part of Qwen 2, 2.5 and 3 VL: Qwen 2 and 3.

Their rotary embedding has three positions for a part of an image (mrope), which are equal in text.
"""

from typing import Final

from headrace.models.families.family import Family
from headrace.models.families.qwen import qwen2_from_config, qwen2_from_gguf, qwen3_from_config, qwen3_from_gguf
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

QWEN2_DEFAULTS: Final = {"rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0, "max_position_embeddings": 32_768}
"""Source: transformers `Qwen2VLTextConfig` and `Qwen2_5_VLTextConfig`."""
QWEN3_DEFAULTS: Final = {"rope_theta": 500_000.0, "max_position_embeddings": 128_000}
"""Source: transformers `Qwen3VLTextConfig`."""


def qwen2_vl_from_config(config: Fields) -> ModelSpec:
    """Read the text part of a `qwen2_vl` or `qwen2_5_vl` config."""
    return qwen2_from_config(config.with_defaults(QWEN2_DEFAULTS))


def qwen3_vl_from_config(config: Fields) -> ModelSpec:
    """Read the text part of a `qwen3_vl` config."""
    return qwen3_from_config(config.with_defaults(QWEN3_DEFAULTS))


QWEN2_VL: Final = Family(
    name="qwen2_vl",
    models="the text part of Qwen 2 and 2.5 VL",
    verified=("transformers", "GGUF twin"),
    model_types=("qwen2_vl_text", "qwen2_5_vl_text"),
    spec_from_config=qwen2_vl_from_config,
    gguf_architectures=("qwen2vl",),
    spec_from_gguf=qwen2_from_gguf,
)
QWEN3_VL: Final = Family(
    name="qwen3_vl",
    models="the text part of Qwen 3 VL",
    verified=("transformers", "GGUF twin"),
    model_types=("qwen3_vl_text",),
    spec_from_config=qwen3_vl_from_config,
    gguf_architectures=("qwen3vl",),
    spec_from_gguf=qwen3_from_gguf,
)
