import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from headrace.core.errors import BrokenModel, InvalidRequest, UnsupportedModel
from headrace.inference.models.fields import Fields
from headrace.inference.models.hf_tokenizer import read_hf_tokenizer
from headrace.inference.models.tokenizer import LONG_TEXT_CHARACTERS, Tokenizer
from tests.inference.models.model_files import byte_level_tokenizer, sentencepiece_tokenizer

BACKEND = byte_level_tokenizer()
BACKEND.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
BYTE_LEVEL = Tokenizer(BACKEND, vocab_size=330, bos_token_id=0, eos_token_ids=[1])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def sentencepiece(*, prefix: bool) -> Tokenizer:
    backend = sentencepiece_tokenizer(prefix=prefix)
    return Tokenizer(backend, vocab_size=backend.get_vocab_size())


@given(TEXTS)
def test_the_bytes_of_byte_level_tokens_join_to_the_text(text):
    ids = BYTE_LEVEL.encode(text)

    assert b"".join(BYTE_LEVEL.token_bytes(index) for index in ids) == text.encode()
    assert BYTE_LEVEL.decode(ids, skip_special_tokens=False) == text


@given(TEXTS.filter(lambda text: "\u2581" not in text))
def test_the_bytes_of_sentencepiece_tokens_join_to_the_text(text):
    plain, prefixed = sentencepiece(prefix=False), sentencepiece(prefix=True)

    assert plain.decode(plain.encode(text)) == text
    assert prefixed.decode(prefixed.encode(text)) == (f" {text}" if text else "")
    assert plain.decode_whole(plain.encode(text)) == text


def test_a_byte_token_is_its_byte_and_a_leading_space_is_kept():
    tokenizer = sentencepiece(prefix=False)

    assert [tokenizer.token_bytes(index) for index in tokenizer.encode(" ab€")] == [b" ab", b"\xe2", b"\x82", b"\xac"]


def test_special_tokens_are_their_own_name_and_can_be_left_out():
    ids = BYTE_LEVEL.encode("a</s>b<tool>")

    assert BYTE_LEVEL.token_bytes(1) == b"</s>"
    assert BYTE_LEVEL.special_ids == {0, 1}
    assert BYTE_LEVEL.decode(ids) == "ab<tool>"
    assert BYTE_LEVEL.decode(ids, skip_special_tokens=False) == "a</s>b<tool>"
    assert BYTE_LEVEL.decode_whole(ids) == "a</s>b<tool>"


def test_half_a_character_reads_as_the_replacement_character():
    emoji = BYTE_LEVEL.encode("\U0001fae0")

    assert len(emoji) > 1
    assert BYTE_LEVEL.decode(emoji[:1]) == "\ufffd"
    assert BYTE_LEVEL.token_text(emoji[0]) == "\ufffd"


def test_a_long_text_has_the_tokens_of_its_parts():
    line = "Grüße, 世界! 🙂\n"
    times = LONG_TEXT_CHARACTERS // len(line) + 1
    long = BYTE_LEVEL.encode(line * times)

    assert long == BYTE_LEVEL.encode(line) * times
    assert [span.id for span in BYTE_LEVEL.encode_spans(line * times)] == long
    with pytest.raises(InvalidRequest, match="character 9000"):
        BYTE_LEVEL.encode("x" * 9000 + "\ud800")


def test_ids_without_a_token_have_no_bytes():
    assert [BYTE_LEVEL.token_bytes(index) for index in (329, 10_000, -1)] == [b"", b"", b""]


@given(TEXTS)
def test_spans_tile_the_text(text):
    spans = BYTE_LEVEL.encode_spans(text)

    assert [span.id for span in spans] == BYTE_LEVEL.encode(text)
    covered = {position for span in spans for position in range(span.start, span.stop)}
    assert covered == set(range(len(text)))
    assert all(span.text == text[span.start : span.stop] for span in spans)


@given(TEXTS.map(lambda text: text * 5))
def test_min_tokens_is_a_lower_bound(text):
    assert BYTE_LEVEL.min_tokens(text) <= len(BYTE_LEVEL.encode(text))
    tokenizer = sentencepiece(prefix=False)
    assert tokenizer.min_tokens(text) <= len(tokenizer.encode(text))


def test_min_tokens_refuses_a_huge_text_at_once():
    assert BYTE_LEVEL.min_tokens("word " * 2_000_000) > 100_000


@pytest.mark.parametrize(
    ("normalizer", "known"),
    [
        (normalizers.NFC(), True),
        (normalizers.Strip(), False),
        (normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(" +"), " ")]), False),
    ],
)
def test_min_tokens_is_zero_when_a_normalizer_can_shrink_without_limit(normalizer, known):
    backend = byte_level_tokenizer()
    backend.normalizer = normalizer

    assert (Tokenizer(backend, vocab_size=320).min_tokens("x" * 100_000) > 0) is known


def test_min_tokens_accounts_for_tokens_that_absorb_spaces():
    backend = byte_level_tokenizer()
    backend.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    tokenizer = Tokenizer(backend, vocab_size=400)
    text = " " * 10_000 + "<mask>"

    assert tokenizer.min_tokens(text) <= len(tokenizer.encode(text))


