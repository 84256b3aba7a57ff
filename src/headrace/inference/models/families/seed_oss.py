"""Seed-OSS: Llama with biases on q, k and v."""

from typing import Final

from headrace.inference.models.families.family import GGUF_TENSORS, Family

SEED_OSS: Final = Family(
    name="seed_oss",
    models="Seed-OSS",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `SeedOssConfig`.
    defaults={"head_dim": 128, "max_position_embeddings": 524_288, "attention_bias": True},
    bias_flags={"qkv_bias": "attention_bias", "o_bias": "attention_out_bias"},
    gguf_architectures=("seed_oss",),
    gguf_biases=("qkv_bias",),
    gguf_tensors={**GGUF_TENSORS, "mlp_norm": "post_attention_norm.weight"},
)
