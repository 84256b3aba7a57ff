"""ERNIE 4.5, dense: Llama whose heads turn interleaved pairs."""

from typing import Final

from headrace.inference.models.families.family import Family

ERNIE4_5: Final = Family(
    name="ernie4_5",
    models="ERNIE 4.5, dense",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `Ernie4_5Config`.
    defaults={
        "head_dim": 128,
        "num_key_value_heads": 2,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "rope_theta": 500_000.0,
    },
    refused={"use_bias": (False, "biases in all matrices")},
    gguf_architectures=("ernie4_5",),
    interleaved_rope=True,
    interleaved_gguf_rope=True,
)
