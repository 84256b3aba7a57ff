"""dots.llm1: the attention of Qwen 3 with experts that are chosen by sigmoids."""

from typing import Final

from headrace.inference.models.families.family import (
    ATTENTION_BIAS,
    DEEPSEEK_EXPERT_TENSORS,
    Family,
    GgufHeader,
)
from headrace.inference.models.families.reading import (
    config_router,
    config_spec,
    gguf_experts,
    gguf_spec,
    is_null,
    layer_windows,
)
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec


def _from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a config whose windows apply from layer `max_window_layers` on, unless `layer_types` names others."""
    spec = config_spec(family, config, moe=config_router(config))
    window = 0 if is_null(config, "sliding_window") else config.whole("sliding_window", 4096)
    first = config.whole("max_window_layers", 62, minimum=0)
    return layer_windows(config, spec, window, tuple(layer >= first for layer in range(spec.num_layers)))


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    return gguf_spec(family, header, moe=gguf_experts(header, renormalize=False, scoring="sigmoid", sum_floor=1e-20))


DOTS1: Final = Family(
    name="dots1",
    models="dots.llm1",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `Dots1Config`.
    defaults={"num_key_value_heads": 32, "norm_topk_prob": False},
    bias_flags=ATTENTION_BIAS,
    parts={"qk_norm": "head"},
    spec_from_config=_from_config,
    gguf_architectures=("dots1",),
    spec_from_gguf=_from_gguf,
    tensors=DEEPSEEK_EXPERT_TENSORS,
)