def test_a_token_without_an_embedding_is_refused():
    with pytest.raises(InvalidRequest, match="<tool>"):
        Tokenizer(BACKEND, vocab_size=320).encode("a<tool>")


def test_half_a_surrogate_pair_is_refused_with_its_place():
    with pytest.raises(InvalidRequest, match="at character 2"):
        BYTE_LEVEL.encode("ab\ud800")


def test_a_vocabulary_whose_bytes_are_unknown_is_refused():
    backend = Backend(models.WordLevel({"a": 0}, unk_token="a"))
    backend.decoder = decoders.CTC()

    with pytest.raises(UnsupportedModel, match="CTC"):
        Tokenizer(backend, vocab_size=1)


def test_a_word_of_wordpiece_begins_with_a_space_and_its_other_parts_do_not():
    backend = Backend(models.WordPiece({"[UNK]": 0, "stream": 1, "##ing": 2}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    tokenizer = Tokenizer(backend, vocab_size=3)

    assert tokenizer.encode("streaming") == [1, 2]
    assert [tokenizer.token_bytes(token) for token in (1, 2)] == [b" stream", b"ing"]


def test_the_grammar_tokenizer_has_the_same_vocabulary():
    grammar = BYTE_LEVEL.grammar_tokenizer()

    assert (grammar.vocab_size, grammar.eos_token) == (330, 1)
    assert grammar.tokenize_str("The quick brown") == BYTE_LEVEL.encode("The quick brown")
    assert BYTE_LEVEL.grammar_tokenizer() is grammar


def read_folder(folder, *, settings=None, config=None, generation=None, backend=None):
    (folder / "tokenizer.json").write_text((backend or byte_level_tokenizer()).to_str())
    return read_hf_tokenizer(
        folder,
        settings=Fields(settings or {}, "tokenizer_config.json"),
        config=Fields(config or {}, "config.json"),
        generation=Fields(generation or {}, "generation_config.json"),
        vocab_size=330,
    )


def test_bos_and_eos_are_added_as_each_tokenizer_file_says(tmp_path):
    tokenizer = read_folder(
        tmp_path,
        settings={"eos_token": {"content": "</s>"}, "bos_token": "<s>"},
        config={"eos_token_id": 5},
        generation={"eos_token_id": [1, 7]},
    )

    assert tokenizer.eos_token_ids == {1, 5, 7}
    assert tokenizer.bos_token_id == 0
    assert tokenizer.special_names == {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, []),
        ({"add_bos_token": True}, [0]),
        ({"add_bos_token": False}, []),
        ({"add_bos_token": True, "add_eos_token": True}, [0, 1]),
    ],
)
def test_tokenizer_config_decides_whether_bos_and_eos_are_added(tmp_path, settings, expected):
    tokenizer = read_folder(tmp_path, settings={"bos_token": "<s>", "eos_token": "</s>"} | settings)

    assert [index for index in tokenizer.encode("fox") if index < 2] == expected
    assert tokenizer.encode("fox", add_special_tokens=False) == BYTE_LEVEL.encode("fox")


def test_tokens_that_only_tokenizer_config_lists_are_added(tmp_path):
    entry = {"content": "<extra>", "special": True, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer = read_folder(tmp_path, settings={"added_tokens_decoder": {"320": entry}})

    assert tokenizer.encode("<extra>") == [320]
    assert 320 in tokenizer.special_ids


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path):
    backend = byte_level_tokenizer()
    backend.enable_truncation(3)
    backend.enable_padding(length=50)

    assert read_folder(tmp_path, backend=backend).encode("The quick brown fox jumps over") == BYTE_LEVEL.encode(
        "The quick brown fox jumps over"
    )


def test_a_missing_tokenizer_names_the_file(tmp_path):
    empty = Fields({}, "none")

    with pytest.raises(BrokenModel, match=r"tokenizer\.json does not exist"):
        read_hf_tokenizer(tmp_path, settings=empty, config=empty, generation=empty, vocab_size=1)
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(BrokenModel, match=r"tokenizer\.model is not a SentencePiece model"):
        read_hf_tokenizer(tmp_path, settings=empty, config=empty, generation=empty, vocab_size=1)


@pytest.mark.parametrize("content", ["", "{", "[]", json.dumps({"version": "1.0", "model": {"type": "Strange"}})])
def test_a_malformed_tokenizer_is_a_broken_model(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    empty = Fields({}, "none")

    with pytest.raises(BrokenModel, match=r"tokenizer\.json cannot be read"):
        read_hf_tokenizer(tmp_path, settings=empty, config=empty, generation=empty, vocab_size=1)


def test_metaspace_vocabularies_are_sentencepiece():
    backend = Backend(models.BPE(vocab={"\u2581": 0, "a": 1, "\u2581a": 2}, merges=[("\u2581", "a")]))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()

    assert Tokenizer(backend, vocab_size=3).token_bytes(2) == b" a"


def test_a_bos_token_without_a_row_of_the_embedding_is_none():
    assert Tokenizer(BACKEND, vocab_size=320, bos_token_id=319).bos_token_id == 319
    assert Tokenizer(BACKEND, vocab_size=320, bos_token_id=320).bos_token_id is None
