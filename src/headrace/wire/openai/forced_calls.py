"""
Calls that a grammar forces: an array of `{"name": ..., "arguments": ...}` objects.

The grammar guarantees the form, so arguments are passed on as they arrive. Only the end of an answer can cut them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headrace.wire.openai.json_scan import JsonScan

_SPACE: Final = r"[ \t\r\n]*"
_HEADER: Final = re.compile(
    rf'[ \t\r\n\[,}}]*\{{{_SPACE}"name"{_SPACE}:{_SPACE}"([^"\\]*)"{_SPACE},{_SPACE}"arguments"{_SPACE}:{_SPACE}'
    r"(?=([{\[]))"
)
_MAX_HEADER: Final = 1000
_FILLING: Final = " \t\r\n[],}"
_CLOSING: Final = {"{": "}", "[": "]"}


@dataclass(frozen=True, slots=True)
class CallName:
    """The beginning of a call."""

    name: str


class ForcedCalls:
    """Splits an answer into the names and the arguments of its calls."""

    def __init__(self) -> None:
        self._buffer = ""
        self._scan: JsonScan | None = None
        self._is_text = False
        """The text is not of the forced form."""

    def feed(self, text: str) -> Iterator[CallName | str]:
        """Yield the names of the calls and the pieces of their arguments."""
        self._buffer += text
        while self._buffer and not self._is_text:
            if self._scan is not None:
                yield self._arguments(self._scan)
                continue
            header = _HEADER.match(self._buffer)
            if header is None:
                self._is_text = len(self._buffer) >= _MAX_HEADER
                return
            self._scan = JsonScan(closing=_CLOSING[header[2]])
            self._buffer = self._buffer[header.end() :]
            yield CallName(header[1])

    def rest(self, *, has_calls: bool) -> str:
        """Return the text that is not part of a call; after a call, not its brackets and the start of the next one."""
        is_cut = self._buffer.strip(_FILLING)[:1] in {"", "{"}
        return "" if is_cut and has_calls else self._buffer

    def _arguments(self, scan: JsonScan) -> str:
        end = scan.feed(self._buffer, 0)
        piece, self._buffer = self._buffer[:end], self._buffer[end:]
        self._scan = None if scan.is_closed else scan
        self._is_text = scan.is_stopped
        return piece
