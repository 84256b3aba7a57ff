"""
The parts of a `tokenizer.json` of which `tokenizers`, which reads it in Rust, would end the whole process.

Rules that lengthen a text multiply: four replacements of `e` by a hundred of them make 100 MB of one letter, and a lack
of memory ends the process. Vocabularies in use at most double a text, or add a token at each end.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, Final

import msgspec

from headrace.core.errors import BrokenModel
from headrace.inference.models.sentencepiece import check_unigram_pieces, checked_char_map

_MAX_GROWTH: Final = 100
"""Bytes that the rules may make of each one. T5's may make 64."""
_GROWTH: Final = {"BertNormalizer": 3, "ByteLevel": 3, "Metaspace": 2, "Precompiled": 16}
"""Bytes that a rule makes of each one at most; rules that are not listed keep a text's length, or are idempotent."""
_ONE_CHARACTER: Final = re.compile(r"\[(?:\\.|[^\]\\])+\]|\\[pP]\{\w+\}|\\[^\W_bBAzZGKyY]|\\\W", re.DOTALL)
"""A class of characters, or a character after a backslash; assertions are none."""
_MAYBE_NOTHING: Final = re.compile(r"[*?|^$()\\]|\{[0,]")
_MAX_WORD: Final = 500
"""Characters of a word in WordPiece, which takes cubic time: 6.6 s for 4,000. BERT has 100."""
_MAX_ADDED_TOKENS: Final = 1000
"""Tokens that a template may add to each text."""


class _Model(msgspec.Struct):
    type: str | None = None
    vocab: msgspec.Raw = msgspec.Raw(b"{}")
    max_input_chars_per_word: int | None = None
    continuing_subword_prefix: str | None = None
    merges: msgspec.Raw = msgspec.Raw(b"[]")


class _File(msgspec.Struct):
    model: _Model
    normalizer: Any = None
    pre_tokenizer: Any = None
    post_processor: Any = None


def check_tokenizer_json(content: bytes, source: str) -> None:
    """
    Check the parts of a vocabulary of which `tokenizers`, which reads it in Rust, would end the whole process.

    Where the right side of a merge lacks the prefix of continued words, it cuts bytes out of the middle of a character
    (tokenizers 0.23 `models/bpe/model.rs`); merges of vocabularies without a prefix are not decoded.

    Raises:
        BrokenModel: the file is not JSON, a merge does not match the prefix, a map of characters is cut, or a text
            grows without measure.
    """
    try:
        file = msgspec.json.decode(content, type=_File)
        for char_map in _char_maps(file.normalizer):
            checked_char_map(base64.b64decode(char_map), source)
        _check_growth(file, source)
        _check_model(file.model, source)
        model = file.model
        prefix = model.continuing_subword_prefix
        if not prefix:
            return
        merges = msgspec.json.decode(model.merges, type=list[str | list[str]] | None) or []
    except (msgspec.DecodeError, ValueError, RecursionError) as exc:
        raise BrokenModel(f"{source} cannot be read: {exc}. Download it again.", path=source) from exc
    wrong = next((right for right in _rights(merges) if not right.startswith(prefix)), None)
    if wrong is not None:
        raise BrokenModel(
            f"{source} has a merge with {wrong!r:.80} on its right side; expected it to begin with the "
            f"`continuing_subword_prefix` {prefix!r:.80}. Download it again.",
            path=source,
        )


def _check_model(model: _Model, source: str) -> None:
    """Refuse models that take much longer for each character of a word."""
    if (model.max_input_chars_per_word or 0) > _MAX_WORD:
        raise BrokenModel(
            f"{source} has max_input_chars_per_word {model.max_input_chars_per_word}; expected at most {_MAX_WORD}.",
            path=source,
        )
    if model.type == "Unigram":
        check_unigram_pieces(piece for piece, _ in msgspec.json.decode(model.vocab, type=list[tuple[str, float]]))


def _check_growth(file: _File, source: str) -> None:
    """Refuse rules that together make too much of a text."""
    growth = prod(_growth(part) for part in _parts([file.normalizer, file.pre_tokenizer]))
    if growth > _MAX_GROWTH:
        raise BrokenModel(
            f"{source} has rules that may make a text {growth:.3g} times as long; expected at most {_MAX_GROWTH}.",
            path=source,
        )
    added = sum(map(_num_added, _parts(file.post_processor)))
    if added > _MAX_ADDED_TOKENS:
        raise BrokenModel(
            f"{source} has a template that adds {added} tokens; expected at most {_MAX_ADDED_TOKENS}.", path=source
        )


def _growth(part: Mapping[str, Any]) -> float:
    kind, content = part.get("type"), part.get("content")
    if kind == "Prepend":
        return 1 + _length(part.get("prepend"))
    if kind != "Replace":
        return _GROWTH.get(kind, 1) if isinstance(kind, str) else 1
    replaced = _least_match(_dict(part.get("pattern")))
    return max(1.0, _length(content) / replaced) if replaced else 1 + _length(content)


def _least_match(pattern: Mapping[str, Any]) -> int:
    """Return the length of the shortest text that is replaced; 0 also if a regex may match nothing at a place."""
    if "String" in pattern:
        return _length(pattern["String"])
    plain = _ONE_CHARACTER.sub("x", str(pattern.get("Regex", "")))
    return 0 if not plain or _MAYBE_NOTHING.search(plain) else 1


def _length(text: object) -> int:
    return len(text) if isinstance(text, str) else 0


def _num_added(part: Mapping[str, Any]) -> int:
    """Return the tokens that a `TemplateProcessing` adds to one text or a pair."""
    known = part.get("special_tokens")
    tokens = {name: len(_list(_dict(token).get("ids"))) for name, token in _dict(known).items()}
    pieces = [*_list(part.get("single")), *_list(part.get("pair"))]
    return sum(tokens.get(str(_dict(_dict(piece).get("SpecialToken")).get("id")), 0) for piece in pieces)


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _char_maps(normalizer: object) -> Iterator[str]:
    """Yield the maps of characters of a normalizer and of those in it."""
    for part in _parts(normalizer):
        if isinstance(char_map := part.get("precompiled_charsmap"), str):
            yield char_map


def _parts(tree: object) -> Iterator[dict[str, Any]]:
    """Yield all objects of a JSON value; iterative, because a file may nest them deeply."""
    pending = [tree]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            pending += part.values()
            yield part
        elif isinstance(part, list):
            pending += part


def _rights(merges: list[str | list[str]]) -> Iterator[str]:
    """Yield the right side of each merge; malformed entries are left to `tokenizers`, which refuses them."""
    for merge in merges:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if len(parts) == 2:
            yield parts[1]
