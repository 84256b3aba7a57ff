"""Apertus: Llama with norms of q and k, and a plain MLP whose activation has numbers of each layer (xIELU)."""

from typing import Final

from headrace.inference.models.families.family import ATTENTION_BIAS, GGUF_TENSORS, LLAMA_TENSORS, Family

APERTUS: Final = Family(
    name="apertus",
    models="Apertus",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `ApertusConfig`.
    defaults={
        "hidden_act": "xielu",
        "max_position_embeddings": 65536,
        "rms_norm_eps": 1e-5,
        "rope_theta": 12e6,
    },
    activation="xielu",
    bias_flags=ATTENTION_BIAS,
    parts={"mlp": "plain", "qk_norm": "head"},
    gguf_architectures=("apertus",),
    tensors={
        **LLAMA_TENSORS,
        "attn_norm": "attention_layernorm.weight",
        "mlp_norm": "feedforward_layernorm.weight",
        "xielu_positive": "mlp.act_fn.alpha_p",
        "xielu_negative": "mlp.act_fn.alpha_n",
        "xielu_linear": "mlp.act_fn.beta",
    },
    gguf_tensors={
        **GGUF_TENSORS,
        "xielu_positive": "xielu.alpha_p",
        "xielu_negative": "xielu.alpha_n",
        "xielu_linear": "xielu.beta",
    },
)
