"""
TorchServe's answer: text in chunks of whole words.

Published readers take every chunk for a line and drop its last byte, so each chunk ends in a separator, and the last
one in a newline. A word is sent when the next one begins, as in transformers' `TextIteratorStreamer` before 5.24.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.errors import HeadraceError
from headrace.core.generation import Chunk
from headrace.wire.answers import Answer
from headrace.wire.dialect import StreamRenderer, Timings
from headrace.wire.streams import ClosingStream
from headrace.wire.torchserve.errors import error_body

_SEPARATORS = " \n\t"
_ENOUGH_CHARACTERS = 32
"""Length of text that is sent without a separator, in scripts that have none."""
_SCRIPTS_WITHOUT_SPACES = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0x9FFF),  # Chinese, Japanese
    (0xF900, 0xFAFF),
    (0xFF00, 0xFFEF),  # full-width forms
    (0x20000, 0x3FFFF),
)


@dataclass(frozen=True, slots=True)
class WordReply:
    """Renders one answer as plain text."""

    prefix: str
    """The prompt, which precedes the generated text, or nothing."""

    @property
    def content_type(self) -> str:
        """The content type of plain text."""
        return "text/plain; charset=utf-8"

    def headers(self, timings: Timings | None) -> tuple[tuple[str, str], ...]:
        """Return no headers."""
        del timings
        return ()

    def stream(self) -> StreamRenderer:
        """Return a renderer of whole words."""
        return WordStream(self.prefix)

    def render(self, answers: Sequence[Answer]) -> bytes:
        """Render the bytes of the stream at once."""
        (answer,) = answers
        return _ended(self.prefix + answer.choices[0].text).encode()


class WordStream(ClosingStream):
    """Renders whole words, each with the separator after it."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._held = [prefix]
        self._is_first = True
        self._ends_in_newline = False

    def _chunk(self, chunk: Chunk, request: int) -> Sequence[bytes]:
        """Render the words that are complete; at the end the rest of the text and a newline."""
        del request
        self._held.append(chunk.text)
        if chunk.finish is not None:
            self._is_closed = True
            return self._rest()
        newest = "".join(self._held) if self._is_first else chunk.text
        self._is_first = False
        if not any(mark in newest for mark in _SEPARATORS) and not self._is_enough(newest):
            return ()
        return self._words("".join(self._held))

    def _error(self, error: HeadraceError) -> Sequence[bytes]:
        """Render the text held back, and TorchServe's error object on a separate line."""
        return [*self._rest(), error_body(error) + b"\n"]

    def _is_enough(self, newest: str) -> bool:
        return bool(newest) and _has_no_spaces(newest[-1]) and sum(map(len, self._held)) >= _ENOUGH_CHARACTERS

    def _words(self, text: str) -> Sequence[bytes]:
        """Return the text up to its last separator; the rest is held back."""
        after = max(map(text.rfind, _SEPARATORS)) + 1
        if not after and _has_no_spaces(text[-1]):
            after = len(text)
        self._held = [text[after:]]
        self._ends_in_newline = text[:after].endswith("\n")
        return [text[:after].encode()]

    def _rest(self) -> Sequence[bytes]:
        text = "".join(self._held)
        self._held = []
        if not text and self._ends_in_newline:
            return ()
        return [_ended(text).encode()]


def _ended(text: str) -> str:
    """Add a final newline: line readers never finish on a stream without one."""
    return text if text.endswith("\n") else text + "\n"


def _has_no_spaces(character: str) -> bool:
    """Return whether a character belongs to a script that is written without spaces."""
    point = ord(character)
    return any(first <= point <= last for first, last in _SCRIPTS_WITHOUT_SPACES)
