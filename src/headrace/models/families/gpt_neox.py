"""GPT-NeoX and Pythia: the MLP beside attention with a norm of its own, and partly turning heads."""

from dataclasses import replace
from typing import Final

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

DEFAULTS: Final = {"hidden_act": "gelu", "max_position_embeddings": 2048, "layer_norm_eps": 1e-5}
"""Source: transformers `GPTNeoXConfig`."""
ROTARY_FRACTION: Final = 0.25
_OTHER_NAMES: Final = {
    "rms_norm_eps": "layer_norm_eps",
    "partial_rotary_factor": "rotary_pct",
    "rope_theta": "rotary_emb_base",
}


def spec_from_config(config: Fields) -> ModelSpec:
    """Read a `gpt_neox` config."""
    config = config.with_defaults(DEFAULTS).renamed(_OTHER_NAMES)
    spec = base_config_spec(config, "gpt_neox", rotary_fraction=ROTARY_FRACTION)
    biased = config.flag("attention_bias", default=True)
    spec = _with_parts(spec, is_parallel=config.flag("use_parallel_residual", default=True))
    return replace(spec, activation=read_activation(config), qkv_bias=biased, o_bias=biased)


def spec_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata."""
    spec = base_gguf_spec(header, "gpt_neox")
    spec = _with_parts(spec, is_parallel=header.fields.flag("use_parallel_residual", default=True))
    return replace(spec, activation="gelu_erf", qkv_bias=True, o_bias=True)


def _with_parts(spec: ModelSpec, *, is_parallel: bool) -> ModelSpec:
    return replace(
        spec, norm="layer", norm_bias=True, mlp="plain", mlp_bias=True, parallel="two" if is_parallel else None
    )


GPT_NEOX: Final = Family(
    name="gpt_neox",
    models="GPT-NeoX, Pythia",
    verified=("transformers", "GGUF twin"),
    model_types=("gpt_neox",),
    spec_from_config=spec_from_config,
    gguf_architectures=("gptneox",),
    spec_from_gguf=spec_from_gguf,
    tensors={
        **LLAMA_TENSORS,
        "embed": "model.embed_in.weight",
        "final_norm": "model.final_layer_norm.weight",
        "lm_head": "embed_out.weight",
        **dict.fromkeys(("q", "k", "v"), "attention.query_key_value.weight"),
        "o": "attention.dense.weight",
        "up": "mlp.dense_h_to_4h.weight",
        "down": "mlp.dense_4h_to_h.weight",
    },
    gguf_tensors={**GGUF_TENSORS, **dict.fromkeys(("q", "k", "v"), "attn_qkv.weight")},
    qkv_by_kv_head=True,
)
