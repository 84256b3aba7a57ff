"""Falcon 7B (one norm for attention and MLP), 40B and 180B (one each), Falcon 2 11B, and Falcon-RW with alibi."""

from dataclasses import replace
from typing import Final, Literal

from headrace.inference.models.families.alibi import alibi_slopes
from headrace.inference.models.families.family import (
    ALL_BIASED,
    GGUF_FUSED_QKV,
    GPT_PARTS,
    LLAMA_TENSORS,
    QKV,
    Family,
)
from headrace.inference.models.families.reading import config_spec, gguf_spec, without_positions
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec


def _from_config(family: Family, config: Fields) -> ModelSpec:
    num_heads, is_new = config.whole("num_attention_heads"), config.flag("new_decoder_architecture")
    num_kv_heads = config.whole("num_kv_heads", num_heads) if is_new or not config.flag("multi_query") else 1
    derived = {
        "num_key_value_heads": num_kv_heads,
        "intermediate_size": config.whole("ffn_hidden_size", 4 * config.whole("hidden_size")),
    }
    spec = config_spec(family, Fields({**config.values, **derived}, config.source))
    spec = replace(spec, parallel=_parallel(config))
    if not config.flag("alibi"):
        return spec
    # Falcon adds the biases to scores before their scale.
    slopes = tuple(slope * spec.head_dim**-0.5 for slope in alibi_slopes(spec.num_heads))
    return replace(without_positions(spec), distance_slopes=slopes)


def _parallel(config: Fields) -> Literal["one", "two"] | None:
    if config.flag("new_decoder_architecture"):
        return "two" if config.whole("num_ln_in_parallel_attn", 2) == 2 else "one"
    return "one" if config.flag("parallel_attn") else None


def _variant(family: Family, spec: ModelSpec) -> Family:
    """Return the family with the norm names of layers that have two parallel norms."""
    if spec.parallel != "two":
        return family
    return replace(
        family,
        tensors={**family.tensors, "attn_norm": "ln_attn.weight", "mlp_norm": "ln_mlp.weight"},
        gguf_tensors={**family.gguf_tensors, "attn_norm": "attn_norm_2.weight", "mlp_norm": "attn_norm.weight"},
    )


FALCON: Final = Family(
    name="falcon",
    models="Falcon 7B, 40B and 180B, Falcon 2, Falcon-RW",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `FalconConfig`.
    defaults={
        "max_position_embeddings": 2048,
        "layer_norm_epsilon": 1e-5,
        "activation": "gelu",
        "tie_word_embeddings": True,
        "new_decoder_architecture": False,
        "multi_query": True,
        "parallel_attn": True,
        "bias": False,
        "alibi": False,
    },
    keys={"rms_norm_eps": "layer_norm_epsilon"},
    activation="gelu_erf",
    activation_key="activation",
    reads_activation=True,
    bias_flags=dict.fromkeys(ALL_BIASED, "bias"),
    parts=GPT_PARTS,
    spec_from_config=_from_config,
    gguf_architectures=("falcon",),
    spec_from_gguf=lambda family, header: replace(
        gguf_spec(family, header), parallel="two" if "blk.0.attn_norm_2.weight" in header.tensor_shapes else "one"
    ),
    tensors={
        **LLAMA_TENSORS,
        "layers": "model.h",
        "embed": "model.word_embeddings.weight",
        "final_norm": "model.ln_f.weight",
        **dict.fromkeys(QKV, "self_attention.query_key_value.weight"),
        "o": "self_attention.dense.weight",
        "up": "mlp.dense_h_to_4h.weight",
        "down": "mlp.dense_4h_to_h.weight",
    },
    gguf_tensors=GGUF_FUSED_QKV,
    qkv_by_kv_head=True,
    variant=_variant,
)
