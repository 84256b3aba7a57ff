"""The pooling and the WordPiece vocabulary that a GGUF file names."""

import pytest

from headrace.core.errors import BrokenModel
from headrace.inference.models.families.registry import from_config
from headrace.inference.models.fields import Fields
from headrace.inference.models.gguf_reader import read_gguf_checkpoint
from headrace.inference.models.gguf_tokenizer import wordpiece, wordpieces
from headrace.inference.models.places import gguf_name
from tests.inference.models.model_files import (
    TINY_LLAMA,
    byte_level_tokenizer,
    gguf_metadata,
    gguf_vocabulary,
    random_weights,
    refusal,
    write_gguf,
)

CONTROL, NORMAL = 3, 1
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁fox", "es", "▁!"]
TYPES = [CONTROL, CONTROL, CONTROL, CONTROL, NORMAL, NORMAL, NORMAL]


def decoder_file(folder, **more):
    _, spec = from_config(Fields(TINY_LLAMA, ""))
    tensors = {gguf_name(name): values for name, values in random_weights(spec).items()}
    metadata = gguf_metadata(spec) | gguf_vocabulary(byte_level_tokenizer())
    kept = {key: value for key, value in (metadata | more).items() if value is not None}
    return write_gguf(folder / "m.gguf", kept, tensors)


@pytest.mark.parametrize(("kind", "method"), [(1, "mean"), (2, "cls"), (3, "last")])
def test_a_decoder_pools_as_its_file_says(kind, method, tmp_path):
    checkpoint = read_gguf_checkpoint(decoder_file(tmp_path, **{"llama.pooling_type": kind}))
    assert checkpoint.pooler.method == method
    assert checkpoint.pooler.normalizes


@pytest.mark.parametrize("more", [{}, {"llama.pooling_type": 0}])
def test_a_file_without_pooling_generates(more, tmp_path):
    checkpoint = read_gguf_checkpoint(decoder_file(tmp_path, **more))
    assert checkpoint.pooler is None
    assert checkpoint.generates


def test_a_reranker_is_refused(tmp_path):
    file = decoder_file(tmp_path, **{"llama.pooling_type": 4})
    assert "pooling_type is 4; expected 0 to 3" in refusal(lambda: read_gguf_checkpoint(file))


def test_a_wordpiece_vocabulary_without_ends_is_refused(tmp_path):
    without = dict.fromkeys(("merges", "bos_token_id", "eos_token_id"))
    vocabulary = {"model": "bert", "tokens": ["a"] * 320, "token_type": [NORMAL] * 320, **without}
    more = {f"tokenizer.ggml.{key}": value for key, value in vocabulary.items()}
    file = decoder_file(tmp_path, **more)
    with pytest.raises(BrokenModel, match=r"no cls_token_id and no piece \[CLS\]"):
        read_gguf_checkpoint(file)


@pytest.mark.parametrize(("more", "tokens"), [((), ["fox", "##es", "!"]), (("▁Fox",), ["Fox", "##es", "!"])])
def test_texts_are_lowercased_unless_a_piece_has_a_capital_letter(more, tokens):
    pieces = wordpieces([*PIECES, *more], [*TYPES, *[NORMAL] * len(more)])
    backend = wordpiece(pieces, [*TYPES, *[NORMAL] * len(more)], "[UNK]")
    assert backend.encode("Foxes!").tokens == tokens
