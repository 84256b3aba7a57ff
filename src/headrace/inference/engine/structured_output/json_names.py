"""
The property names used so far in the objects of a JSON answer: grammars cannot forbid duplicates.

`follow` reads the bytes of an answer, `NameIndex` finds the tokens that would complete a used name. Names are compared
as written: the grammars allow one spelling of each. Pure.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")

_Frame = tuple[frozenset[bytes] | None, "_Frame | None"]
"""The names of an open object (None for an array) and the enclosing frame. Immutable and shared by forks."""


@dataclass(frozen=True, slots=True)
class JsonPlace:
    """A place in a JSON answer."""

    frame: _Frame | None = None
    mode: Literal["outside", "name", "text"] = "outside"
    name: bytes = b""
    """The part of the open name written so far."""
    is_escaped: bool = False
    expects_name: bool = False
    num_repeats: int = 0
    """Repeated names so far."""

    @property
    def used_names(self) -> frozenset[bytes]:
        """Names of the innermost object that begin with the open one."""
        if self.mode != "name" or self.frame is None or not self.frame[0]:
            return frozenset()
        return frozenset(name for name in self.frame[0] if name.startswith(self.name))


BEGINNING: Final = JsonPlace()


def follow(place: JsonPlace, data: bytes) -> JsonPlace:
    frame, mode, name, expects_name = place.frame, place.mode, bytearray(place.name), place.expects_name
    is_escaped, num_repeats = place.is_escaped, place.num_repeats
    for byte in data:
        if mode == "outside":
            if byte == _QUOTE:
                mode, expects_name = ("name" if expects_name else "text"), False
            else:
                frame, expects_name = _structure(frame, byte, expects_name=expects_name)
        elif byte == _QUOTE and not is_escaped:
            if mode == "name" and frame is not None and frame[0] is not None:
                num_repeats += bytes(name) in frame[0]
                frame = (frame[0] | {bytes(name)}, frame[1])
                name.clear()
            mode = "outside"
        else:
            is_escaped = byte == _BACKSLASH and not is_escaped
            if mode == "name":
                name.append(byte)
    return JsonPlace(frame, mode, bytes(name), is_escaped, expects_name, num_repeats)


def _structure(frame: _Frame | None, byte: int, *, expects_name: bool) -> tuple[_Frame | None, bool]:
    """Return the frame after a byte outside of strings, and whether the next string is a name."""
    if byte in b"{":
        return (frozenset(), frame), True
    if byte in b"[":
        return (None, frame), False
    if byte in b"}]":
        return (frame[1] if frame is not None else None), False
    if byte in b",":
        return frame, frame is not None and frame[0] is not None
    return frame, expects_name


class NameIndex:
    """An index of a vocabulary's tokens by their bytes."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens
        self._sorted_ids = sorted((index for index, token in enumerate(tokens) if token), key=tokens.__getitem__)
        self._sorted = [tokens[index] for index in self._sorted_ids]
        self.letters = [index for index, token in enumerate(tokens) if token in (b"a", b"A", b"0")]
        """Single characters that most names may continue with."""
        several = [index for index in self._sorted_ids if tokens[index].count(b'"') > 1]
        self._several_quotes = np.array(several, np.int64)
        """Tokens that may contain a whole name."""

    def repeating(self, place: JsonPlace, words: npt.NDArray[np.uint32]) -> list[int]:
        """Return the allowed tokens that complete a used name."""
        found = [token for name in place.used_names for token in self._beginning(name[len(place.name) :] + b'"')]
        several: list[int] = self._several_quotes[is_allowed(words, self._several_quotes)].tolist()
        return found + [t for t in several if follow(place, self.tokens[t]).num_repeats > place.num_repeats]

    def spelling(self, place: JsonPlace) -> Iterator[int]:
        """Yield the tokens that complete a used name up to its closing quote."""
        for name in place.used_names:
            rest = name[len(place.name) :]
            first = bisect_left(self._sorted, rest) if rest else len(self._sorted)
            while first < len(self._sorted) and self._sorted[first] == rest:
                yield self._sorted_ids[first]
                first += 1

    def _beginning(self, prefix: bytes) -> Iterable[int]:
        # The prefix ends in a quote: its successor in byte order is the same with the next byte.
        first = bisect_left(self._sorted, prefix)
        return self._sorted_ids[first : bisect_left(self._sorted, prefix[:-1] + b"#", first)]


def is_allowed(words: npt.NDArray[np.uint32], tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    bits: npt.NDArray[np.uint32] = np.left_shift(1, tokens & 31).astype(np.uint32)
    found: npt.NDArray[np.bool_] = (words[tokens >> 5] & bits) != 0
    return found


def clear(words: npt.NDArray[np.uint32], tokens: Iterable[int]) -> None:
    for token in tokens:
        words[token >> 5] &= ~np.uint32(1 << (token & 31))
