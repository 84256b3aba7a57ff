"""Nemotron and Minitron: layer norms of `x * (1 + w) + b`, squared ReLU, half of each head turns."""

from typing import Final

from headrace.inference.models.families.family import ATTENTION_BIAS, GPT_PARTS, Family

NEMOTRON: Final = Family(
    name="nemotron",
    models="Nemotron, Minitron",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `NemotronConfig`.
    defaults={"hidden_act": "relu2", "max_position_embeddings": 4096, "norm_eps": 1e-5},
    keys={"rms_norm_eps": "norm_eps"},
    activation="relu2",
    reads_activation=True,
    bias_flags={**ATTENTION_BIAS, "mlp_bias": "mlp_bias"},
    rotary_fraction=0.5,
    parts=GPT_PARTS,
    gguf_architectures=("nemotron",),
    gguf_biases=("qkv_bias", "o_bias", "mlp_bias"),
    norm_offset=1.0,  # files of GGUF store norms with the 1 added
)
