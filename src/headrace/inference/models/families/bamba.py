"""Bamba: state space models in most layers, Llama's attention with half of each head turning in the others."""

from typing import Final

from headrace.inference.models.families.family import ATTENTION_BIAS, LLAMA_TENSORS, Family
from headrace.inference.models.families.mamba import read_ssd, ssd_tensors, with_ssd
from headrace.inference.models.families.reading import config_spec
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec


def _from_config(family: Family, config: Fields) -> ModelSpec:
    spec = config_spec(family, config)
    with_attention = config.numbers("attn_layer_indices")
    is_ssd = [layer not in with_attention for layer in range(spec.num_layers)]
    return with_ssd(spec, read_ssd(config, norm_eps=spec.norm_eps), is_ssd, config.source)


BAMBA: Final = Family(
    name="bamba",
    models="Bamba",
    verified=("transformers",),
    # Source: transformers `BambaConfig`.
    defaults={"num_key_value_heads": 8, "max_position_embeddings": 262_144, "rms_norm_eps": 1e-5},
    bias_flags=ATTENTION_BIAS,
    rotary_fraction=0.5,
    spec_from_config=_from_config,
    tensors={
        **LLAMA_TENSORS,
        **ssd_tensors("mamba"),
        "final_norm": "model.final_layernorm.weight",
        "mlp_norm": "pre_ff_layernorm.weight",
        **{part: f"feed_forward.{part}_proj.weight" for part in ("gate", "up", "down")},
    },
)
