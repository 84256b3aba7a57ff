from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.gguf_file import GgufFile, open_gguf
from headrace.inference.models.gguf_tokenizer import read_gguf_tokenizer
from headrace.inference.models.pretokenizers import PRE_TOKENIZERS
from tests.inference.models.model_files import byte_level_tokenizer, gguf_vocabulary, vocabulary

LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = st.text(st.sampled_from("abcXYZ 0123456789\n\t'.,!?$+<éüßдж日本🦊👩\u200d") | st.characters(codec="utf-8"))
BACKEND = byte_level_tokenizer()


def gguf_with(**metadata) -> GgufFile:
    """As `open_gguf` gives it: strings in lists are bytes, numbers in lists are arrays."""
    values = {}
    for key, value in metadata.items():
        listed = isinstance(value, list)
        text = listed and value and isinstance(value[0], str)
        values[f"tokenizer.ggml.{key}"] = (
            [item.encode() for item in value] if text else np.array(value) if listed else value
        )
    return GgufFile(Path("m.gguf"), values, {}, "")


def byte_level(**changes) -> GgufFile:
    plain = {key.removeprefix("tokenizer.ggml."): value for key, value in gguf_vocabulary(BACKEND).items()}
    return gguf_with(**(plain | changes))


def hugging_face(pre: str) -> Backend:
    """The same vocabulary with the pre-tokenizer of the real models' tokenizer.json files."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokens, merges = vocabulary(BACKEND)
    ignore_merges = pre in {"llama-bpe", "tekken"}
    backend = Backend(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ")) for merge in merges],
            ignore_merges=ignore_merges,
        )
    )
    split = pre_tokenizers.Split
    backend.pre_tokenizer = {
        "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
        "smollm": pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        ),
        "llama-bpe": pre_tokenizers.Sequence([split(Regex(LLAMA3_WORDS), "isolated"), level]),
        "qwen2": pre_tokenizers.Sequence([split(Regex(LLAMA3_WORDS.replace("{1,3}", "")), "isolated"), level]),
        "gpt-4o": pre_tokenizers.Sequence([split(Regex(O200K_WORDS), "isolated"), level]),
    }[pre]
    backend.normalizer = normalizers.NFC() if pre == "qwen2" else None
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    return backend


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2", "gpt-4o"])
def test_byte_level_vocabularies_give_the_tokens_of_tokenizer_json(pre):
    ours = read_gguf_tokenizer(byte_level(pre=pre, add_bos_token=False), 320)
    theirs = hugging_face(pre)

    @settings(deadline=None)
    @given(TEXTS)
    def same_tokens(text):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids

    same_tokens()
    assert ours.encode("a</s>b") == theirs.encode("a</s>b").ids


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_pre_tokenizer_keeps_every_byte(pre):
    tokenizer = read_gguf_tokenizer(byte_level(pre=pre, add_bos_token=False), 320)
    text = "Ab 12345's\n\n  <|x|> $5 日本 🦊\t."

    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ({}, []),
        ({"pre": "llama-bpe"}, [0]),
        ({"pre": "llama-bpe", "add_bos_token": False}, []),
        ({"add_bos_token": True, "add_eos_token": True}, [0, 1]),
    ],
)
def test_the_file_or_the_kind_of_vocabulary_decides_whether_bos_and_eos_are_added(values, ends):
    tokenizer = read_gguf_tokenizer(byte_level(**values), 320)

    assert [index for index in tokenizer.encode("fox") if index < 2] == ends


def test_chat_tokens_end_an_answer_even_if_the_metadata_names_another():
    tokens, _ = vocabulary(BACKEND)
    types = [3, 3] + [1] * (len(tokens) - 2)
    file = byte_level(tokens=[*tokens, "<|im_end|>"], token_type=[*types, 3], eot_token_id=5)

    assert read_gguf_tokenizer(file, 330).eos_token_ids == {1, 5, 320}


@pytest.mark.parametrize(
    ("added", "ends"),
    [(["<|end|>", "<|user|>"], {1, 320}), (["<|return|>", "<|end|>", "<|call|>", "<|start|>"], {1, 320, 322})],
)
def test_the_end_of_a_message_ends_an_answer_unless_another_token_does(added, ends):
    tokens, _ = vocabulary(BACKEND)
    types = [3, 3] + [1] * (len(tokens) - 2) + [3] * len(added)

    assert read_gguf_tokenizer(byte_level(tokens=[*tokens, *added], token_type=types), 330).eos_token_ids == ends


OPTIONAL_IDS = ("padding", "unknown", "eot", "eom", "seperator", "cls", "mask", "fim_pre", "fim_suf", "prefix")


@pytest.mark.parametrize("index", [320, 4294967295, -1, 10**12])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_ids_of_other_tokens_outside_the_vocabulary_are_ignored_with_one_notice(kind, index):
    make = byte_level if kind == "gpt2" else sentencepiece
    plain = read_gguf_tokenizer(make(), 320)
    with capture_logs() as logs:
        tokenizer = read_gguf_tokenizer(make(**{f"{name}_token_id": index for name in OPTIONAL_IDS}), 320)

    assert tokenizer.encode("the fox 🦊") == plain.encode("the fox 🦊")
    assert tokenizer.eos_token_ids == plain.eos_token_ids
    (notice,) = [entry for entry in logs if entry["event"] == "model.ids_ignored"]
    assert all(f"{name}_token_id {index}" in notice["message"] for name in OPTIONAL_IDS)


@pytest.mark.parametrize("index", [4294967295, -1])
def test_a_file_may_say_that_it_has_no_bos_and_no_eos(index):
    tokenizer = read_gguf_tokenizer(byte_level(pre="llama-bpe", bos_token_id=index, eos_token_id=index), 320)

    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (None, frozenset())
    assert tokenizer.decode(tokenizer.encode("fox"), skip_special_tokens=False) == "fox"


def sentencepiece(**changes) -> GgufFile:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words = [
        "\u2581t",
        "er",
        "in",
        "\u2581a",
        "en",
        "on",
        "\u2581th",
        "\u2581the",
        "ing",
        "\u2581in",
        "an",
        "and",
        "\u2581and",
    ]
    letters = [*"etaoinshrdlucmfwypvbgk", "\u2581", "é", "日"]
    tokens = pieces + words + letters
    values = {
        "model": "llama",
        "tokens": tokens,
        "scores": [0.0] * len(pieces) + [-float(rank) for rank in range(len(words) + len(letters))],
        "token_type": [2, 3, 3] + [6] * 256 + [1] * (len(words) + len(letters)),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return gguf_with(**(values | changes))


def reference_pieces(file: GgufFile, text: str) -> list[str]:
    """SentencePiece's BPE from its definition: join the pair with the best score, the leftmost first."""
    tokens = [token.decode() for token in file.metadata["tokenizer.ggml.tokens"]]
    scores = dict(zip(tokens, file.metadata["tokenizer.ggml.scores"].tolist(), strict=True))
    symbols = list(text.replace(" ", "\u2581"))
    while True:
        pairs = [
            (-scores[left + right], place)
            for place, (left, right) in enumerate(pairwise(symbols))
            if left + right in scores
        ]
        if not pairs:
            break
        place = min(pairs)[1]
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
    known = set(tokens)
    return [
        piece
        for symbol in symbols
        for piece in ([symbol] if symbol in known else [f"<0x{byte:02X}>" for byte in symbol.encode()])
    ]


