"""BERT, RoBERTa and XLM-RoBERTa: encoders, whose tokens attend to all of their sequence."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from headrace.inference.models.families.family import (
    ALL_BIASED,
    ENCODER_PARTS,
    GGUF_TENSORS,
    GPT_PARTS,
    Family,
    GgufHeader,
)
from headrace.inference.models.families.reading import config_spec, gguf_spec, without_positions
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

DEFAULTS: Final[Mapping[str, object]] = {
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


def gguf_encoder_spec(family: Family, header: GgufHeader) -> ModelSpec:
    header.fields.refuse("attention.causal", "an encoder as a decoder", unless=(False,))
    token_types, _ = header.tensor_shapes.get(GGUF_ENCODER_TENSORS["token_types"], (0, 0))
    return replace(gguf_spec(family, header), token_types=token_types)


def _bert_from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata; the position table starts with the row of the first token."""
    spec = gguf_encoder_spec(family, header)
    positions, _ = header.tensor_shapes.get(GGUF_TENSORS["positions"], (spec.max_positions, 0))
    return _with_positions(spec, min(spec.max_positions, positions), spec.token_types)


def _roberta_from_config(family: Family, config: Fields) -> ModelSpec:
    """Read a `roberta` or `xlm-roberta` config, whose position table starts with rows that no token uses."""
    config.refuse("pad_token_id", "positions that do not start at 2", unless=(_POSITION_OFFSET - 1,))
    return _encoder(config_spec(family, config), config, offset=_POSITION_OFFSET)


def _encoder(spec: ModelSpec, config: Fields, *, offset: int) -> ModelSpec:
    return _with_positions(spec, spec.max_positions - offset, config.whole("type_vocab_size"))


def _with_positions(spec: ModelSpec, positions: int, token_types: int) -> ModelSpec:
    spec = replace(spec, max_positions=positions, learned_positions=positions, token_types=token_types)
    return without_positions(spec)


BERT: Final = Family(
    name="bert",
    models="BERT encoders: MiniLM, bge, e5, gte (embeddings)",
    verified=("transformers", "GGUF twin", "real model"),
    defaults=DEFAULTS,
    keys={"rms_norm_eps": "layer_norm_eps"},
    refused={
        "position_embedding_type": ("absolute", "relative positions"),
        "is_decoder": (False, "an encoder as a decoder"),
        "add_cross_attention": (False, "attention to an encoder"),
    },
    activation="gelu_erf",
    reads_activation=True,
    parts={**ENCODER_PARTS, **GPT_PARTS, **ALL_BIASED, "norms": "stream"},
    spec_from_config=lambda family, config: _encoder(config_spec(family, config), config, offset=0),
    gguf_architectures=("bert",),
    spec_from_gguf=_bert_from_gguf,
    tensors=_TENSORS,
    gguf_tensors=GGUF_ENCODER_TENSORS,
)
ROBERTA: Final = replace(
    BERT,
    name="roberta",
    models="RoBERTa and XLM-RoBERTa encoders: bge-m3, multilingual e5, bge-reranker",
    verified=("transformers",),
    model_types=("roberta", "xlm-roberta"),
    defaults={**DEFAULTS, "vocab_size": 50_265, "pad_token_id": 1},
    spec_from_config=_roberta_from_config,
    gguf_architectures=(),
    position_offset=_POSITION_OFFSET,
)
