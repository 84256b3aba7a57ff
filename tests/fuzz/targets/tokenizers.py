"""Vocabularies of other libraries, and `tokenizer_config.json`."""

import base64
import io
import json
from collections.abc import Mapping
from functools import partial

import sentencepiece

from headrace.core.errors import BrokenModel, EngineFailed, InvalidRequest, UnsupportedModel
from headrace.inference.models.chat import ChatTemplate
from headrace.inference.models.fields import Fields
from headrace.inference.models.hf_checkpoint import read_text_parts
from tests.fuzz.target import Target
from tests.fuzz.targets.archives import scene
from tests.inference.models.model_files import CORPUS, byte_level_tokenizer, vocabulary

_REFUSALS = (BrokenModel, UnsupportedModel)
_TEXT = "The quick\nbrown  fox 123 \u00e9\u4e2d"


def _file(name, config, data):
    """A vocabulary in a folder of its own, and a text through it."""
    folder = scene(name)
    (folder / name).write_bytes(data)
    text = read_text_parts(folder, Fields(config, "config.json"), vocab_size=1000)
    try:
        ids = text.tokenizer.encode(_TEXT)
        text.tokenizer.decode_whole(ids)
    except (InvalidRequest, EngineFailed):  # a token beyond the vocabulary; a library that panicked
        pass
    for template in text.templates.values():
        ChatTemplate(template).check()


def _settings(data):
    """`tokenizer_config.json` beside a good vocabulary."""
    folder = scene("settings")
    if not (folder / "tokenizer.json").exists():
        (folder / "tokenizer.json").write_text(byte_level_tokenizer().to_str())
    (folder / "tokenizer_config.json").write_bytes(data)
    text = read_text_parts(folder, Fields({}, "config.json"), vocab_size=1000)
    text.tokenizer.encode(_TEXT)


def _vocab_json(data):
    """`vocab.json`, and after an empty line `merges.txt`."""
    vocab, _, merges = data.partition(b"\n\n")
    (scene("vocab.json") / "merges.txt").write_bytes(merges)
    _file("vocab.json", {"model_type": "gpt2"}, vocab)


def _vocab_json_seeds() -> Mapping[str, bytes]:
    tokens, merges = vocabulary(byte_level_tokenizer())
    vocab = json.dumps({token: index for index, token in enumerate(tokens)})
    return {"bytes": "\n".join([vocab, "", "#version: 0.2", *merges, ""]).encode()}


def _sentencepiece_seeds() -> Mapping[str, bytes]:
    made = {}
    for kind in ("bpe", "unigram"):
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            *(),
            sentence_iterator=iter(CORPUS * 2),
            model_writer=out,
            model_type=kind,
            vocab_size=400,
            hard_vocab_limit=False,
            character_coverage=0.98,
            byte_fallback=kind == "bpe",
            minloglevel=2,
            num_threads=1,
        )
        made[kind] = out.getvalue()
    return made


def _tiktoken_seeds() -> Mapping[str, bytes]:
    tokens = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b" the", b"qu"]
    return {"bytes": b"\n".join(b"%b %d" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens))}


def _tekken_seeds() -> Mapping[str, bytes]:
    vocab = [{"rank": rank, "token_bytes": base64.b64encode(bytes([rank])).decode()} for rank in range(256)]
    config = {"pattern": r"\w+|\s+|.", "default_vocab_size": 266, "default_num_special_tokens": 10}
    special = [{"rank": 0, "token_str": "<unk>"}, {"rank": 1, "token_str": "<s>"}, {"rank": 2, "token_str": "</s>"}]
    return {"bytes": json.dumps({"config": config, "vocab": vocab, "special_tokens": special}).encode()}


_SETTINGS = {
    "add_bos_token": True,
    "bos_token": {"content": "<s>"},
    "eos_token": "</s>",
    "added_tokens_decoder": {"0": {"content": "<s>", "special": True}, "320": {"content": "<x>", "lstrip": True}},
    "chat_template": [{"name": "default", "template": "{{ messages }}"}],
}

TARGETS = (
    Target(
        "tokenizer-json",
        partial(_file, "tokenizer.json", {}),
        _REFUSALS,
        lambda: {"bytes": byte_level_tokenizer().to_str().encode()},
        words=(b"type", b"Sequence", b"Split", b"Precompiled", b"Unigram", b"WordPiece", b"ByteFallback", b"pattern"),
        is_json=True,
        suite_cases=150,
        limit_s=4,
    ),
    Target(
        "sentencepiece",
        partial(_file, "tokenizer.model", {}),
        _REFUSALS,
        _sentencepiece_seeds,
        suite_cases=200,
        limit_s=4,
    ),
    Target(
        "tiktoken",
        partial(_file, "qwen.tiktoken", {"model_type": "qwen2"}),
        _REFUSALS,
        _tiktoken_seeds,
        words=(b"AAAA 5\n", b" 999999999", b"=\n"),
        suite_cases=100,
        limit_s=4,
    ),
    Target(
        "tekken",
        partial(_file, "tekken.json", {}),
        _REFUSALS,
        _tekken_seeds,
        words=(b"default_num_special_tokens", b"default_vocab_size", b"pattern", b"special_tokens", b"rank"),
        is_json=True,
        suite_cases=150,
        limit_s=4,
    ),
    Target(
        "vocab-json",
        _vocab_json,
        _REFUSALS,
        _vocab_json_seeds,
        words=(b"\n\n", b"#version", b"T h\n", b" ", b": 999999999", b": -1", b"\xc4\xa0t h\n"),
        suite_cases=150,
        limit_s=4,
    ),
    Target(
        "vocab-txt",
        partial(_file, "vocab.txt", {"model_type": "bert"}),
        _REFUSALS,
        lambda: {"words": "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abc123", "the", "##e"]).encode()},
        words=(b"[UNK]", b"[CLS]\n", b"[SEP]\n", b"##", b"\r\n", b"\n\n", b"\xc3\xa9\n"),
        suite_cases=150,
        limit_s=4,
    ),
    Target(
        "tokenizer-config",
        _settings,
        _REFUSALS,
        lambda: {"usual": json.dumps(_SETTINGS).encode()},
        words=(b"chat_template", b"content", b"special", b"add_eos_token", b"pad_token", b"single_word"),
        is_json=True,
        suite_cases=150,
        limit_s=4,
    ),
)
