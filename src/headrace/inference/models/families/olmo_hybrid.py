"""OLMo Hybrid: OLMo 3's attention in every fourth layer, the gated delta rule with norms before it in the others."""

from typing import Final

from headrace.inference.models.families.family import (
    ATTENTION_BIAS,
    POST_NORM_TENSORS,
    QKV_INDEX,
    Family,
)
from headrace.inference.models.families.qwen_delta import with_delta
from headrace.inference.models.families.reading import config_spec, without_positions
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

_NORM_EPS: Final = 1e-5
"""Of the norm after the delta rule, whatever that of others. Source: transformers `OlmoHybridGatedDeltaNet`."""


def _from_config(family: Family, config: Fields) -> ModelSpec:
    spec = config_spec(family, config)
    heads = config.whole("num_attention_heads")
    key_heads = config.whole("linear_num_key_heads", heads)
    key_dim = config.whole("linear_key_head_dim", int(0.75 * spec.hidden_size / key_heads))
    sizes = {
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": heads,
        "linear_key_head_dim": key_dim,
        "linear_value_head_dim": 2 * key_dim,
    }
    scale = 2.0 if config.flag("linear_allow_neg_eigval", default=True) else 1.0
    spec = with_delta(spec, config.with_defaults(sizes), beta_scale=scale, norm_eps=_NORM_EPS)
    has_rope = config.sub("rope_parameters").has("rope_theta") or config.has("rope_theta")
    return spec if has_rope else without_positions(spec)


OLMO_HYBRID: Final = Family(
    name="olmo_hybrid",
    models="OLMo Hybrid",
    verified=("transformers",),
    # Source: transformers `OlmoHybridConfig`.
    defaults={"max_position_embeddings": 65_536, "rms_norm_eps": 1e-6},
    bias_flags=ATTENTION_BIAS,
    parts={"norms": "post", "state_norms": "pre", "qk_norm": "full"},
    spec_from_config=_from_config,
    # transformers 5 writes this name into layers with attention too.
    other_names={"post_attention_layernorm": "feedforward_layer_norm"},
    tensors={
        **POST_NORM_TENSORS,
        "delta.attn_norm": "attention_layer_norm.weight",
        "delta.mlp_norm": "feedforward_layer_norm.weight",
        **{f"mix_{part}": f"linear_attn.{part}_proj.weight" for part in "qkv"},
        "mix_z": "linear_attn.g_proj.weight",
        "mix_beta": "linear_attn.b_proj.weight",
        "mix_dt": "linear_attn.a_proj.weight",
        "mix_conv": f"linear_attn.{QKV_INDEX}_conv1d.weight",
        "mix_decay": "linear_attn.A_log",
        "mix_dt_bias": "linear_attn.dt_bias",
        "mix_norm": "linear_attn.o_norm.weight",
        "delta.o": "linear_attn.o_proj.weight",
    },
)
