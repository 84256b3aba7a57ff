"""Phi-1, Phi-1.5 and Phi-2: the MLP beside attention with the same norm, and biases everywhere."""

from typing import Final

from headrace.inference.models.families.family import ALL_BIASED, GPT_PARTS, LLAMA_TENSORS, Family

PHI: Final = Family(
    name="phi",
    models="Phi-1, Phi-1.5, Phi-2",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `PhiConfig`.
    defaults={"hidden_act": "gelu_new", "max_position_embeddings": 2048, "layer_norm_eps": 1e-5},
    keys={"rms_norm_eps": "layer_norm_eps"},
    refused={"qk_layernorm": (False, "layer norms of q and k")},
    activation="gelu_tanh",
    reads_activation=True,
    rotary_fraction=0.5,
    parts={**GPT_PARTS, **ALL_BIASED, "head_bias": True, "parallel": "one"},
    gguf_architectures=("phi2",),
    tensors={
        **LLAMA_TENSORS,
        "final_norm": "model.final_layernorm.weight",
        "o": "self_attn.dense.weight",
        "up": "mlp.fc1.weight",
        "down": "mlp.fc2.weight",
    },
)
