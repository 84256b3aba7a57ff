"""Arcee (AFM): Llama with a plain MLP and a squared ReLU."""

from typing import Final

from headrace.inference.models.families.family import ATTENTION_BIAS, Family

ARCEE: Final = Family(
    name="arcee",
    models="Arcee AFM",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `ArceeConfig`.
    defaults={"hidden_act": "relu2", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    activation="relu2",
    bias_flags=ATTENTION_BIAS,
    parts={"mlp": "plain"},
    gguf_architectures=("arcee",),
    interleaved_gguf_rope=True,
)
