"""Pre-tokenizers of byte-level vocabularies, by the names that GGUF files use."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tokenizers import normalizers, pre_tokenizers

_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2: Final = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_WORDS_BY_CASE: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
_OTHERS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN: Final = "|".join([*_WORDS_BY_CASE, r"\p{N}", _OTHERS])
_ENDING: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_O200K: Final = "|".join([*(words + _ENDING for words in _WORDS_BY_CASE), r"\p{N}{1,3}", _OTHERS])
_PUNCTUATION: Final = r"[\p{P}\$\+<=>\^~\|]+"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizer:
    """The rules by which a vocabulary splits text into words before BPE merges."""

    patterns: tuple[str, ...]
    """Applied in sequence; each match, and each text between matches, becomes a piece."""
    ignore_merges: bool = False
    """A word that is a token is used without running the merges."""
    add_bos: bool = False
    """The default for files that do not say whether a text starts with the bos token."""
    compose: bool = False
    """Normalise to Unicode NFC first."""


PRE_TOKENIZERS: Final = MappingProxyType(
    {
        "default": PreTokenizer(patterns=(_PUNCTUATION, _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
        "gpt-2": PreTokenizer(patterns=(_GPT2,)),
        "smollm": PreTokenizer(patterns=(r"\p{N}", _GPT2)),
        "llama-bpe": PreTokenizer(patterns=(_LLAMA3,), ignore_merges=True, add_bos=True),
        "qwen2": PreTokenizer(patterns=(_QWEN2,), compose=True),
        "gpt-4o": PreTokenizer(patterns=(_O200K,)),
        "tekken": PreTokenizer(patterns=(_TEKKEN,), ignore_merges=True, add_bos=True),
    }
)


def byte_level_parts(
    rules: PreTokenizer,
) -> "tuple[normalizers.Normalizer | None, pre_tokenizers.PreTokenizer]":
    """Return the normalizer and the pre-tokenizer of a byte-level vocabulary."""
    from tokenizers import Regex, normalizers, pre_tokenizers

    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rules.patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return normalizers.NFC() if rules.compose else None, pre_tokenizers.Sequence([*splits, to_bytes])
