"""
The WordPiece tokenizer of a GGUF file: words begin with a space mark, and the pieces that go on have none.

Source: llama.cpp `conversion/bert.py` and `llm_tokenizer_wpm`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headrace.models.sentencepiece_file import NORMAL

if TYPE_CHECKING:
    import tokenizers

_SPACE_MARK: Final = "\u2581"
_GOES_ON: Final = "##"


def wordpieces(tokens: Sequence[str], types: Sequence[float]) -> list[str]:
    """Return the tokens as a WordPiece vocabulary spells them."""
    return [_spelled(token) if kind == NORMAL else token for token, kind in zip(tokens, types, strict=True)]


def _spelled(token: str) -> str:
    return token.removeprefix(_SPACE_MARK) if token.startswith(_SPACE_MARK) else _GOES_ON + token


def wordpiece(pieces: Sequence[str], types: Sequence[float], unknown: str) -> "tokenizers.Tokenizer":
    """
    Return the tokenizer of a vocabulary.

    The metadata does not say whether text is lowercased: it is, unless a piece has an uppercase letter.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    normal = [piece for piece, kind in zip(pieces, types, strict=True) if kind == NORMAL and not _is_bracketed(piece)]
    backend = Tokenizer(models.WordPiece({piece: index for index, piece in enumerate(pieces)}, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(lowercase=all(piece == piece.lower() for piece in normal))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


def _is_bracketed(piece: str) -> bool:
    return piece.startswith("[") and piece.endswith("]")
