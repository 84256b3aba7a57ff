"""ChatGLM 2 and 3 and GLM-4-9B as first published: GLM with other names, and q, k and v fused."""

from typing import Final

from headrace.inference.models.families.family import GGUF_FUSED_QKV, LLAMA_TENSORS, QKV, Family
from headrace.inference.models.families.glm import ROTARY_FRACTION
from headrace.inference.models.families.reading import config_spec
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

THETA: Final = 10_000.0
_OTHERWISE: Final = "a network that differs from ChatGLM 2 and GLM-4"


def _from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a `chatglm` config; ChatGLM 1, which is another network, has no `rmsnorm`."""
    config.flag("rmsnorm")
    values: dict[str, object] = {"rope_theta": THETA * config.positive("rope_ratio", 1.0)}
    if config.flag("multi_query_attention", default=False):
        values["num_key_value_heads"] = config.whole("multi_query_group_num")
    return config_spec(family, Fields({**config.values, **values}, config.source))


CHATGLM: Final = Family(
    name="chatglm",
    models="ChatGLM 2 and 3, GLM-4-9B as first published",
    verified=("layout", "GGUF twin"),
    keys={
        "num_hidden_layers": "num_layers",
        "vocab_size": "padded_vocab_size",
        "intermediate_size": "ffn_hidden_size",
        "rms_norm_eps": "layernorm_epsilon",
        "head_dim": "kv_channels",
        "max_position_embeddings": "seq_length",
    },
    refused={
        "rmsnorm": (True, _OTHERWISE),
        "post_layer_norm": (True, _OTHERWISE),
        "apply_residual_connection_post_layernorm": (False, _OTHERWISE),
        "add_bias_linear": (False, _OTHERWISE),
    },
    activation_key="",
    bias_flags={"qkv_bias": "add_qkv_bias"},
    rotary_fraction=ROTARY_FRACTION,
    spec_from_config=_from_config,
    gguf_architectures=("chatglm",),
    gguf_biases=("qkv_bias",),
    tensors={
        **LLAMA_TENSORS,
        "layers": "model.encoder.layers",
        "embed": "model.embedding.word_embeddings.weight",
        "final_norm": "model.encoder.final_layernorm.weight",
        "lm_head": "output_layer.weight",
        **dict.fromkeys(QKV, "self_attention.query_key_value.weight"),
        "o": "self_attention.dense.weight",
        **dict.fromkeys(("gate", "up"), "mlp.dense_h_to_4h.weight"),
        "down": "mlp.dense_4h_to_h.weight",
    },
    gguf_tensors={**GGUF_FUSED_QKV, **dict.fromkeys(("gate", "up"), "ffn_up.weight")},
    interleaved_rope=True,
    interleaved_gguf_rope=True,
)
