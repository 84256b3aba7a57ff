"""Bloom and MPT: networks without positions, whose heads prefer near tokens by slopes of their own (alibi)."""

from dataclasses import replace
from typing import Final

from headrace.core.errors import UnsupportedModel
from headrace.inference.models.families.family import (
    GGUF_FUSED_QKV,
    GPT_PARTS,
    LLAMA_TENSORS,
    QKV,
    Family,
    GgufHeader,
)
from headrace.inference.models.families.reading import config_spec, gguf_spec, without_positions
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

_PART: Final = "positions that are no biases of the scores"


def alibi_slopes(num_heads: int, exponent: float = 8.0) -> tuple[float, ...]:
    """Return the slope of each head: powers of `2 ** (-exponent / n)`, n being the next lower power of two."""
    count = 1 << (num_heads.bit_length() - 1)
    first = [2 ** (-exponent * (head + 1) / count) for head in range(count)]
    between = [2 ** (-exponent * (2 * head + 1) / (2 * count)) for head in range(num_heads - count)]
    return (*first, *between)


def _with_slopes(spec: ModelSpec, exponent: float = 8.0) -> ModelSpec:
    return replace(without_positions(spec), distance_slopes=alibi_slopes(spec.num_heads, exponent))


def _bloom_from_config(family: Family, config: Fields) -> ModelSpec:
    inner = {"intermediate_size": 4 * config.whole("hidden_size")}
    return _with_slopes(config_spec(family, config.with_defaults(inner)))


def _mpt_from_config(family: Family, config: Fields) -> ModelSpec:
    attention = config.sub("attn_config")
    attention.refuse("attn_type", "another attention", unless=("multihead_attention",))
    for key in ("prefix_lm", "qk_ln"):
        attention.refuse(key, "another attention", unless=(False,))
    attention.refuse("alibi", _PART, unless=(True,))
    inner = {"intermediate_size": config.whole("expansion_ratio", 4) * config.whole("hidden_size")}
    spec = config_spec(family, config.with_defaults(inner))
    clip = attention.positive("clip_qkv") if attention.has("clip_qkv") else 0.0
    scale = attention.positive("softmax_scale") if attention.has("softmax_scale") else 0.0
    spec = replace(spec, qkv_clip=clip, attention_scale=scale)
    return _with_slopes(spec, attention.positive("alibi_bias_max", 8.0))


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    fields = header.fields
    spec = gguf_spec(family, header)
    if "position_embd.weight" in header.tensor_shapes:
        raise UnsupportedModel(f"{fields.source}: learned positions beside alibi are not supported.")
    clip = fields.number("attention.clamp_kqv", 0.0)
    spec = replace(spec, qkv_clip=clip if family.name == "mpt" else 0.0)
    return _with_slopes(spec, fields.positive("attention.max_alibi_bias", 8.0))


BLOOM: Final = Family(
    name="bloom",
    models="Bloom and Bloomz",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `BloomConfig`; the networks have no longest context, and were trained with 2,048 tokens.
    defaults={
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "max_position_embeddings": 2048,
        "apply_residual_connection_post_layernorm": False,
    },
    keys={
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    refused={"apply_residual_connection_post_layernorm": (False, "residuals after norms")},
    activation="gelu_tanh",
    activation_key="",
    parts={**GPT_PARTS, "embedding_norm": True, "qkv_bias": True, "o_bias": True, "mlp_bias": True},
    spec_from_config=_bloom_from_config,
    gguf_architectures=("bloom",),
    spec_from_gguf=_from_gguf,
    tensors={
        **LLAMA_TENSORS,
        "layers": "model.h",
        "embed": "model.word_embeddings.weight",
        "embed_norm": "model.word_embeddings_layernorm.weight",
        "final_norm": "model.ln_f.weight",
        **dict.fromkeys(QKV, "self_attention.query_key_value.weight"),
        "o": "self_attention.dense.weight",
        "up": "mlp.dense_h_to_4h.weight",
        "down": "mlp.dense_4h_to_h.weight",
    },
    gguf_tensors={**GGUF_FUSED_QKV, "embed_norm": "token_embd_norm.weight"},
    qkv_by_kv_head=True,
)
MPT: Final = Family(
    name="mpt",
    models="MPT",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `MptConfig`.
    defaults={"layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "no_bias": True, "max_seq_len": 2048},
    keys={
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "hidden_size": "d_model",
        "max_position_embeddings": "max_seq_len",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    refused={
        "no_bias": (True, "biases"),
        "logit_scale": (None, "a scale of the logits"),
        "embedding_fraction": (1.0, "scaled embeddings"),
    },
    activation="gelu_erf",
    activation_key="",
    parts={"norm": "layer", "mlp": "plain"},
    spec_from_config=_mpt_from_config,
    gguf_architectures=("mpt",),
    spec_from_gguf=_from_gguf,
    tensors={
        **LLAMA_TENSORS,
        "layers": "model.blocks",
        "embed": "model.wte.weight",
        "final_norm": "model.norm_f.weight",
        "attn_norm": "norm_1.weight",
        "mlp_norm": "norm_2.weight",
        **dict.fromkeys(QKV, "attn.Wqkv.weight"),
        "o": "attn.out_proj.weight",
        "up": "ffn.up_proj.weight",
        "down": "ffn.down_proj.weight",
    },
    gguf_tensors=GGUF_FUSED_QKV,
)
