"""ChatGLM 2 and 3 and GLM-4-9B as first published: GLM with other names, and q, k and v fused."""

from dataclasses import replace
from typing import Final

from headrace.models.families.family import (
    GGUF_TENSORS,
    LLAMA_TENSORS,
    Family,
    GgufHeader,
    base_config_spec,
    base_gguf_spec,
)
from headrace.models.families.glm import ROTARY_FRACTION
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

_OTHER_NAMES: Final = {
    "num_hidden_layers": "num_layers",
    "vocab_size": "padded_vocab_size",
    "intermediate_size": "ffn_hidden_size",
    "rms_norm_eps": "layernorm_epsilon",
    "head_dim": "kv_channels",
    "max_position_embeddings": "seq_length",
}
THETA: Final = 10_000.0


def spec_from_config(config: Fields) -> ModelSpec:
    """Read a `chatglm` config; ChatGLM 1, which is another network, has no `rmsnorm`."""
    for key, expected in (
        ("rmsnorm", True),
        ("post_layer_norm", True),
        ("apply_residual_connection_post_layernorm", False),
        ("add_bias_linear", False),
    ):
        config.refuse(key, "a network that differs from ChatGLM 2 and GLM-4", unless=(expected,))
    config.flag("rmsnorm")
    config = config.renamed(_OTHER_NAMES)
    groups = config.whole("multi_query_group_num") if config.flag("multi_query_attention", default=False) else None
    values = {"rope_theta": THETA * config.positive("rope_ratio", 1.0)}
    if groups is not None:
        values["num_key_value_heads"] = groups
    spec = base_config_spec(
        Fields({**config.values, **values}, config.source), "chatglm", rotary_fraction=ROTARY_FRACTION
    )
    return replace(spec, qkv_bias=config.flag("add_qkv_bias", default=False))


def spec_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata."""
    spec = base_gguf_spec(header, "chatglm")
    return replace(spec, qkv_bias="blk.0.attn_qkv.bias" in header.tensor_shapes)


CHATGLM: Final = Family(
    name="chatglm",
    models="ChatGLM 2 and 3, GLM-4-9B as first published",
    verified=("layout", "GGUF twin"),
    model_types=("chatglm",),
    spec_from_config=spec_from_config,
    gguf_architectures=("chatglm",),
    spec_from_gguf=spec_from_gguf,
    tensors={
        **LLAMA_TENSORS,
        "layers": "model.encoder.layers",
        "embed": "model.embedding.word_embeddings.weight",
        "final_norm": "model.encoder.final_layernorm.weight",
        "lm_head": "output_layer.weight",
        **dict.fromkeys(("q", "k", "v"), "self_attention.query_key_value.weight"),
        "o": "self_attention.dense.weight",
        **dict.fromkeys(("gate", "up"), "mlp.dense_h_to_4h.weight"),
        "down": "mlp.dense_4h_to_h.weight",
    },
    gguf_tensors={
        **GGUF_TENSORS,
        **dict.fromkeys(("q", "k", "v"), "attn_qkv.weight"),
        **dict.fromkeys(("gate", "up"), "ffn_up.weight"),
    },
    interleaved_rope=True,
    interleaved_gguf_rope=True,
)
