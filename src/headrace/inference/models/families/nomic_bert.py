"""Nomic BERT: a BERT encoder with rotary positions, a gated MLP and no biases in its matrices."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from headrace.inference.models.families.bert import DEFAULTS as BERT_DEFAULTS
from headrace.inference.models.families.bert import GGUF_ENCODER_TENSORS, gguf_encoder_spec
from headrace.inference.models.families.family import ENCODER_PARTS, QKV, Family
from headrace.inference.models.families.reading import config_spec
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

_DEFAULTS: Final[Mapping[str, object]] = {
    **BERT_DEFAULTS,
    "vocab_size": 30_528,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rope_theta": 1000.0,
}
"""Source: transformers `NomicBertConfig`."""
_PUBLISHED_KEYS: Final = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "max_trained_positions",
    "layer_norm_eps": "layer_norm_epsilon",
    "rope_theta": "rotary_emb_base",
}
"""
Keys of the released checkpoints. Longer contexts than they were trained with scale the rotary embedding by the length
of the input, which would make it depend on the request; `--rope` sets a scaling for all.
"""
_TENSORS: Final = {
    "layers": "model.encoder.layers",
    "embed": "model.embeddings.word_embeddings.weight",
    "token_types": "model.embeddings.token_type_embeddings.weight",
    "embed_norm": "model.emb_ln.weight",
    **dict.fromkeys(QKV, "attn.Wqkv.weight"),
    "o": "attn.out_proj.weight",
    "post_attn_norm": "norm1.weight",
    "gate": "mlp.fc12.weight",
    "up": "mlp.fc11.weight",
    "down": "mlp.fc2.weight",
    "post_mlp_norm": "norm2.weight",
}


def _from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a `nomic_bert` config, as released or as transformers 5 writes it."""
    config.refuse("rotary_emb_fraction", "a partial rotary embedding in this family", unless=(1, 1.0))
    config.refuse("rotary_emb_scale_base", "scaling of rotary pairs (xpos)")
    config = config.renamed(_PUBLISHED_KEYS).with_defaults(_DEFAULTS).renamed({"rms_norm_eps": "layer_norm_eps"})
    return replace(config_spec(family, config), token_types=config.whole("type_vocab_size"))


NOMIC_BERT: Final = Family(
    name="nomic_bert",
    models="Nomic BERT encoders: nomic-embed-text, arctic-embed-m-long",
    verified=("transformers", "GGUF twin"),
    refused={
        "activation_function": ("swiglu", "an MLP without a silu gate"),
        "prenorm": (False, "norms before attention"),
        "parallel_block": (False, "attention beside the MLP"),
        "causal": (False, "an encoder as a decoder"),
        "use_rms_norm": (False, "RMS norms in this family"),
        "qkv_proj_bias": (False, "biases in attention"),
        "mlp_fc1_bias": (False, "biases in the MLP"),
        "mlp_fc2_bias": (False, "biases in the MLP"),
        "rotary_emb_interleaved": (False, "an interleaved rotary embedding"),
    },
    reads_activation=True,
    parts={**ENCODER_PARTS, "norm_bias": True, "norms": "stream"},
    spec_from_config=_from_config,
    gguf_architectures=("nomic-bert",),
    spec_from_gguf=gguf_encoder_spec,
    tensors=_TENSORS,
    gguf_tensors={**GGUF_ENCODER_TENSORS, **dict.fromkeys(QKV, "attn_qkv.weight")},
)
