"""
Pre-tokenizers of byte-level vocabularies, by the names that GGUF files use.

Source: llama.cpp `src/llama-vocab.cpp` for the names, their groups and their rules. Where llama.cpp approximates the
pattern of the models' tokenizer.json, the pattern itself is used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tokenizers import normalizers, pre_tokenizers


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


_DIGIT: Final = r"\p{N}"
_DIGITS: Final = r"\p{N}{1,3}"
_DIGITS_FROM_THE_RIGHT: Final = r"(?<!\p{N})\p{N}{1,3}(?=(?:\p{N}{3})*+(?!\p{N}))|\G(?<=\p{N})\p{N}{3}"
"""Only the first group looks at the whole number, and the others follow it: long numbers take linear time."""
_WHOLE_NUMBERS: Final = _DIGITS_FROM_THE_RIGHT.replace(r"(?!\p{N})", r"\b").replace(r"\p{N}", r"\d")
"""As `_DIGITS_FROM_THE_RIGHT`, for numbers that no letter follows."""
_ENDING: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES: Final = r"\s+(?!\S)|\s+"
_LINES: Final = rf"\s*[\r\n]+|{_SPACES}"
_GPT2: Final = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
_LLAMA3: Final = f"{_ENDING}|{_WORD}|{_DIGITS}|{_MARKS}|{_LINES}"
_QWEN2: Final = f"{_ENDING}|{_WORD}|{_DIGIT}|{_MARKS}|{_LINES}"
_QWEN35: Final = (
    rf"{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|{_DIGIT}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}"
)
_EXAONE_MOE: Final = (
    rf"{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|{_DIGIT}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_SPACES}"
)
_PUNCTUATION: Final = r"[\p{P}\$\+<=>\^~\|]+"

_WORDS_BY_CASE: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
_WITH_ENDINGS: Final = "|".join(f"{words}{_ENDING}?" for words in _WORDS_BY_CASE)
_MARKS_AND_PATHS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN: Final = "|".join([*_WORDS_BY_CASE, _DIGIT, _MARKS_AND_PATHS, _LINES])
_O200K: Final = f"{_WITH_ENDINGS}|{_DIGITS}|{_MARKS_AND_PATHS}|{_LINES}"
_OUTSIDE_HAN: Final = _WITH_ENDINGS.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]")
_KIMI: Final = rf"\p{{Han}}+|{_OUTSIDE_HAN}|{_DIGITS}|{_MARKS}|{_LINES}"

_HAN_AND_KANA: Final = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{30FF}]+"
_HAN_AND_HANGUL: Final = r"[\x{0800}-\x{9FA5}\x{AC00}-\x{D7FF}]+"
_LETTERS: Final = (
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^\x{0560}-\x{0588}\x{10C7}-\x{10FF}\x{1C80}-\x{1C8F}\x{2D00}-\x{2D2D}\x{A78F}-\x{A7FF}"
    r"\x{AB30}-\x{AB68}\x{10570}-\x{105BF}\x{10D50}-\x{10D8F}\x{16E40}-\x{1DFFF}]]"
)
"""Cased letters, without the newer blocks that the list of DeepSeek LLM lacks."""
_DEEPSEEK_LLM: Final = (
    "[\r\n]",
    rf"\s?{_LETTERS}+",
    r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
    r"\s+$",
    _HAN_AND_HANGUL,
    r"\p{N}+",
)
_DEEPSEEK_CODER: Final = ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_AND_HANGUL, _DIGIT)
_ASCII_PREFIX: Final = r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_DEEPSEEK3: Final = rf"{_ASCII_PREFIX}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}"
_SPARK: Final = rf"{_ASCII_PREFIX}| ?[\p{{P}}\p{{S}}]+|[\r\n]|{_SPACES}"
_ASIAN_SCRIPTS: Final = (
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{30FF}\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}"
    r"\x{0E40}-\x{0EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}"
    r"\x{1100}-\x{11FF}]+"
)
_EAST_ASIAN_RUNS: Final = (
    r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|[\x{3001}-\x{303F}\x{FE30}-\x{FE4F}\x{FF01}\x{FF0C}\x{FF1A}\x{FF1B}"
    rf"\x{{2014}}\x{{2018}}\x{{2019}}\x{{201C}}\x{{201D}}\x{{2026}}]+|[\x{{3105}}-\x{{312F}}]+|{_HAN_AND_KANA}"
)
_YOUTU: Final = (_EAST_ASIAN_RUNS, f"{_WITH_ENDINGS}|{_DIGIT}|{_MARKS_AND_PATHS}|{_LINES}")
_BLOOM: Final = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{0964}\x{06D4}\x{060C})]+"
_CHAMELEON: Final = (
    "<sentinel:[0-9]+>",
    "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    "([\t\n]|    |  )",
    _DIGIT,
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2,
)
_JAIS2_SPACES: Final = "|".join([*(rf"\s{{{2**power}}}(?!\S)" for power in range(9, 1, -1)), r"\s{1,2}(?!\S)", r"\s"])

_GROUPS: Final[Mapping[str, PreTokenizer]] = {
    "default": PreTokenizer(patterns=(_PUNCTUATION, _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2 phi-2 jais exaone4 trillion gigachat mellum a.x-4.0 granite-docling modern-bert roberta-bpe "
    "jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code": PreTokenizer(patterns=(_GPT2,)),
    "mpt olmo": PreTokenizer(patterns=(_GPT2,), compose=True),
    "command-r": PreTokenizer(patterns=(_DIGIT, _GPT2), compose=True),
    "smollm starcoder refact codeshell exaone minerva-7b mellum2": PreTokenizer(patterns=(_DIGIT, _GPT2)),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": PreTokenizer(
        patterns=(_LLAMA3,), ignore_merges=True, add_bos=True
    ),
    "dbrx smaug-bpe chatglm-bpe": PreTokenizer(patterns=(_LLAMA3,)),
    "glm4 glm5": PreTokenizer(patterns=(_LLAMA3,), ignore_merges=True),
    "minicpm5": PreTokenizer(patterns=(_DIGITS, _LLAMA3.replace(_DIGITS, r"\p{N}+")), ignore_merges=True),
    "jais-2": PreTokenizer(patterns=(_LLAMA3.replace(_SPACES, _JAIS2_SPACES),)),
    "qwen2 deepseek-r1-qwen megrez kormo f2llmv2": PreTokenizer(patterns=(_QWEN2,), compose=True),
    "qwen35": PreTokenizer(patterns=(_QWEN35,), compose=True),
    "stablelm2 hunyuan solar-open grok-2": PreTokenizer(patterns=(_QWEN2,)),
    "ufakzeka": PreTokenizer(patterns=(_QWEN2.removeprefix(f"{_ENDING}|"),)),
    "laguna": PreTokenizer(patterns=(r"[^\n]+|\n+", _QWEN2)),
    "seed-coder": PreTokenizer(patterns=(_QWEN2.replace(_MARKS, r" ?[^\s\p{L}\p{N}\r\n]+"),)),
    "bailingmoe bailingmoe2 llada-moe": PreTokenizer(patterns=(_QWEN2.replace(r"\s*[\r\n]+", r"\s*[\r\n]"),)),
    "exaone-moe": PreTokenizer(patterns=(_EXAONE_MOE,)),
    "tekken": PreTokenizer(patterns=(_TEKKEN,), ignore_merges=True, add_bos=True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": PreTokenizer(patterns=(_O200K,)),
    "granite-embed-multi-97m": PreTokenizer(patterns=(_O200K,), ignore_merges=True),
    "tiny_aya cohere2moe": PreTokenizer(patterns=(_WHOLE_NUMBERS, _O200K)),
    "kimi-k2": PreTokenizer(patterns=(_KIMI,)),
    "falcon": PreTokenizer(patterns=(_PUNCTUATION.replace("]", "`]"), _GPT2, "[0-9][0-9][0-9]")),
    "deepseek-llm": PreTokenizer(patterns=_DEEPSEEK_LLM),
    "deepseek-coder": PreTokenizer(patterns=_DEEPSEEK_CODER),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": PreTokenizer(patterns=(_DIGITS, _HAN_AND_KANA, _DEEPSEEK3)),
    "spark2_5": PreTokenizer(patterns=(_DIGITS, _HAN_AND_KANA, _SPARK, _DIGIT)),
    "afmoe": PreTokenizer(patterns=(_DIGITS_FROM_THE_RIGHT, _ASIAN_SCRIPTS, _DEEPSEEK3)),
    "superbpe": PreTokenizer(patterns=(r"\p{N}+", _DIGITS_FROM_THE_RIGHT)),
    "youtu": PreTokenizer(patterns=_YOUTU, ignore_merges=True),
    "poro-chat bloom gpt3-finnish": PreTokenizer(patterns=(_BLOOM,)),
    "viking": PreTokenizer(patterns=(_BLOOM, _DIGIT)),
    "chameleon": PreTokenizer(patterns=_CHAMELEON, add_bos=True),
}
"""Rules by the names that share them."""
PRE_TOKENIZERS: Final = MappingProxyType({name: rules for names, rules in _GROUPS.items() for name in names.split()})


_REPLACED: Final = (" {2,}", r"\s+", r"\A +| +\z")
"""Runs of blanks, which normalizers replace."""
_KNOWN_REGEXES: Final = frozenset([*_REPLACED, *(regex for rules in _GROUPS.values() for regex in rules.patterns)])


def is_known_regex(regex: str) -> bool:
    """Return whether models in use have a regex; another one may take hours to split a short text."""
    return regex in _KNOWN_REGEXES


def byte_level_parts(
    rules: PreTokenizer,
) -> "tuple[normalizers.Normalizer | None, pre_tokenizers.PreTokenizer]":
    from tokenizers import Regex, normalizers, pre_tokenizers

    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rules.patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return normalizers.NFC() if rules.compose else None, pre_tokenizers.Sequence([*splits, to_bytes])
