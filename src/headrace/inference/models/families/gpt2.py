"""GPT-2: learned positions, transposed matrices."""

from dataclasses import replace
from typing import Final

from headrace.inference.models.families.family import ALL_BIASED, GGUF_FUSED_QKV, GPT_PARTS, GPT_TENSORS, QKV, Family
from headrace.inference.models.families.reading import config_spec, gguf_spec, without_positions
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec


def _from_config(family: Family, config: Fields) -> ModelSpec:
    inner = config.whole("n_inner", 4 * config.whole("n_embd"))
    return _learned(config_spec(family, Fields({**config.values, "intermediate_size": inner}, config.source)))


def _learned(spec: ModelSpec) -> ModelSpec:
    return replace(without_positions(spec), learned_positions=spec.max_positions)


GPT2: Final = Family(
    name="gpt2",
    models="GPT-2",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `GPT2Config`.
    defaults={
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 1024,
        "vocab_size": 50_257,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
        "tie_word_embeddings": True,
    },
    keys={
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    refused={
        "scale_attn_weights": (True, "attention scores without a scale"),
        "scale_attn_by_inverse_layer_idx": (False, "a scale of attention scores for each layer"),
        "add_cross_attention": (False, "attention to an encoder"),
    },
    activation="gelu_tanh",
    activation_key="activation_function",
    reads_activation=True,
    parts={**GPT_PARTS, **ALL_BIASED},
    spec_from_config=_from_config,
    gguf_architectures=("gpt2",),
    spec_from_gguf=lambda family, header: _learned(gguf_spec(family, header)),
    tensors={
        **GPT_TENSORS,
        "positions": "model.wpe.weight",
        **dict.fromkeys(QKV, "attn.c_attn.weight"),
        "o": "attn.c_proj.weight",
        "up": "mlp.c_fc.weight",
        "down": "mlp.c_proj.weight",
    },
    gguf_tensors=GGUF_FUSED_QKV,
    transposed=True,
)
