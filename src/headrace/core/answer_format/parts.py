"""The parts of an answer, and the interface of the parsers that find them."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol


class Section(Enum):
    """The place in an answer that a parser has reached."""

    UNDECIDED = auto()
    """At the beginning, where reasoning or content may follow."""
    HEADER = auto()
    """Between messages or in the header of one."""
    REASONING = auto()
    CONTENT = auto()
    CALL = auto()
    """In the arguments of a call."""


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """A piece of the reasoning, which users rarely read."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentText:
    """Text of the answer for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class CallOpening:
    """The header of a message that calls the function `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class CallText:
    """Text of the arguments of the latest call."""

    text: str


Part = ReasoningText | ContentText | CallOpening | CallText


class AnswerParser(Protocol):
    """
    Splits the text of one answer into its parts, whatever pieces it arrives in.

    Text that may become a separator is held back.
    """

    @property
    def section(self) -> Section:
        """The place after all text so far."""
        ...

    @property
    def called(self) -> str:
        """The function that the current message calls, in section CALL."""
        ...

    @property
    def reasoning_spans(self) -> tuple[tuple[int, int], ...]:
        """The characters of the text so far that are reasoning, as start and end; separators are not."""
        ...

    def feed(self, text: str) -> list[Part]:
        """Process the next text; return the parts that it determines."""
        ...

    def finish(self) -> list[Part]:
        """End the answer; return what was held back."""
        ...


def held_length(text: str, separators: tuple[str, ...]) -> int:
    """Return the length of the longest suffix that may be the start of a separator."""
    longest = min(len(text), max(map(len, separators)) - 1)
    for length in range(longest, 0, -1):
        end = text[-length:]
        if any(separator.startswith(end) for separator in separators):
            return length
    return 0


def find_first(text: str, separators: tuple[str, ...]) -> tuple[int, str] | None:
    """Return the place of the first separator and the separator, or None."""
    found = [(place, separator) for separator in separators if (place := text.find(separator)) >= 0]
    return min(found) if found else None
