"""Build a tokenizer from the pieces of a SentencePiece model, as `tokenizer.model` and GGUF files hold them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.models.sentencepiece_file import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, SentencePieceModel
from headrace.models.tokenizer import SPACE_MARK

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import models, normalizers

_MERGED: Final = frozenset({NORMAL, USER_DEFINED})
_MAX_PIECE: Final = 1024
"""Characters of a merged piece: finding its halves takes time in proportion to their square. Vocabularies have 128."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Text, score and kind of each piece in the order of their ids."""

    texts: Sequence[str]
    scores: Sequence[float]
    kinds: Sequence[float]


def bpe_model(pieces: Pieces, *, unknown: str | None, byte_fallback: bool = True) -> "models.BPE":
    """Return the BPE model of pieces with scores."""
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


def sentencepiece_backend(model: SentencePieceModel) -> "tokenizers.Tokenizer":
    """Return the tokenizer of a `tokenizer.model`. `tokenizers` raises no specific errors."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    pieces = Pieces(model.texts, model.scores, model.kinds)
    if model.is_unigram:
        vocab = list(zip(model.texts, model.scores, strict=True))
        backend = Backend(models.Unigram(vocab, unk_id=model.unk_id, byte_fallback=model.byte_fallback))
    else:
        unknown = model.texts[model.unk_id] if 0 <= model.unk_id < len(model.texts) else None
        backend = Backend(bpe_model(pieces, unknown=unknown, byte_fallback=model.byte_fallback))
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


def merges_by_score(vocab: dict[str, int], scores: dict[str, float]) -> list[tuple[str, str]]:
    """
    Return the merges that a SentencePiece BPE vocabulary implies: the pair with the best-scored result first.

    Ties are broken by the ids of the halves, as in the converter of transformers, so both give the same tokens.
    Raises `ValueError` for a piece that is too long.
    """
    longest = max(map(len, scores), default=0)
    if longest > _MAX_PIECE:
        raise ValueError(f"a piece has {longest} characters; expected at most {_MAX_PIECE}")
    ranked: list[tuple[float, int, int, int, str, str]] = []
    for order, (piece, score) in enumerate(scores.items()):
        for cut in range(1, len(piece)):
            left = vocab.get(piece[:cut])
            if left is None:
                continue
            right = vocab.get(piece[cut:])
            if right is not None:
                ranked.append((-score, order, left, right, piece[:cut], piece[cut:]))
    ranked.sort()
    return [entry[4:] for entry in ranked]


def _normalizers(model: SentencePieceModel) -> list["normalizers.Normalizer"]:
    from tokenizers import Regex, normalizers

    steps: list[normalizers.Normalizer] = []
    if model.char_map:
        steps.append(normalizers.Precompiled(model.char_map))
    if model.joins_spaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    return steps
