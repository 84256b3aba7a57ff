"""Vocabularies that make `tokenizers` panic are refused, and a panic in a request is an error of that request."""

import base64
import json

import pytest

from headrace.core.errors import BrokenModel, EngineFailed, InvalidRequest
from headrace.inference.models.fields import Fields
from headrace.inference.models.hf_checkpoint import read_text_parts
from headrace.inference.models.tokenizer import Tokenizer
from headrace.inference.models.tokenizer_json import check_tokenizer_json
from tests.inference.models.model_files import byte_level_tokenizer


def with_merges(prefix, *merges):
    return json.dumps({"model": {"continuing_subword_prefix": prefix, "merges": merges}}).encode()


def read(folder, content):
    (folder / "tokenizer.json").write_bytes(content)
    return read_text_parts(folder, Fields({}, "config.json"), vocab_size=1000).tokenizer


@pytest.mark.parametrize("merge", [["x", "é"], "x é", ["x", "a"]])
def test_a_merge_without_the_prefix_of_continued_words_is_refused(merge):
    # tokenizers cuts the prefix off by its length: within a character, that ends the process.
    with pytest.raises(BrokenModel, match="continuing_subword_prefix"):
        check_tokenizer_json(with_merges("##", ["T", "##h"], merge), "tokenizer.json")


@pytest.mark.parametrize("content", [with_merges("##", ["T", "##h"], "Th ##e"), with_merges(None, ["x", "é"])])
def test_merges_with_the_prefix_and_vocabularies_without_one_are_accepted(content):
    check_tokenizer_json(content, "tokenizer.json")


@pytest.mark.parametrize("content", [b"", b"{}", b'{"model": {"continuing_subword_prefix": 1}}', b"\xff"])
def test_what_is_no_vocabulary_is_refused(content):
    with pytest.raises(BrokenModel, match="cannot be read"):
        check_tokenizer_json(content, "tokenizer.json")


def test_a_normalizer_that_panics_is_refused_when_the_model_is_loaded(tmp_path):
    made = json.loads(byte_level_tokenizer().to_str())
    made["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8="}  # a tree of one node, cut off
    with pytest.raises(BrokenModel, match=r"tokenizer\.json cannot be read"):
        read(tmp_path, json.dumps(made).encode())


def replacement(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


LONG_TEXTS = {
    "replacements": {
        "normalizer": {"type": "Sequence", "normalizers": 2 * [replacement({"String": "e"}, "e" * 90)]},
        "pre_tokenizer": None,
    },
    "a regex that matches nothing": {"normalizer": replacement({"Regex": "x*"}, "e" * 100)},
    "many regexes that match nothing": {"normalizer": [replacement({"Regex": r"\b"}, " ")] * 7},
    "byte-level rules": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": 9 * [{"type": "ByteLevel"}]}},
    "what is put before a text": {"normalizer": {"type": "Prepend", "prepend": "e" * 1000}},
    "a character": {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(bytes(4) + b"e" * 100).decode()}
    },
    "tokens": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "x", "type_id": 0}}] * 100,
            "special_tokens": {"x": {"id": "x", "ids": [1] * 100, "tokens": ["x"] * 100}},
        }
    },
}


@pytest.mark.parametrize("parts", LONG_TEXTS.values(), ids=LONG_TEXTS)
def test_rules_that_make_much_of_a_text_are_refused(parts):
    content = json.dumps(json.loads(byte_level_tokenizer().to_str()) | parts).encode()
    with pytest.raises(BrokenModel, match=r"tokenizer\.json has .*; expected at most"):
        check_tokenizer_json(content, "tokenizer.json")


@pytest.mark.parametrize(
    "model",
    [
        {"type": "WordPiece", "vocab": {"a": 0}, "max_input_chars_per_word": 1 << 60},
        {"type": "Unigram", "vocab": [["a", -1.0], ["a" * 257, -2]]},
    ],
    ids=["WordPiece", "Unigram"],
)
def test_models_that_take_long_for_each_character_are_refused(model):
    with pytest.raises(BrokenModel, match="; expected at most"):
        check_tokenizer_json(json.dumps({"model": model}).encode(), "tokenizer.json")


def test_rules_as_vocabularies_have_them_are_accepted():
    # XLM-RoBERTa: rules of SentencePiece, runs of blanks to one, and a mark of the blank.
    char_map = base64.b64encode(bytes(4) + b"e" * 33).decode()
    rules = [{"type": "Precompiled", "precompiled_charsmap": char_map}, replacement({"Regex": " {2,}"}, "\u2581")]
    rules += [replacement({"Regex": regex}, " ") for regex in (r"[^a-z\]*?]+", r"\s+", r"\p{P}", r"\(") * 5]
    parts = {"normalizer": {"type": "Sequence", "normalizers": rules}, "pre_tokenizer": {"type": "Metaspace"}}
    check_tokenizer_json(json.dumps({"model": {}} | parts).encode(), "tokenizer.json")


@pytest.mark.parametrize("settings", [{"bos_token": "\ud800"}, {"added_tokens_decoder": {"9": {"content": "x\udfff"}}}])
def test_a_token_with_half_of_a_pair_of_surrogates_is_refused(settings, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(BrokenModel, match=r"tokenizer_config\.json is not valid JSON: .* surrogates not allowed"):
        read(tmp_path, byte_level_tokenizer().to_str().encode())


def test_a_token_with_a_whole_pair_of_surrogates_is_added(tmp_path):
    size = byte_level_tokenizer().get_vocab_size()
    added = {str(size): {"content": "🦊"}, "9" * 5000: {"content": "ignored, as its id is none"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    tokenizer = read(tmp_path, byte_level_tokenizer().to_str().encode())
    assert tokenizer.encode("🦊", add_special_tokens=False) == [size]


class PanicException(BaseException):
    """Stands for the class of a Rust library, which cannot be imported."""


class _Backend:
    """A tokenizer whose every call fails."""

    normalizer = pre_tokenizer = None

    def __init__(self, error):
        self._error = error
        self.decoder = byte_level_tokenizer().decoder

    def get_added_tokens_decoder(self):
        return {}

    def encode(self, _text, *, add_special_tokens):
        raise self._error

    def encode_batch_fast(self, _texts, *, add_special_tokens):
        raise self._error


@pytest.mark.parametrize("text", ["short", "long" * 5000])
@pytest.mark.parametrize(
    ("error", "expected"),
    [(PanicException("index out of bounds"), EngineFailed), (Exception("no [UNK]"), InvalidRequest)],
)
def test_an_error_of_the_library_is_an_error_of_the_request(text, error, expected):
    tokenizer = Tokenizer(_Backend(error), vocab_size=10)
    with pytest.raises(expected, match=str(error).replace("[", r"\[")):
        tokenizer.encode(text)
    with pytest.raises(expected):
        tokenizer.encode_segments(text, text)


def test_an_interrupt_passes():
    with pytest.raises(KeyboardInterrupt):
        Tokenizer(_Backend(KeyboardInterrupt()), vocab_size=10).encode("a")
