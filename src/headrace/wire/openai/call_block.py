"""
Tool calls in the text of an answer, from the marker that announces them to the end of their block.

A block is decided once, on its complete text: either everything in it is calls of known functions, or all of it is
text. Nothing of it is released before, because a later character can still decide: an unknown function, a stray word,
an end within the arguments. Small slips of models are accepted where no argument can be lost: a missing bracket at the
end of a call, brackets too many after it, further keys.
"""

import re
from enum import Enum, auto
from typing import Final

from headrace.core.answer_format.call_markers import (
    ARGUMENTS,
    CALL_ID,
    CALL_STARTS,
    TOOL_CALL,
    TOOL_CALL_END,
    TOOL_CALLS,
)
from headrace.wire.openai.call_text import CALL_KEYS, Call, read_arguments, read_call
from headrace.wire.openai.json_scan import JsonScan

_SPACE: Final = r"[ \t\r\n]*"
_FILLING: Final = re.compile(r"(?:[ \t\r\n\],;]|\[(?=[^T]))*")
"""Characters that may separate two calls; `[T` may begin the next marker."""
_FILLING_AFTER_CALL: Final = re.compile(r"(?:[ \t\r\n\],;}]|\[(?=[^T]))*")
_HEADER: Final = re.compile(
    rf"([a-zA-Z0-9_.-]+){_SPACE}(?:{re.escape(CALL_ID)}[^\[\]]*)?(?:{re.escape(ARGUMENTS)})?{_SPACE}"
)
"""The name in front of the arguments, in Mistral's newer format: `[TOOL_CALLS]f[CALL_ID]abc[ARGS]{...}`."""
_MAX_HEADER: Final = 200
_FIRST_KEY: Final = re.compile(rf'\{{{_SPACE}(?:"([^"\\]*)"|[^" \t\r\n])')
_FIRST_NAME: Final = re.compile(rf'\{{{_SPACE}"name"{_SPACE}:{_SPACE}"([^"\\]*)"')
_NUM_FIRST: Final = 400
"""Characters of bare JSON by which it must begin like a call, so that other JSON is streamed."""


class BlockState(Enum):
    """The outcome of a block so far."""

    OPEN = auto()
    CALLS = auto()
    TEXT = auto()


class CallBlock:
    """A block of calls; its outcome does not depend on how the text was split."""

    def __init__(self, start: str, names: frozenset[str]) -> None:
        """Begin after the marker `start`, or in front of bare JSON if that is empty."""
        self.state = BlockState.OPEN
        self.calls: list[Call] = []
        self._start = start
        self._names = names
        self._raw = [start]
        self._scan: JsonScan | None = None
        """None between two calls."""
        self._object: list[str] = []
        """The text of the current object."""
        self._name: str | None = None
        """The function that a header names; its object is the arguments."""

    @property
    def raw(self) -> str:
        """All text that the block has consumed."""
        return "".join(self._raw)

    def feed(self, text: str, *, is_last: bool = False) -> int:
        """Read as far as the text is determined; return the number of characters consumed."""
        position, before = 0, (-1, False)
        while self.state is BlockState.OPEN and before != (position, self._scan is None):
            before = position, self._scan is None
            if self._scan is None:
                position = self._between(text, position, is_last=is_last)
            else:
                position = self._inside(self._scan, text, position)
        self._raw.append(text[:position])
        if is_last and self.state is BlockState.OPEN:
            self._end(text[position:])
        return position

    def _end(self, rest: str) -> None:
        """Decide at the end of the answer, in front of characters that are not consumed."""
        if self._scan is not None:
            self._complete(self._scan)
        if self.state is BlockState.OPEN:
            is_over = bool(self.calls) and TOOL_CALL_END.startswith(rest)
            self.state = BlockState.CALLS if is_over else BlockState.TEXT

    def _between(self, text: str, position: int, *, is_last: bool) -> int:
        """Read what separates calls, up to the next object or the end of the block."""
        filling = (_FILLING_AFTER_CALL if self.calls else _FILLING).match(text, position)
        position = position if filling is None else filling.end()
        rest = text[position : position + _NUM_FIRST]
        end = (TOOL_CALL_END,) if self._start == TOOL_CALL and self.calls else ()
        marker = next((marker for marker in (*end, *CALL_STARTS) if rest.startswith(marker)), None)
        if marker is not None:
            self.state = BlockState.CALLS if self.calls else BlockState.TEXT
            return position + len(marker) if marker in end else position
        if any(marker.startswith(rest) for marker in (*end, *CALL_STARTS)):
            return position
        if rest[0] == "{":
            return self._open(rest, position, is_last=is_last)
        if self._start == TOOL_CALLS and not self.calls and self._name is None:
            return self._read_header(rest, position)
        self.state = BlockState.TEXT
        return position

    def _read_header(self, rest: str, position: int) -> int:
        """Read the name in front of the arguments."""
        length = rest.find("{", 0, _MAX_HEADER)
        if length < 0 and len(rest) < _MAX_HEADER:
            return position
        header = _HEADER.fullmatch(rest, 0, max(length, 0))
        if header is None:
            self.state = BlockState.TEXT
            return position
        self._name = header[1]
        return position + length

    def _open(self, rest: str, position: int, *, is_last: bool) -> int:
        """Begin an object; bare JSON must begin like a call, so that other JSON is streamed."""
        if not (self._start or self.calls):
            begins_call = _begins_call(rest, self._names)
            if begins_call is None and len(rest) < _NUM_FIRST and not is_last:
                return position
            if begins_call is False:
                self.state = BlockState.TEXT
                return position
        self._scan = JsonScan()
        self._object.clear()
        return position

    def _inside(self, scan: JsonScan, text: str, position: int) -> int:
        end = scan.feed(text, position)
        self._object.append(text[position:end])
        if scan.is_closed or scan.is_stopped:
            self._complete(scan)
        return end

    def _complete(self, scan: JsonScan) -> None:
        """Read the object that has ended, perhaps without its closing bracket."""
        self._scan = None
        call = self._call("".join(self._object), scan)
        self._name = None
        if call is None or call.name not in self._names:
            self.state = BlockState.TEXT
        else:
            self.calls.append(call)

    def _call(self, text: str, scan: JsonScan) -> Call | None:
        if self._name is not None:
            arguments = read_arguments(text) if scan.is_closed else None
            return None if arguments is None else Call(self._name, arguments)
        if scan.is_closed:
            return read_call(text)
        return read_call(f"{text}}}", needs_arguments=True) if scan.lacks_one_bracket else None


def _begins_call(text: str, names: frozenset[str]) -> bool | None:
    """Return whether an object begins like a call of a known function; None: more text decides."""
    key = _FIRST_KEY.match(text)
    if key is None:
        return None
    if key[1] != "name":
        return key[1] in CALL_KEYS
    name = _FIRST_NAME.match(text)
    return None if name is None else name[1] in names
