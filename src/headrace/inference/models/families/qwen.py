"""Qwen 2 and 2.5 (biases on q, k and v), Qwen 3 (norms on q and k instead), and the text part of their VL networks."""

from dataclasses import replace
from typing import Final

from headrace.inference.models.experts import MoeSpec
from headrace.inference.models.families.family import ATTENTION_BIAS, Family
from headrace.inference.models.families.reading import config_spec, is_null, layer_windows
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec


def from_config(family: Family, config: Fields, moe: MoeSpec | None = None) -> ModelSpec:
    """Read a config whose windows apply only with `use_sliding_window` and from layer `max_window_layers` on."""
    spec = config_spec(family, config, moe=moe)
    if not config.flag("use_sliding_window", default=False) or is_null(config, "sliding_window"):
        config.refuse("layer_types", "sliding layers without a window", unless=(["full_attention"] * spec.num_layers,))
        return spec
    first = config.whole("max_window_layers", 28, minimum=0)
    default = tuple(layer >= first for layer in range(spec.num_layers))
    return layer_windows(config, spec, config.whole("sliding_window", 4096), default)


QWEN2: Final = Family(
    name="qwen2",
    models="Qwen 2 and 2.5",
    verified=("transformers", "GGUF twin"),
    parts={"qkv_bias": True},
    spec_from_config=from_config,
    gguf_architectures=("qwen2",),
)
QWEN3: Final = Family(
    name="qwen3",
    models="Qwen 3",
    verified=("transformers", "GGUF twin"),
    defaults={"head_dim": 128},
    bias_flags=ATTENTION_BIAS,
    parts={"qk_norm": "head"},
    spec_from_config=from_config,
    gguf_architectures=("qwen3",),
)
# The rotary embedding of VL networks has three positions for a part of an image (mrope), which are equal in text: as
# networks they are Qwen 2 and 3.
QWEN2_VL: Final = replace(
    QWEN2,
    name="qwen2_vl",
    models="the text part of Qwen 2 and 2.5 VL",
    model_types=("qwen2_vl_text", "qwen2_5_vl_text"),
    # Source: transformers `Qwen2VLTextConfig` and `Qwen2_5_VLTextConfig`.
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0, "max_position_embeddings": 32_768},
    parts={**QWEN2.parts, "family": QWEN2.name},
    gguf_architectures=("qwen2vl",),
)
QWEN3_VL: Final = replace(
    QWEN3,
    name="qwen3_vl",
    models="the text part of Qwen 3 VL",
    model_types=("qwen3_vl_text",),
    # Source: transformers `Qwen3VLTextConfig`.
    defaults={**QWEN3.defaults, "rope_theta": 500_000.0, "max_position_embeddings": 128_000},
    parts={**QWEN3.parts, "family": QWEN3.name},
    gguf_architectures=("qwen3vl",),
)
