"""Vocabularies of tiktoken, in its own files and in `tekken.json`, give the tokens of the tiktoken package."""

import base64
import json

import pytest
import tiktoken
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.fields import Fields
from headrace.inference.models.hf_tokenizer import read_hf_tokenizer
from headrace.inference.models.tokenizer import byte_characters
from tests.inference.models.model_files import CORPUS, byte_level_tokenizer, refusal, vocabulary
from tests.inference.models.test_sentencepiece import TEXTS

CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = CL100K.replace("{1,3}", "")
TEKKEN = r"[^\r\n\p{L}\p{N}]?\p{Lu}*\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
KIMI = (
    r"[\p{Han}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>"]


def ranks():
    """The bytes of tokens in the order of a training: first all bytes, then the merges."""
    bytes_of = byte_characters()
    tokens = [
        bytes(bytes_of[character] for character in token) for token in vocabulary(byte_level_tokenizer(500))[0][2:]
    ]
    single = [bytes([byte]) for byte in range(256)]
    return [*single, *(token for token in tokens if len(token) > 1)]


RANKS = ranks()


def lines(tokens):
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


def tekken(tokens, *, special=None, extra=0):
    entries = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate([*tokens, *(f"more {index}".encode() for index in range(extra))])
    ]
    config = {"pattern": TEKKEN, "default_vocab_size": len(tokens) + 20, "default_num_special_tokens": 20}
    values = {"config": config, "vocab": entries}
    return json.dumps(values if special is None else values | {"special_tokens": special}).encode()


def read(folder, name, content, model_type="llama", names=()):
    (folder / name).write_bytes(content)
    nothing = Fields({}, "")
    listed = {str(index): {"content": text, "special": True} for index, text in names}
    settings = Fields({"added_tokens_decoder": listed} if listed else {}, "")
    config = Fields({"model_type": model_type}, "")
    return read_hf_tokenizer(folder, settings=settings, config=config, generation=nothing, vocab_size=2000)


@pytest.mark.parametrize(
    ("name", "model_type", "pattern"),
    [
        ("tokenizer.model", "llama", CL100K),
        ("qwen.tiktoken", "qwen2", QWEN),
        ("tiktoken.model", "kimi_linear", KIMI),
        ("tekken.json", "mistral", TEKKEN),
    ],
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(st.sampled_from([*" ".join(CORPUS).split(), *TEXTS])))
def test_texts_have_the_tokens_of_tiktoken(name, model_type, pattern, words, tmp_path):
    first = 20 if name == "tekken.json" else 0
    package = tiktoken.Encoding(
        name, pat_str=pattern, mergeable_ranks={token: rank for rank, token in enumerate(RANKS)}, special_tokens={}
    )
    content = tekken(RANKS, extra=3) if name == "tekken.json" else lines(RANKS)
    tokenizer = read(tmp_path, name, content, model_type)
    text = " ".join(words)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert [index - first for index in ids] == package.encode(text, disallowed_special=())
    assert tokenizer.decode(ids) == text


def test_special_tokens_of_llama_3_follow_its_ranks(tmp_path):
    tokenizer = read(tmp_path, "tokenizer.model", lines(RANKS))
    text = "<|begin_of_text|><|eot_id|>"
    assert tokenizer.encode(text, add_special_tokens=False) == [len(RANKS), len(RANKS) + 9]
    assert tokenizer.encode("a")[0] == tokenizer.bos_token_id == len(RANKS)
    assert tokenizer.token_id("<|reserved_special_token_247|>") == len(RANKS) + 255
    assert tokenizer.eos_token_ids == {len(RANKS) + 1}


def test_reserved_tokens_of_kimi_have_the_names_that_the_settings_list(tmp_path):
    first = len(RANKS)
    named = [(first + 2, "<|im_end|>"), (first + 250, "[PAD]")]
    tokenizer = read(tmp_path, "tiktoken.model", lines(RANKS), "kimi_k2", named)
    text = f"a<|im_end|>[PAD]<|reserved_token_{first + 3}|>"
    assert tokenizer.encode(text)[1:] == [first + 2, first + 250, first + 3]
    with pytest.raises(BrokenModel, match="two tokens alike"):
        read(tmp_path, "tiktoken.model", lines(RANKS), "kimi_k2", [*named, (first + 3, "[PAD]")])


def test_special_tokens_of_tekken_come_first(tmp_path):
    listed = [{"rank": 0, "token_str": "<unk>"}, {"rank": 1, "token_str": "<s>"}, {"rank": 2, "token_str": "</s>"}]
    tokenizer = read(tmp_path, "tekken.json", tekken(RANKS, special=[*listed, {"rank": 3, "token_str": "[X]"}]))
    assert tokenizer.encode("[X]<SPECIAL_4>") == [1, 3, 4]
    assert read(tmp_path, "tekken.json", tekken(RANKS)).encode("[INST]", add_special_tokens=False) == [3]


def test_an_unknown_family_is_named(tmp_path):
    with pytest.raises(UnsupportedModel, match="model_type 'glm'; expected one of kimi_k2"):
        read(tmp_path, "glm.tiktoken", lines(RANKS), "glm")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.tiktoken", b"IQ== 0\nIg== 2\n", "line 2: expected base64 and the rank 1"),
        ("x.tiktoken", b"IQ== 0\nI 1\n", "not base64"),
        ("tekken.json", b"{", "not valid JSON"),
        ("tekken.json", b"[]", "must contain a JSON object"),
        ("tekken.json", b'{"config": {"default_vocab_size": 9, "default_num_special_tokens": 1}}', "at least 8 tokens"),
        (
            "tekken.json",
            b'{"config": {"default_vocab_size": 1e12, "default_num_special_tokens": 1e12}, "vocab": []}',
            "default_num_special_tokens is 1000000000000; expected at most",
        ),
        ("tekken.json", tekken(RANKS, special=[{"rank": 0, "token_str": "a"}, {"rank": 1, "token_str": "a"}]), "alike"),
    ],
)
def test_a_malformed_file_is_named(name, content, message, tmp_path):
    with pytest.raises(BrokenModel, match=message):
        read(tmp_path, name, content)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_files_end_in_a_tokenizer_or_in_an_error(data, tmp_path):
    name = data.draw(st.sampled_from(["x.tiktoken", "tekken.json"]))
    for file in tmp_path.iterdir():
        file.unlink()
    content = bytearray(lines(RANKS) if name == "x.tiktoken" else tekken(RANKS))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    text = refusal(lambda: read(tmp_path, name, bytes(content)).encode("The quick fox"))
    assert not text or name in text
