"""
Reading of text that arrives in pieces, by generators that wait until the text so far decides.

A read gives the same result however the text was split: while more text could change it, it yields.
"""

import re
from collections.abc import Generator
from typing import Final, TypeVar

from headrace.core.answer_format.parser import held_length

T = TypeVar("T")
Reading = Generator[None, None, T]
"""Yields while it waits for text; returns what it has read."""
_SPACE: Final = re.compile(r"\s*")
_WORD: Final = re.compile(r"[\w.-]*")


class EndOfText(Exception):
    """The answer has ended before the text that was to be read; `text` is what it had instead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class TextReader:
    """The unread part of a text, and the part that has been read."""

    def __init__(self) -> None:
        self.rest = ""
        self.is_last = False
        """No more text comes."""
        self._taken: list[str] = []

    @property
    def taken(self) -> str:
        """All text that has been read."""
        return "".join(self._taken)

    def has(self, *options: str) -> Reading[str | None]:
        """Read the option that comes next, and return it; None: none of them. No option begins another one."""
        found = yield from self.comes(*options)
        if found is not None:
            self._take(len(found))
        return found

    def comes(self, *options: str, after_space: bool = False) -> Reading[str | None]:
        """Return the option that comes next, perhaps after white space, without reading it."""
        while True:
            text = self.rest.lstrip() if after_space else self.rest
            for option in options:
                if text.startswith(option):
                    return option
            if self.is_last or not any(option.startswith(text) for option in options):
                return None
            yield

    def space(self) -> Reading[None]:
        """Read white space."""
        yield from self._all(_SPACE)

    def word(self) -> Reading[str]:
        """Read letters, digits and `_`, `.`, `-`."""
        word = yield from self._all(_WORD)
        return word

    def until(self, end: str) -> Reading[str]:
        """Read up to a text and over it; return what was before it. Raises `EndOfText` if it never comes."""
        pieces: list[str] = []
        while (place := self.rest.find(end)) < 0:
            if self.is_last:
                pieces.append(self._take(len(self.rest)))
                raise EndOfText("".join(pieces))
            pieces.append(self._take(len(self.rest) - held_length(self.rest, (end,))))
            yield
        pieces.append(self._take(place))
        self._take(len(end))
        return "".join(pieces)

    def _all(self, pattern: re.Pattern[str]) -> Reading[str]:
        pieces: list[str] = []
        while True:
            found = pattern.match(self.rest)
            pieces.append(self._take(0 if found is None else found.end()))
            if self.rest or self.is_last:
                return "".join(pieces)
            yield

    def _take(self, count: int) -> str:
        taken, self.rest = self.rest[:count], self.rest[count:]
        self._taken.append(taken)
        return taken
