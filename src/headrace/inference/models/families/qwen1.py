"""Qwen 1: Llama with other names, and a bias on q, k and v, which are fused."""

from dataclasses import replace
from typing import Final

from headrace.core.errors import BrokenModel
from headrace.inference.models.families.family import GGUF_FUSED_QKV, GPT_TENSORS, QKV, Family, GgufHeader
from headrace.inference.models.families.reading import config_spec, gguf_spec
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec


def _from_config(family: Family, config: Fields) -> ModelSpec:
    """
    Read a `qwen` config, whose `intermediate_size` is that of gate and up together.

    Longer contexts than `seq_length` need a rope that depends on the request (dynamic NTK) and queries scaled by
    position (log-n), so the context ends there.
    """
    config.refuse("rotary_pct", "a partial rotary embedding in this family", unless=(1.0, 1))
    sizes = {
        "intermediate_size": _half(config.whole("intermediate_size"), config.source),
        "max_position_embeddings": config.whole("seq_length", config.whole("max_position_embeddings", 8192)),
    }
    return config_spec(family, Fields({**config.values, **sizes}, config.source))


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    spec = gguf_spec(family, header)
    return replace(spec, intermediate_size=_half(spec.intermediate_size, header.fields.source))


def _half(width: int, source: str) -> int:
    if width % 2:
        raise BrokenModel(f"{source}: the width of the MLP is {width}; expected an even number.")
    return width // 2


QWEN: Final = Family(
    name="qwen",
    models="Qwen 1, up to `seq_length`",
    verified=("layout", "GGUF twin"),
    keys={"rms_norm_eps": "layer_norm_epsilon", "rope_theta": "rotary_emb_base", "head_dim": "kv_channels"},
    refused={"no_bias": (True, "biases in all matrices")},
    activation_key="",
    parts={"qkv_bias": True},
    spec_from_config=_from_config,
    gguf_architectures=("qwen",),
    spec_from_gguf=_from_gguf,
    tensors={
        **GPT_TENSORS,
        **dict.fromkeys(QKV, "attn.c_attn.weight"),
        "o": "attn.c_proj.weight",
        "gate": "mlp.w2.weight",
        "up": "mlp.w1.weight",
        "down": "mlp.c_proj.weight",
    },
    gguf_tensors=GGUF_FUSED_QKV,
)
