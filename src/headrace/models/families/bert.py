"""BERT, RoBERTa and XLM-RoBERTa: encoders, whose tokens attend to all of their sequence."""

from collections.abc import Mapping
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

_BERT: Final[Mapping[str, object]] = {
    "vocab_size": 30_522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
"""Source: transformers `BertConfig`, `RobertaConfig`."""
_ROBERTA: Final = {**_BERT, "vocab_size": 50_265}
_POSITION_OFFSET: Final = 2
"""RoBERTa's positions start after the padding token's id, which is 1."""
_TENSORS: Final = {
    "layers": "model.encoder.layer",
    "embed": "model.embeddings.word_embeddings.weight",
    "positions": "model.embeddings.position_embeddings.weight",
    "token_types": "model.embeddings.token_type_embeddings.weight",
    "embed_norm": "model.embeddings.LayerNorm.weight",
    "q": "attention.self.query.weight",
    "k": "attention.self.key.weight",
    "v": "attention.self.value.weight",
    "o": "attention.output.dense.weight",
    "post_attn_norm": "attention.output.LayerNorm.weight",
    "up": "intermediate.dense.weight",
    "down": "output.dense.weight",
    "post_mlp_norm": "output.LayerNorm.weight",
}
GGUF_ENCODER_TENSORS: Final = {
    **GGUF_TENSORS,
    "token_types": "token_types.weight",
    "embed_norm": "token_embd_norm.weight",
    "post_attn_norm": "attn_output_norm.weight",
    "post_mlp_norm": "layer_output_norm.weight",
}


def bert_from_config(config: Fields) -> ModelSpec:
    """Read a `bert` config."""
    return _encoder(config.with_defaults(_BERT), "bert", offset=0)


def bert_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata; the position table starts with the row of the first token."""
    header.fields.refuse("attention.causal", "an encoder as a decoder", unless=(False,))
    spec = replace(base_gguf_spec(header, "bert"), activation="gelu_erf")
    token_types, _ = header.tensor_shapes.get(GGUF_ENCODER_TENSORS["token_types"], (0, 0))
    positions, _ = header.tensor_shapes.get(GGUF_TENSORS["positions"], (spec.max_positions, 0))
    return _post_norm(spec, positions=min(spec.max_positions, positions), token_types=token_types)


def roberta_from_config(config: Fields) -> ModelSpec:
    """Read a `roberta` or `xlm-roberta` config, whose position table starts with rows that no token uses."""
    config = config.with_defaults({**_ROBERTA, "pad_token_id": 1})
    config.refuse("pad_token_id", "positions that do not start at 2", unless=(_POSITION_OFFSET - 1,))
    return _encoder(config, "roberta", offset=_POSITION_OFFSET)


def _encoder(config: Fields, family: str, *, offset: int) -> ModelSpec:
    config.refuse("position_embedding_type", "relative positions", unless=("absolute",))
    config.refuse("is_decoder", "an encoder as a decoder", unless=(False,))
    config.refuse("add_cross_attention", "attention to an encoder", unless=(False,))
    spec = base_config_spec(config.renamed({"rms_norm_eps": "layer_norm_eps"}), family)
    spec = replace(spec, activation=read_activation(config, key="hidden_act"))
    return _post_norm(spec, positions=spec.max_positions - offset, token_types=config.whole("type_vocab_size"))


def _post_norm(spec: ModelSpec, *, positions: int, token_types: int) -> ModelSpec:
    return replace(
        spec,
        is_causal=False,
        max_positions=positions,
        learned_positions=positions,
        rope_of_layer=(-1,) * spec.num_layers,
        token_types=token_types,
        embedding_norm=True,
        norm="layer",
        norm_bias=True,
        norms="stream",
        mlp="plain",
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        tie_embeddings=True,
    )


BERT: Final = Family(
    name="bert",
    models="BERT encoders: MiniLM, bge, e5, gte (embeddings)",
    verified=("transformers", "GGUF twin", "real model"),
    model_types=("bert",),
    spec_from_config=bert_from_config,
    gguf_architectures=("bert",),
    spec_from_gguf=bert_from_gguf,
    tensors=_TENSORS,
    gguf_tensors=GGUF_ENCODER_TENSORS,
)
ROBERTA: Final = Family(
    name="roberta",
    models="RoBERTa and XLM-RoBERTa encoders: bge-m3, multilingual e5, bge-reranker",
    verified=("transformers",),
    model_types=("roberta", "xlm-roberta"),
    spec_from_config=roberta_from_config,
    tensors=_TENSORS,
    position_offset=_POSITION_OFFSET,
)
