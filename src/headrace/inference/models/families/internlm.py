"""InternLM 2, 2.5 and 3: Llama with other names, q, k and v fused by KV head, and other keys for biases."""

from typing import Final

from headrace.inference.models.families.family import LLAMA_TENSORS, QKV, Family
from headrace.inference.models.families.reading import config_spec

INTERNLM2: Final = Family(
    name="internlm2",
    models="InternLM 2 and 2.5",
    verified=("layout", "GGUF twin"),
    refused={"bias": (False, "biases in all matrices")},
    gguf_architectures=("internlm2",),
    tensors={
        **LLAMA_TENSORS,
        "embed": "model.tok_embeddings.weight",
        "lm_head": "output.weight",
        "attn_norm": "attention_norm.weight",
        **dict.fromkeys(QKV, "attention.wqkv.weight"),
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
    # Source: transformers `InternLM3Config`.
    defaults={"head_dim": 128, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-5},
    refused={"bias": (False, "biases in the MLP")},
    # Where the checkpoint was published the first is `qkv_bias`, in transformers `attention_bias`.
    bias_flags={"qkv_bias": "qkv_bias", "o_bias": "attention_bias"},
    spec_from_config=lambda family, config: config_spec(
        family, config.with_defaults({"qkv_bias": config.flag("attention_bias", default=False)})
    ),
)
