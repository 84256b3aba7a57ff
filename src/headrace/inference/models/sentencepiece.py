"""
Read the `tokenizer.model` of SentencePiece, and build a tokenizer from its pieces, which GGUF files hold too.

Of the protobuf message only the fields that change the tokens of a text are kept; unknown ones are skipped, as protobuf
requires. Source: sentencepiece `src/sentencepiece_model.proto`; protobuf's encoding guide.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.piece_merges import merges_by_score
from headrace.inference.models.tokenizer import SPACE_MARK

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import models, normalizers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Kinds of pieces; GGUF files use the same numbers."""
_UNIGRAM: Final = 1
_BPE: Final = 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES: Final = 10
_MAX_MAPPED_BYTES: Final = 64
"""NFKC makes 33 bytes of U+FDFA."""
_MAX_PIECES: Final = 4_000_000
_MAX_UNIGRAM_PIECE: Final = 256
"""With pieces of up to 3,000 characters, a text of 8,000 took 24 s. Vocabularies have 16, or 64 blanks."""
"""Four times the largest vocabulary known; a piece takes 2 bytes of a file, and hundreds in memory."""
_PIECE, _TRAINER, _NORMALIZER = 1, 2, 3
"""Fields of ModelProto."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Text, score and kind of each piece in the order of their ids."""

    texts: Sequence[str]
    scores: Sequence[float]
    kinds: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePieceModel(Pieces):
    """Pieces, and how text is normalized before it is cut into them."""

    is_unigram: bool
    """Unigram, else BPE."""
    byte_fallback: bool
    unk_id: int
    bos_id: int
    eos_id: int
    pad_id: int
    """Ids of special pieces; -1: none."""
    char_map: bytes
    """Normalization rules in the form of the `Precompiled` normalizer of `tokenizers`; empty: none."""
    adds_space: bool
    """A text is read as if it began with a space."""
    joins_spaces: bool
    """Spaces at both ends are dropped, and several in a row count as one."""


class _MalformedError(ValueError):
    pass


def parse_sentencepiece(content: bytes, source: str) -> SentencePieceModel:
    """
    Return the model in a file.

    Raises `BrokenModel`, or `UnsupportedModel` if it is neither BPE nor Unigram or marks spaces in another way.
    """
    try:
        pieces, trainer, normalizer = _sections(content)
        model = _model(pieces, trainer, normalizer, source)
    except (_MalformedError, UnicodeDecodeError, struct.error) as exc:
        raise BrokenModel(f"{source} is not a SentencePiece model: {exc}. Download it again.", path=source) from exc
    if not model.texts:
        raise BrokenModel(f"{source} is not a SentencePiece model: it has no pieces. Download it again.", path=source)
    return model


_Values = Mapping[int, int | bytes]
"""The last value of each field: whole numbers, or bytes."""


def _sections(content: bytes) -> tuple[list[_Values], _Values, _Values]:
    pieces: list[_Values] = []
    sections: dict[int, _Values] = {_TRAINER: {}, _NORMALIZER: {}}
    for number, value in _fields(content):
        if number == _PIECE:
            pieces.append(dict(_fields(_bytes(value))))
            if len(pieces) > _MAX_PIECES:
                raise _MalformedError(f"more than {_MAX_PIECES} pieces")
        elif number in sections:
            sections[number] = dict(_fields(_bytes(value)))
    return pieces, sections[_TRAINER], sections[_NORMALIZER]


def _model(pieces: list[_Values], trainer: _Values, normalizer: _Values, source: str) -> SentencePieceModel:
    kind = _whole(trainer, 3, _UNIGRAM)
    if kind not in (_UNIGRAM, _BPE):
        raise UnsupportedModel(f"{source} is a SentencePiece model of type {kind}; expected 1 (Unigram) or 2 (BPE).")
    if _whole(trainer, 24, 0) or not _whole(normalizer, 5, 1):
        raise UnsupportedModel(f"{source} marks spaces at the end of words or not at all, which is not supported.")
    return SentencePieceModel(
        texts=[_bytes(piece.get(1, b"")).decode() for piece in pieces],
        scores=[struct.unpack("<f", _bytes(piece.get(2, b"\0\0\0\0")))[0] for piece in pieces],
        kinds=[_whole(piece, 3, NORMAL) for piece in pieces],
        is_unigram=kind == _UNIGRAM,
        byte_fallback=bool(_whole(trainer, 35, 0)),
        unk_id=_whole(trainer, 40, 0),
        bos_id=_whole(trainer, 41, 1),
        eos_id=_whole(trainer, 42, 2),
        pad_id=_whole(trainer, 43, -1),
        char_map=checked_char_map(_bytes(normalizer.get(2, b"")), source),
        adds_space=bool(_whole(normalizer, 3, 1)),
        joins_spaces=bool(_whole(normalizer, 4, 1)),
    )


