"""
ModernBERT: an encoder with rotary positions, norms before attention and MLP, and local layers between global ones.

The first layer has no norm before attention, because the embeddings are normed.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from headrace.inference.models.families.family import ATTENTION_BIAS, ENCODER_PARTS, QKV, Family
from headrace.inference.models.families.reading import config_spec, layer_windows, with_local_rope
from headrace.inference.models.families.rope_config import rope_from_scaling
from headrace.inference.models.fields import Fields
from headrace.inference.models.rope import FULL, SLIDING
from headrace.inference.models.spec import ModelSpec, RopeSpec

_DEFAULTS: Final[Mapping[str, object]] = {
    "vocab_size": 50_368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "hidden_activation": "gelu",
    "max_position_embeddings": 8192,
    "norm_eps": 1e-5,
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
}
"""Source: transformers `ModernBertConfig`."""
_THETAS: Final = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}
"""Keys of transformers 4, and defaults."""
_TENSORS: Final = {
    "layers": "model.layers",
    "embed": "model.embeddings.tok_embeddings.weight",
    "embed_norm": "model.embeddings.norm.weight",
    "final_norm": "model.final_norm.weight",
    "attn_norm": "attn_norm.weight",
    **dict.fromkeys(QKV, "attn.Wqkv.weight"),
    **dict.fromkeys(("q_bias", "k_bias", "v_bias"), "attn.Wqkv.bias"),
    "o": "attn.Wo.weight",
    "mlp_norm": "mlp_norm.weight",
    **dict.fromkeys(("gate", "up"), "mlp.Wi.weight"),
    **dict.fromkeys(("gate_bias", "up_bias"), "mlp.Wi.bias"),
    "down": "mlp.Wo.weight",
}


def _from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a `modernbert` config in the format of transformers 4 or 5."""
    rope_keys = [key for key in config.values if key.startswith("rope_")]
    spec = config_spec(family, config.without(*rope_keys))
    spec = replace(spec, ropes=(_rope(config, spec, FULL), _rope(config, spec, SLIDING)))
    every = config.whole("global_attn_every_n_layers")
    slides = tuple(layer % every != 0 for layer in range(spec.num_layers))
    return with_local_rope(layer_windows(config, spec, config.whole("local_attention") // 2 + 1, slides))


def _rope(config: Fields, spec: ModelSpec, layer_type: str) -> RopeSpec:
    key, default = _THETAS[layer_type]
    scaling = config.sub("rope_parameters").sub(layer_type)
    values = {"rope_theta": config.positive(key, default), **config.sub("rope_scaling").values, **scaling.values}
    return rope_from_scaling(Fields(values, scaling.source), spec.head_dim, spec.max_positions)


MODERNBERT: Final = Family(
    name="modernbert",
    models="ModernBERT encoders: gte-modernbert, modernbert-embed, granite-embedding r2, and their rerankers",
    verified=("transformers",),
    defaults=_DEFAULTS,
    keys={"rms_norm_eps": "norm_eps"},
    activation_key="hidden_activation",
    reads_activation=True,
    bias_flags={**ATTENTION_BIAS, "mlp_bias": "mlp_bias", "norm_bias": "norm_bias"},
    parts={**ENCODER_PARTS, "first_attn_norm": False},
    spec_from_config=_from_config,
    tensors=_TENSORS,
)
