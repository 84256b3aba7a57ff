"""GLM-4-9B and GLM-4-0414 (in the format of transformers): fused gate and up, half of each head turns, interleaved."""

from dataclasses import replace
from typing import Final

from headrace.inference.models.families.family import GGUF_TENSORS, LLAMA_TENSORS, Family

ROTARY_FRACTION: Final = 0.5
_GATE_UP: Final = ("gate", "up")

GLM: Final = Family(
    name="glm",
    models="GLM-4-9B in the format of transformers",
    verified=("transformers",),
    # Source: transformers `GlmConfig` and `Glm4Config`.
    defaults={
        "head_dim": 128,
        "num_key_value_heads": 2,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 0.00000015625,
        "attention_bias": True,
    },
    bias_flags={"qkv_bias": "attention_bias"},
    rotary_fraction=ROTARY_FRACTION,
    tensors={**LLAMA_TENSORS, **dict.fromkeys(_GATE_UP, "mlp.gate_up_proj.weight")},
    interleaved_rope=True,
)
# Its layers have a second norm after attention and MLP.
GLM4: Final = replace(
    GLM,
    name="glm4",
    models="GLM-4-0414",
    verified=("transformers", "GGUF twin"),
    model_types=("glm4",),
    parts={"norms": "both"},
    gguf_architectures=("glm4",),
    gguf_biases=("qkv_bias",),
    tensors={
        **GLM.tensors,
        "post_attn_norm": "post_self_attn_layernorm.weight",
        "mlp_norm": "post_attention_layernorm.weight",
        "post_mlp_norm": "post_mlp_layernorm.weight",
    },
    gguf_tensors={**GGUF_TENSORS, **dict.fromkeys(_GATE_UP, "ffn_up.weight")},
    interleaved_gguf_rope=True,
)
