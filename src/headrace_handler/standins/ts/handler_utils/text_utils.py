"""A tokenizer for English words, and n-grams."""

import re
from collections.abc import Callable, Iterator, Sequence

_SPACED = re.compile(r"([.,()!?'])")
_DROPPED = re.compile(r'"')
_BLANK = re.compile(r"<br />|[;:]|\s+")


def get_tokenizer(tokenizer: str | None, language: str = "en") -> Callable[[str], list[str]]:
    """
    Return a tokenizer by name: None splits at white space.

    `basic_english` also lowers the case, makes tokens of punctuation marks and drops quotes, colons and semicolons.
    """
    if tokenizer is None:
        return str.split
    if tokenizer != "basic_english":
        raise ValueError(f"The tokenizer is {tokenizer!r}; expected 'basic_english' or None.")
    if language != "en":
        raise ValueError(f"The language is {language!r}; 'basic_english' expects 'en'.")
    return _basic_english


def ngrams_iterator(token_list: Sequence[str], ngrams: int) -> Iterator[str]:
    """Yield the tokens, then their pairs and so on up to `ngrams` tokens, joined by spaces."""
    for length in range(1, ngrams + 1):
        for start in range(len(token_list) - length + 1):
            yield " ".join(token_list[start : start + length])


def _basic_english(line: str) -> list[str]:
    return _SPACED.sub(r" \1 ", _DROPPED.sub("", _BLANK.sub(" ", line.lower()))).split()
