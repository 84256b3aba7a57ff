"""Falcon 7B (one norm for attention and MLP), 40B and 180B (one each), and Falcon 2 11B. Alibi is refused."""

from dataclasses import replace
from typing import Final, Literal

from headrace.models.families.family import (
    GGUF_TENSORS,
    LLAMA_TENSORS,
    Family,
    GgufHeader,
    base_config_spec,
    base_gguf_spec,
    read_activation,
)
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

DEFAULTS: Final = {
    "max_position_embeddings": 2048,
    "layer_norm_epsilon": 1e-5,
    "activation": "gelu",
    "tie_word_embeddings": True,
    "new_decoder_architecture": False,
    "multi_query": True,
    "parallel_attn": True,
    "bias": False,
}
"""Source: transformers `FalconConfig`."""


def spec_from_config(config: Fields) -> ModelSpec:
    """Read a `falcon` config."""
    config = config.with_defaults(DEFAULTS).renamed({"rms_norm_eps": "layer_norm_epsilon"})
    config.refuse("alibi", "positions as biases of the scores (alibi)", unless=(False,))
    num_heads, is_new = config.whole("num_attention_heads"), config.flag("new_decoder_architecture")
    num_kv_heads = config.whole("num_kv_heads", num_heads) if is_new or not config.flag("multi_query") else 1
    derived = {
        "num_key_value_heads": num_kv_heads,
        "intermediate_size": config.whole("ffn_hidden_size", 4 * config.whole("hidden_size")),
    }
    spec = base_config_spec(Fields({**config.values, **derived}, config.source), "falcon")
    biased = config.flag("bias")
    spec = replace(spec, parallel=_parallel(config), activation=read_activation(config, key="activation"))
    return replace(_with_parts(spec), qkv_bias=biased, o_bias=biased, mlp_bias=biased)


def spec_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata."""
    has_two_norms = "blk.0.attn_norm_2.weight" in header.tensor_shapes
    spec = replace(base_gguf_spec(header, "falcon"), parallel="two" if has_two_norms else "one", activation="gelu_erf")
    return _with_parts(spec)


def _parallel(config: Fields) -> Literal["one", "two"] | None:
    if config.flag("new_decoder_architecture"):
        return "two" if config.whole("num_ln_in_parallel_attn", 2) == 2 else "one"
    return "one" if config.flag("parallel_attn") else None


def _with_parts(spec: ModelSpec) -> ModelSpec:
    return replace(spec, norm="layer", norm_bias=True, mlp="plain")


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
    models="Falcon 7B, 40B and 180B, Falcon 2 (without alibi)",
    verified=("transformers", "GGUF twin"),
    model_types=("falcon",),
    spec_from_config=spec_from_config,
    gguf_architectures=("falcon",),
    spec_from_gguf=spec_from_gguf,
    tensors={
        **LLAMA_TENSORS,
        "layers": "model.h",
        "embed": "model.word_embeddings.weight",
        "final_norm": "model.ln_f.weight",
        **dict.fromkeys(("q", "k", "v"), "self_attention.query_key_value.weight"),
        "o": "self_attention.dense.weight",
        "up": "mlp.dense_h_to_4h.weight",
        "down": "mlp.dense_4h_to_h.weight",
    },
    gguf_tensors={**GGUF_TENSORS, **dict.fromkeys(("q", "k", "v"), "attn_qkv.weight")},
    qkv_by_kv_head=True,
    variant=_variant,
)
