"""InternLM 2, 2.5 and 3: Llama with other names, q, k and v fused by KV head, and other keys for biases."""

from dataclasses import replace
from typing import Final

from headrace.models.families.family import (
    LLAMA_TENSORS,
    Family,
    GgufHeader,
    base_config_spec,
    base_gguf_spec,
    require_activation,
)
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

DEFAULTS: Final = {"head_dim": 128, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-5}
"""Source: transformers `InternLM3Config`."""


def internlm2_from_config(config: Fields) -> ModelSpec:
    """Read an `internlm2` config."""
    require_activation(config, "silu")
    config.refuse("bias", "biases in all matrices", unless=(False,))
    return base_config_spec(config, "internlm2")


def internlm2_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata."""
    return base_gguf_spec(header, "internlm2")


def internlm3_from_config(config: Fields) -> ModelSpec:
    """Read an `internlm3` config: `qkv_bias` where the checkpoint was published, `attention_bias` in transformers."""
    config = config.with_defaults(DEFAULTS)
    require_activation(config, "silu")
    config.refuse("bias", "biases in the MLP", unless=(False,))
    spec = base_config_spec(config, "internlm3")
    all_biased = config.flag("attention_bias", default=False)
    return replace(spec, qkv_bias=config.flag("qkv_bias", default=all_biased), o_bias=all_biased)


INTERNLM2: Final = Family(
    name="internlm2",
    models="InternLM 2 and 2.5",
    verified=("layout", "GGUF twin"),
    model_types=("internlm2",),
    spec_from_config=internlm2_from_config,
    gguf_architectures=("internlm2",),
    spec_from_gguf=internlm2_from_gguf,
    tensors={
        **LLAMA_TENSORS,
        "embed": "model.tok_embeddings.weight",
        "lm_head": "output.weight",
        "attn_norm": "attention_norm.weight",
        **dict.fromkeys(("q", "k", "v"), "attention.wqkv.weight"),
        "o": "attention.wo.weight",
        "mlp_norm": "ffn_norm.weight",
        "gate": "feed_forward.w1.weight",
        "up": "feed_forward.w3.weight",
        "down": "feed_forward.w2.weight",
    },
    qkv_by_kv_head=True,
    interleaved_gguf_rope=True,
)
INTERNLM3: Final = Family(
    name="internlm3",
    models="InternLM 3",
    verified=("layout",),
    model_types=("internlm3",),
    spec_from_config=internlm3_from_config,
)
