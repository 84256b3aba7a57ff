"""Phi-3, Phi-3.5-mini, Phi-4 and Phi-4-mini: Llama with fused matrices, longrope and partly turning heads."""

from typing import Final

from headrace.inference.models.families.family import GGUF_FUSED_QKV, LLAMA_TENSORS, QKV, Family
from headrace.inference.models.families.reading import config_spec, gguf_spec, uniform_window
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec


def _from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a `phi3` config; the `yarn` and `su` of old files are longrope."""
    renamed = {
        key: {**scaling.values, "rope_type": "longrope"}
        for key in ("rope_scaling", "rope_parameters")
        if (scaling := config.sub(key)).text("rope_type", scaling.text("type", "")) == "yarn"
    }
    spec = config_spec(family, Fields({**config.values, **renamed}, config.source))
    return uniform_window(spec, config.whole("sliding_window", 0, minimum=0))


PHI3: Final = Family(
    name="phi3",
    models="Phi-3, Phi-3.5-mini, Phi-4, Phi-4-mini",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `Phi3Config`.
    defaults={
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
    },
    rotary_fraction=1.0,
    spec_from_config=_from_config,
    gguf_architectures=("phi3",),
    spec_from_gguf=lambda family, header: uniform_window(
        gguf_spec(family, header), header.fields.whole("attention.sliding_window", 0, minimum=0)
    ),
    tensors={
        **LLAMA_TENSORS,
        **dict.fromkeys(QKV, "self_attn.qkv_proj.weight"),
        **dict.fromkeys(("gate", "up"), "mlp.gate_up_proj.weight"),
    },
    gguf_tensors={**GGUF_FUSED_QKV, **dict.fromkeys(("gate", "up"), "ffn_up.weight")},
)
