"""Nomic BERT: a BERT encoder with rotary positions, a gated MLP and no biases in its matrices."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from headrace.models.families.bert import GGUF_ENCODER_TENSORS
from headrace.models.families.family import Family, GgufHeader, base_config_spec, base_gguf_spec, read_activation
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

_DEFAULTS: Final[Mapping[str, object]] = {
    "vocab_size": 30_528,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
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
    **dict.fromkeys(("q", "k", "v"), "attn.Wqkv.weight"),
    "o": "attn.out_proj.weight",
    "post_attn_norm": "norm1.weight",
    "gate": "mlp.fc12.weight",
    "up": "mlp.fc11.weight",
    "down": "mlp.fc2.weight",
    "post_mlp_norm": "norm2.weight",
}


def spec_from_config(config: Fields) -> ModelSpec:
    """Read a `nomic_bert` config, as released or as transformers 5 writes it."""
    config.refuse("activation_function", "an MLP without a silu gate", unless=("swiglu",))
    for key, part in (
        *(("prenorm", "norms before attention"), ("parallel_block", "attention beside the MLP")),
        *(("causal", "an encoder as a decoder"), ("use_rms_norm", "RMS norms in this family")),
        *(("qkv_proj_bias", "biases in attention"), ("mlp_fc1_bias", "biases in the MLP")),
        *(("mlp_fc2_bias", "biases in the MLP"), ("rotary_emb_interleaved", "an interleaved rotary embedding")),
    ):
        config.refuse(key, part, unless=(False,))
    config.refuse("rotary_emb_fraction", "a partial rotary embedding in this family", unless=(1, 1.0))
    config.refuse("rotary_emb_scale_base", "scaling of rotary pairs (xpos)")
    config = config.renamed(_PUBLISHED_KEYS).with_defaults(_DEFAULTS)
    spec = base_config_spec(config.renamed({"rms_norm_eps": "layer_norm_eps"}), "nomic_bert")
    spec = replace(spec, activation=read_activation(config, key="hidden_act"))
    return _post_norm(spec, token_types=config.whole("type_vocab_size"))


def spec_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata."""
    header.fields.refuse("attention.causal", "an encoder as a decoder", unless=(False,))
    token_types, _ = header.tensor_shapes.get(GGUF_ENCODER_TENSORS["token_types"], (0, 0))
    return _post_norm(base_gguf_spec(header, "nomic_bert"), token_types=token_types)


def _post_norm(spec: ModelSpec, *, token_types: int) -> ModelSpec:
    return replace(
        spec,
        is_causal=False,
        token_types=token_types,
        embedding_norm=True,
        norm="layer",
        norm_bias=True,
        norms="stream",
        tie_embeddings=True,
    )


NOMIC_BERT: Final = Family(
    name="nomic_bert",
    models="Nomic BERT encoders: nomic-embed-text, arctic-embed-m-long",
    verified=("transformers", "GGUF twin"),
    model_types=("nomic_bert",),
    spec_from_config=spec_from_config,
    gguf_architectures=("nomic-bert",),
    spec_from_gguf=spec_from_gguf,
    tensors=_TENSORS,
    gguf_tensors={**GGUF_ENCODER_TENSORS, **dict.fromkeys(("q", "k", "v"), "attn_qkv.weight")},
)