@settings(deadline=None)
@given(st.text(st.sampled_from("theandig  on日é€"), max_size=40))
def test_sentencepiece_vocabularies_give_the_tokens_of_the_definition(text):
    file = sentencepiece(add_space_prefix=False, add_bos_token=False)
    tokens = [token.decode() for token in file.metadata["tokenizer.ggml.tokens"]]
    tokenizer = read_gguf_tokenizer(file, len(tokens))

    assert [tokens[index] for index in tokenizer.encode(text)] == reference_pieces(file, text)


def test_sentencepiece_texts_start_with_bos_and_a_space_unless_the_file_says_otherwise():
    tokenizer = read_gguf_tokenizer(sentencepiece(), 300)
    plain = read_gguf_tokenizer(sentencepiece(add_space_prefix=False, add_bos_token=False), 300)

    assert [tokenizer.token_bytes(index) for index in tokenizer.encode("the")] == [b"<s>", b" the"]
    assert [plain.token_bytes(index) for index in plain.encode("the")] == [b"t", b"h", b"e"]


def character_level(**changes) -> GgufFile:
    """A vocabulary of Gemma 4: merges over characters, with a mark for spaces, and bytes for the others."""
    merges = ["\u2581 t", "h e", "\u2581t he", "\n \n", "\n\n \n", "\u2581 \u2581", "a n", "an d"]
    merged = [merge.replace(" ", "") for merge in merges]
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<|tool_call>", "<|tool_response>", "<turn|>"]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *"\u2581\nabcdehnt.é", *merged]
    values = {
        "model": "gemma4",
        "tokens": tokens,
        "merges": merges,
        "scores": [-1000.0] * len(tokens),
        "token_type": [3, 3, 3, 2, 4, 4, 3] + [6] * 256 + [1] * (len(tokens) - 263),
        "bos_token_id": 2,
        "eos_token_id": 1,
        "unknown_token_id": 3,
        "add_space_prefix": False,
        "add_bos_token": True,
    }
    return gguf_with(**(values | changes))


