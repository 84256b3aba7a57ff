"""GPT-NeoX and Pythia: the MLP beside attention with a norm of its own, and partly turning heads."""

from dataclasses import replace
from typing import Final

from headrace.inference.models.families.family import (
    ATTENTION_BIAS,
    GGUF_FUSED_QKV,
    GPT_PARTS,
    LLAMA_TENSORS,
    QKV,
    Family,
)
from headrace.inference.models.families.reading import config_spec, gguf_spec
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec


def _parallel(spec: ModelSpec, fields: Fields) -> ModelSpec:
    return replace(spec, parallel="two" if fields.flag("use_parallel_residual", default=True) else None)


GPT_NEOX: Final = Family(
    name="gpt_neox",
    models="GPT-NeoX, Pythia",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `GPTNeoXConfig`.
    defaults={
        "hidden_act": "gelu",
        "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-5,
        "attention_bias": True,
    },
    keys={
        "rms_norm_eps": "layer_norm_eps",
        "partial_rotary_factor": "rotary_pct",
        "rope_theta": "rotary_emb_base",
    },
    activation="gelu_erf",
    reads_activation=True,
    bias_flags=ATTENTION_BIAS,
    rotary_fraction=0.25,
    parts={**GPT_PARTS, "mlp_bias": True},
    spec_from_config=lambda family, config: _parallel(config_spec(family, config), config),
    gguf_architectures=("gptneox",),
    gguf_biases=("qkv_bias", "o_bias"),
    spec_from_gguf=lambda family, header: _parallel(gguf_spec(family, header), header.fields),
    tensors={
        **LLAMA_TENSORS,
        "embed": "model.embed_in.weight",
        "final_norm": "model.final_layer_norm.weight",
        "lm_head": "embed_out.weight",
        **dict.fromkeys(QKV, "attention.query_key_value.weight"),
        "o": "attention.dense.weight",
        "up": "mlp.dense_h_to_4h.weight",
        "down": "mlp.dense_4h_to_h.weight",
    },
    gguf_tensors=GGUF_FUSED_QKV,
    qkv_by_kv_head=True,
)
