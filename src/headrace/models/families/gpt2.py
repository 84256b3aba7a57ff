"""GPT-2: learned positions, transposed matrices."""

from dataclasses import replace
from typing import Final

from headrace.models.families.family import (
    GGUF_TENSORS,
    Family,
    GgufHeader,
    base_config_spec,
    base_gguf_spec,
    read_activation,
)
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

DEFAULTS: Final = {
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50_257,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
    "tie_word_embeddings": True,
}
"""Source: transformers `GPT2Config`."""
_OTHER_NAMES: Final = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "rms_norm_eps": "layer_norm_epsilon",
}


def spec_from_config(config: Fields) -> ModelSpec:
    """Read a `gpt2` config."""
    config = config.with_defaults(DEFAULTS)
    config.refuse("scale_attn_weights", "attention scores without a scale", unless=(True,))
    config.refuse("scale_attn_by_inverse_layer_idx", "a scale of attention scores for each layer", unless=(False,))
    config.refuse("add_cross_attention", "attention to an encoder", unless=(False,))
    inner = config.whole("n_inner", 4 * config.whole("n_embd"))
    config = Fields({**config.renamed(_OTHER_NAMES).values, "intermediate_size": inner}, config.source)
    return replace(
        _with_parts(base_config_spec(config, "gpt2")), activation=read_activation(config, key="activation_function")
    )


def spec_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata."""
    return _with_parts(base_gguf_spec(header, "gpt2"))


def _with_parts(spec: ModelSpec) -> ModelSpec:
    return replace(
        spec,
        norm="layer",
        norm_bias=True,
        mlp="plain",
        activation="gelu_tanh",
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        learned_positions=spec.max_positions,
        rope_of_layer=(-1,) * spec.num_layers,
    )


GPT2: Final = Family(
    name="gpt2",
    models="GPT-2",
    verified=("transformers", "GGUF twin"),
    model_types=("gpt2",),
    spec_from_config=spec_from_config,
    gguf_architectures=("gpt2",),
    spec_from_gguf=spec_from_gguf,
    tensors={
        "layers": "model.h",
        "embed": "model.wte.weight",
        "positions": "model.wpe.weight",
        "final_norm": "model.ln_f.weight",
        "lm_head": "lm_head.weight",
        "attn_norm": "ln_1.weight",
        **dict.fromkeys(("q", "k", "v"), "attn.c_attn.weight"),
        "o": "attn.c_proj.weight",
        "mlp_norm": "ln_2.weight",
        "up": "mlp.c_fc.weight",
        "down": "mlp.c_proj.weight",
    },
    gguf_tensors={**GGUF_TENSORS, **dict.fromkeys(("q", "k", "v"), "attn_qkv.weight")},
    transposed=True,
)