@settings(deadline=None)
@given(st.text(st.sampled_from("the and\n\n  .é日🦊"), max_size=40))
def test_gemma_4_vocabularies_give_the_tokens_of_transformers(text):
    from transformers.models.gemma.tokenization_gemma import GemmaTokenizer

    file = character_level()
    tokens = [token.decode() for token in file.metadata["tokenizer.ggml.tokens"]]
    merges = [tuple(merge.decode().split(" ")) for merge in file.metadata["tokenizer.ggml.merges"]]
    theirs = GemmaTokenizer(vocab={token: index for index, token in enumerate(tokens)}, merges=merges, mask_token=None)
    tokenizer = read_gguf_tokenizer(file, len(tokens))

    assert tokenizer.encode(text) == [2, *theirs.encode(text, add_special_tokens=False)]
    assert tokenizer.decode(tokenizer.encode(text)[1:]) == text
    assert tokenizer.encode("<|tool_call>\n<turn|>") == [2, 4, tokens.index("\n"), 6]


def test_a_call_of_gemma_4_ends_an_answer_though_its_end_is_no_control_token():
    assert read_gguf_tokenizer(character_level(), 300).eos_token_ids == {1, 5, 6}
    assert read_gguf_tokenizer(character_level(model="gpt2"), 300).eos_token_ids == {1, 6}


TOKENS, _ = vocabulary(BACKEND)
WITH_TEMPLATE = {"tokens": ["a:b", *TOKENS[1:]]}


@pytest.mark.parametrize(
    ("values", "error", "named"),
    [
        ({"model": "t5"}, UnsupportedModel, "'t5'"),
        ({"pre": "unheard-of"}, UnsupportedModel, "'unheard-of'"),
        ({"tokens": 3}, BrokenModel, "no list tokens"),
        ({"merges": ["a b", "abc"]}, BrokenModel, "merges"),
        ({"merges": ["never seen"]}, BrokenModel, "is inconsistent"),
        ({"token_type": [1, 2]}, BrokenModel, "token_type"),
        ({"bos_token_id": 4000}, BrokenModel, "bos_token_id is 4000"),
        ({"eos_token_id": 4000}, BrokenModel, "eos_token_id is 4000"),
        (WITH_TEMPLATE | {"add_bos_token": True}, BrokenModel, "'a:b' cannot be added to texts"),
        ({"add_bos_token": "yes"}, BrokenModel, "add_bos_token is 'yes'"),
    ],
)
def test_a_malformed_vocabulary_is_refused_and_the_defect_named(values, error, named):
    with pytest.raises(error, match=named):
        read_gguf_tokenizer(byte_level(**values), 320)


def test_a_file_without_a_vocabulary_says_so():
    with pytest.raises(BrokenModel, match="no list tokens"):
        read_gguf_tokenizer(gguf_with(model="gpt2"), 320)


@pytest.fixture(scope="module")
def smollm2(smollm2_path):
    return read_gguf_tokenizer(open_gguf(smollm2_path), 49152)


def test_the_real_tokenizer_splits_digits_and_keeps_special_tokens_whole(smollm2):
    ids = smollm2.encode("<|im_start|>user\n2024<|im_end|>")

    pieces = [smollm2.token_bytes(index) for index in ids]
    assert pieces == [b"<|im_start|>", b"user", b"\n", b"2", b"0", b"2", b"4", b"<|im_end|>"]
    assert smollm2.eos_token_ids == {0, 2}
    assert len(smollm2.special_ids) == 17


@settings(deadline=None)
@given(
    text=st.text(
        st.characters(codec="utf-8", max_codepoint=0xFFFF, exclude_categories=["Cc", "Cs"]) | st.sampled_from("🦊👩😀")
    )
)
def test_the_real_tokenizer_gives_every_text_back(smollm2, text):
    assert smollm2.decode(smollm2.encode(text), skip_special_tokens=False) == text


@settings(deadline=None)
@given(text=TEXTS)
def test_min_tokens_accounts_for_bytes_that_the_real_vocabulary_lacks(smollm2, text):
    assert smollm2.min_tokens(text * 50) <= len(smollm2.encode(text * 50))


def test_known_ids_of_the_real_tokenizer(smollm2):
    """Source: tokenizer.json of HuggingFaceTB/SmolLM2-135M-Instruct."""
    assert smollm2.encode("Hello world") == [19556, 905]
