"""`tokenizer.model` files give the tokens of the sentencepiece package; broken ones end in an error that names them."""

import io
import json
import struct

import pytest
import sentencepiece
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.families.registry import from_config
from headrace.inference.models.fields import Fields
from headrace.inference.models.hf_checkpoint import read_hf_checkpoint
from headrace.inference.models.hf_tokenizer import read_hf_tokenizer
from headrace.inference.models.places import stored_name
from headrace.inference.models.sentencepiece import parse_sentencepiece
from tests.inference.models.model_files import CORPUS, TINY_LLAMA, random_weights, refusal, write_folder
from tests.waiting import WAIT_S

LLAMA = {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity", "split_digits": True}
LLAMA |= {"remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True}
KINDS = {
    "Llama": LLAMA,
    "Gemma": LLAMA | {"add_dummy_prefix": False, "user_defined_symbols": ["<start>", "\n\n", "▁▁"]},
    "Unigram with bytes": {"model_type": "unigram", "byte_fallback": True, "normalization_rule_name": "identity"},
    "Unigram": {"model_type": "unigram"},
    "BPE in NFKC": {"model_type": "bpe", "normalization_rule_name": "nfkc"},
}
TEXTS = [
    *CORPUS[:3],
    "  two  spaces, a tab\t and\r\nlines \n\n\n end ",
    "3.14159 = π; ﬁne ½ Å Ⅷ ㍿ \uff46\uff55\uff4c\uff4c width",
    "🦊👩‍👩‍👧 \u200b\u00a0\u3000 zero widths",
    "",
    " ",
    "don't\x00 stop <start>quick<start>",
]


def train(**options):
    """A small model, trained by the package."""
    out = io.BytesIO()
    limits = {"vocab_size": 400, "hard_vocab_limit": False, "minloglevel": 2, "character_coverage": 0.98}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 4), model_writer=out, num_threads=1, **limits, **options
    )
    return out.getvalue()


def field(number, content, wire_type=2):
    """A field of a protobuf message."""
    length = b""
    if wire_type == 2:
        size = len(content)
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        length += bytes([size])
    return bytes([number << 3 | wire_type]) + length + content


WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "Zwölf",
    "über",
    "den",
    "",
    "\n",
    "12",
    "'",
    "テキスト",
    "кириллицы",
    "é",
    "🦊",
]


class Trained(dict):
    """Models by kind."""

    def __repr__(self):
        return f"Trained({list(self)})"  # Hypothesis shows arguments


@pytest.fixture(scope="module")
def trained():
    return Trained({name: train(**options) for name, options in KINDS.items()})


def write_model(folder, content):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.model").write_bytes(content)
    return folder


def read(folder, **config):
    nothing = Fields({}, "")
    return read_hf_tokenizer(folder, settings=Fields(config, ""), config=nothing, generation=nothing, vocab_size=1000)


@pytest.mark.parametrize("kind", KINDS)
def test_mixed_texts_have_the_tokens_of_sentencepiece(kind, trained, tmp_path):
    package = sentencepiece.SentencePieceProcessor(model_proto=trained[kind])
    tokenizer = read(write_model(tmp_path, trained[kind]))

    for text in TEXTS:
        assert tokenizer.encode(text, add_special_tokens=False) == package.encode(text), text


@pytest.mark.parametrize("kind", ["Llama", "Gemma", "Unigram with bytes"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(st.sampled_from(WORDS)))
def test_texts_of_known_and_unknown_words_have_the_tokens_of_sentencepiece(kind, words, trained, tmp_path):
    package = sentencepiece.SentencePieceProcessor(model_proto=trained[kind])
    tokenizer = read(write_model(tmp_path, trained[kind]))
    for text in (" ".join(words), "".join(words)):
        assert tokenizer.encode(text, add_special_tokens=False) == package.encode(text)


def test_bos_comes_first_unless_the_settings_say_otherwise(trained, tmp_path):
    folder = write_model(tmp_path, trained["Llama"])
    package = sentencepiece.SentencePieceProcessor(model_proto=trained["Llama"])
    ids = package.encode("The quick fox")

    assert read(folder).encode("The quick fox") == [package.bos_id(), *ids]
    assert read(folder).decode_whole([package.bos_id(), *ids]) == "<s> The quick fox"
    assert read(folder).decode_whole(ids) == package.decode(ids)
    assert read(folder, add_bos_token=False).encode("The quick fox") == ids
    assert read(folder, add_bos_token=True, add_eos_token=True).encode("The quick fox")[-1] == package.eos_id()
    assert read(folder).eos_token_ids == {package.eos_id()}
    assert read(folder).special_names == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert read(folder).decode(ids) == " The quick fox"


def test_a_folder_with_a_model_of_sentencepiece_and_added_tokens_is_read(trained, tmp_path):
    size = sentencepiece.SentencePieceProcessor(model_proto=trained["Llama"]).vocab_size()
    config = TINY_LLAMA | {"vocab_size": size + 2}
    family, spec = from_config(Fields(config, ""))
    tensors = {stored_name(name, family.tensors): values for name, values in random_weights(spec).items()}
    folder = write_model(write_folder(tmp_path / "m", config, tensors), trained["Llama"])
    (folder / "added_tokens.json").write_text(json.dumps({"<|im_end|>": size + 1, "<|im_start|>": size}))
    (folder / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": ["<|im_end|>"]}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": "{{ 1 }}"}))

    text = read_hf_checkpoint(folder).text
    tokenizer = text.tokenizer
    assert tokenizer.encode("<|im_start|>", add_special_tokens=False) == [size]
    assert tokenizer.eos_token_ids >= {size + 1}
    assert size + 1 in tokenizer.special_ids
    assert size not in tokenizer.special_ids
    assert text.templates == {"default": "{{ 1 }}"}


def test_words_and_characters_as_units_are_refused(tmp_path):
    with pytest.raises(UnsupportedModel, match="of type 4; expected 1"):
        read(write_model(tmp_path, train(model_type="char")))
    with pytest.raises(UnsupportedModel, match="end of words"):
        read(write_model(tmp_path, train(model_type="bpe", treat_whitespace_as_suffix=True)))


@pytest.mark.timeout(WAIT_S)  # its 10^14 characters of halves would take days
def test_a_piece_that_is_too_long_to_be_cut_into_halves_is_refused(trained, tmp_path):
    piece = field(1, b"a" * 10_000_000) + field(2, struct.pack("<f", -1.0), wire_type=5)
    with pytest.raises(BrokenModel, match=r"tokenizer.model cannot be read: a piece has 10000000 characters; expected"):
        read(write_model(tmp_path, trained["Llama"] + field(1, piece)))


def test_more_pieces_than_any_vocabulary_has_are_refused():
    with pytest.raises(BrokenModel, match="more than 4000000 pieces"):
        parse_sentencepiece(field(1, b"") * 4_000_001, "tokenizer.model")


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_files_end_in_a_tokenizer_or_in_an_error_that_names_the_file(data, trained, tmp_path):
    content = bytearray(trained[data.draw(st.sampled_from(sorted(KINDS)))])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    length = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    folder = write_model(tmp_path, bytes(content[:length]))
    text = refusal(lambda: read(folder).encode("The quick fox", add_special_tokens=False))
    assert not text or "tokenizer.model" in text


@given(st.binary(max_size=200))
def test_any_bytes_end_in_a_model_or_in_an_error(content):
    text = refusal(lambda: parse_sentencepiece(content, "tokenizer.model"))
    assert not text or "tokenizer.model" in text