def checked_char_map(content: bytes, source: str) -> bytes:
    """
    Return normalization rules whose first number, the bytes of their trie, is no larger than they are.

    `tokenizers` allocates twice as much before it reads the trie, 8 GB for a file of 100 bytes, and ends the process
    where it may not (spm_precompiled 0.1). The texts that characters become follow the trie, each with a NUL.
    """
    size = int.from_bytes(content[:4], "little")
    if content and size > len(content):
        raise BrokenModel(
            f"{source} has a map of characters with a trie of {size} bytes in {len(content)}. Download it again.",
            path=source,
        )
    longest = max(map(len, content[4 + size :].split(b"\0")))
    if longest > _MAX_MAPPED_BYTES:
        raise BrokenModel(
            f"{source} has a map of characters with a text of {longest} bytes for one; expected at most "
            f"{_MAX_MAPPED_BYTES}.",
            path=source,
        )
    return content


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    position, end = 0, len(content)
    while position < end:
        key, position = _varint(content, position)
        wire_type = key & 7
        if wire_type == _VARINT:
            value, position = _varint(content, position)
            yield key >> 3, value
            continue
        if wire_type == _BYTES:
            length, position = _varint(content, position)
        elif wire_type in (_FIXED32, _FIXED64):
            length = 4 if wire_type == _FIXED32 else 8
        else:
            raise _MalformedError(f"a field of wire type {wire_type} before byte {position}")
        if length > end - position:
            raise _MalformedError(f"a field of {length} bytes at byte {position} of {end}")
        yield key >> 3, content[position : position + length]
        position += length


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(content[position : position + _MAX_VARINT_BYTES]):
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value, position + index + 1
    raise _MalformedError(f"a number that does not end, at byte {position}")


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise _MalformedError("a number in the place of bytes")
    return value


def _whole(values: _Values, number: int, default: int) -> int:
    """Return an int32 or bool; negative numbers are written as 64 bits."""
    value = values.get(number, default)
    if not isinstance(value, int):
        raise _MalformedError("bytes in the place of a number")
    return value - (1 << 64) if value >= 1 << 63 else value


_MERGED: Final = frozenset({NORMAL, USER_DEFINED})


def bpe_model(pieces: Pieces, *, unknown: str | None, byte_fallback: bool = True) -> "models.BPE":
    from tokenizers import models

    vocab = {text: index for index, text in enumerate(pieces.texts)}
    merged = {text: pieces.scores[index] for text, index in vocab.items() if pieces.kinds[index] in _MERGED}
    return models.BPE(
        vocab=vocab,
        merges=merges_by_score(vocab, merged),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=byte_fallback,
    )


def check_unigram_pieces(texts: Iterable[str]) -> None:
    """Raise `BrokenModel` if a piece is so long that `tokenizers` tries very many of them at each character."""
    longest = max(map(len, texts), default=0)
    if longest > _MAX_UNIGRAM_PIECE:
        raise BrokenModel(
            f"The vocabulary has a piece of {longest} characters; expected at most {_MAX_UNIGRAM_PIECE} in Unigram."
        )


def sentencepiece_backend(model: SentencePieceModel) -> "tokenizers.Tokenizer":
    """Return the tokenizer of a `tokenizer.model`. `tokenizers` raises no specific errors."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    if model.is_unigram:
        check_unigram_pieces(model.texts)
        vocab = list(zip(model.texts, model.scores, strict=True))
        backend = Backend(models.Unigram(vocab, unk_id=model.unk_id, byte_fallback=model.byte_fallback))
    else:
        unknown = model.texts[model.unk_id] if 0 <= model.unk_id < len(model.texts) else None
        backend = Backend(bpe_model(model, unknown=unknown, byte_fallback=model.byte_fallback))
    set_spaces(backend, adds_space=model.adds_space, first=_normalizers(model))
    add_special_pieces(backend, model.texts, model.kinds)
    return backend


def set_spaces(
    backend: "tokenizers.Tokenizer", *, adds_space: bool, first: Sequence["normalizers.Normalizer"] = ()
) -> None:
    """Replace spaces by their mark after the normalizers `first`, and back in the decoder."""
    from tokenizers import decoders, normalizers

    before = [*first, normalizers.Prepend(SPACE_MARK)] if adds_space else list(first)
    spaces = normalizers.Replace(" ", SPACE_MARK)
    backend.normalizer = normalizers.Sequence([*before, spaces]) if before else spaces
    steps = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if adds_space:
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)


def add_special_pieces(backend: "tokenizers.Tokenizer", texts: Sequence[str], kinds: Sequence[float]) -> None:
    """Register control and user-defined pieces, which are split off before any other tokenisation."""
    from tokenizers import AddedToken

    listed = list(zip(texts, kinds, strict=True))
    special = [text for text, kind in listed if kind in {CONTROL, UNKNOWN} and text]
    plain = [text for text, kind in listed if kind == USER_DEFINED and text]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])


def _normalizers(model: SentencePieceModel) -> list["normalizers.Normalizer"]:
    from tokenizers import Regex, normalizers

    steps: list[normalizers.Normalizer] = []
    if model.char_map:
        steps.append(normalizers.Precompiled(model.char_map))
    if model.joins_spaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    return steps
