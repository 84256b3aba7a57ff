"""
Detection of tool calls in an answer while it streams.

Calls have three sources: the whole answer is the arguments of one named function; the whole answer is an array of
calls; or the model mixes text and calls (`auto`), in the formats of open models: `<tool_call>{...}</tool_call>`
(Hermes, Qwen, SmolLM), `[TOOL_CALLS][...]` (Mistral), or bare JSON at the start of the answer (Llama 3). Text that may
become a call is held back until the name of a known function has been read; if none follows, it is emitted as text. The
deltas do not depend on how the text was split into chunks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from headrace.wire.openai.call_scanner import CallScanner
from headrace.wire.openai.tools import ToolPlan

_MARKERS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>")
_LONGEST_PARTIAL = max(len(marker) for marker in _MARKERS) - 1
_END = "</tool_call>"
_FILLING = " \t\r\n[],;"
"""Characters that may separate two calls."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text to append to the message's content."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The start of a call of the function `name`; `index` counts the calls."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """Text to append to the arguments of call `index`."""

    index: int
    text: str


Delta = TextDelta | CallStart | ArgumentsDelta


class _State(Enum):
    TEXT = auto()
    BLOCK = auto()
    """Inside a block of calls, between two calls."""
    CALL = auto()
    OVER = auto()
    """After text that is not one of the forced calls; the rest is ignored."""


class ToolStream:
    """Converts the text of one choice to deltas."""

    def __init__(self, plan: ToolPlan) -> None:
        self.num_calls = 0
        self._plan = plan
        self._is_forced = plan.mode == "required"
        self._state = _State.BLOCK if self._is_forced else _State.TEXT
        self._buffer = ""
        """Text that may still become either text or a call."""
        self._raw = ""
        """The text of the current block, which may turn out not to contain calls."""
        self._block_has_calls = self._is_forced
        self._is_at_start = True
        self._skips_space = False
        self._scanner = CallScanner()
        self._is_muted = False
        """True if the current call exceeds `max_calls` and is dropped."""
        self._is_text = False
        """True if the announced call is not one of the request's functions."""

    def feed(self, text: str) -> list[Delta]:
        """Process the next part of the answer."""
        if self._plan.mode == "none":
            return [TextDelta(text)] if text else []
        if self._plan.mode == "named":
            return self._named(text)
        self._buffer += text
        return merged(self._read())

    def finish(self) -> list[Delta]:
        """End the answer: text that was held back is emitted, unless it belongs to a block of calls."""
        if self._state is not _State.TEXT and self._block_has_calls:
            return []
        held, self._raw, self._buffer = self._raw + self._buffer, "", ""
        return merged(self._text(held))

    def open_call(self, name: str) -> list[Delta]:
        """Start a call that the answer's format announces; a call of an unknown function is text."""
        is_named = self._plan.mode == "named"
        self._is_text = name != self._plan.named if is_named else name not in self._plan.names
        if self._is_text:
            return []
        if is_named:
            return self._named("")
        return list(self._announce(name))

    def feed_call(self, text: str) -> list[Delta]:
        """Process arguments of the call that `open_call` began."""
        if self._is_text:
            return [TextDelta(text)]
        return [] if self._is_muted else [ArgumentsDelta(self.num_calls - 1, text)]

    def _named(self, text: str) -> list[Delta]:
        starts: list[Delta] = [] if self.num_calls else [CallStart(0, self._plan.named)]
        self.num_calls = 1
        return [*starts, ArgumentsDelta(0, text)] if text else starts

    def _read(self) -> Iterator[Delta]:
        """Yield the deltas that the buffer already determines."""
        before: tuple[_State, str] | None = None
        while self._buffer and before != (self._state, self._buffer):
            before = self._state, self._buffer
            if self._state is _State.TEXT:
                yield from self._in_text()
            elif self._state is _State.BLOCK:
                yield from self._in_block()
            elif self._state is _State.CALL:
                yield from self._in_call()
            else:
                self._buffer = ""

    def _text(self, text: str) -> Iterator[Delta]:
        """Yield text for the client, without the white space after a call."""
        if self._skips_space:
            text = text.lstrip()
        if text:
            self._skips_space = False
            yield TextDelta(text)

    def _take(self, count: int) -> str:
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _in_text(self) -> Iterator[Delta]:
        if self._is_at_start:
            start = self._buffer.lstrip()
            if start.rstrip() in {"", "["}:
                return
            self._is_at_start = False
            if start[0] == "{" or (start[0] == "[" and start[1:].lstrip().startswith("{")):
                self._open_block("")
                return
        markers = [(place, marker) for marker in _MARKERS if (place := self._buffer.find(marker)) >= 0]
        if markers:
            place, marker = min(markers)
            yield from self._text(self._take(place))
            self._open_block(self._take(len(marker)))
        else:
            yield from self._text(self._take(len(self._buffer) - _length_of_partial_marker(self._buffer)))

    def _open_block(self, raw: str) -> None:
        self._state = _State.BLOCK
        self._block_has_calls = False
        self._raw = raw

    def _in_block(self) -> Iterator[Delta]:
        filling = self._take(len(self._buffer) - len(self._buffer.lstrip(_FILLING)))
        if not self._block_has_calls:
            self._raw += filling
        if self._buffer.startswith("{"):
            self._scanner = CallScanner()
            self._is_muted = False
            self._state = _State.CALL
        elif self._buffer and not self._reads_end():
            yield from self._leave_block()

    def _reads_end(self) -> bool:
        """Return whether the end marker, or the start of one, comes next."""
        if self._is_forced or not self._block_has_calls:
            return False
        if self._buffer.startswith(_END):
            self._take(len(_END))
            self._state = _State.TEXT
            self._skips_space = True
            return True
        return _END.startswith(self._buffer)

    def _leave_block(self) -> Iterator[Delta]:
        """Return to text; a block without calls is emitted as text."""
        self._state = _State.OVER if self._is_forced else _State.TEXT
        self._skips_space = self._block_has_calls
        raw, self._raw = self._raw, ""
        yield from self._text(raw)

    def _in_call(self) -> Iterator[Delta]:
        scanner = self._scanner
        was_named = scanner.name is not None
        piece = self._take(scanner.feed(self._buffer))
        if not self._block_has_calls:
            self._raw += piece
        if scanner.is_broken:
            yield from self._leave_block()
            return
        if scanner.name is not None and not was_named:
            if scanner.name not in self._plan.names and not self._block_has_calls:
                yield from self._leave_block()
                return
            yield from self._announce(scanner.name)
        arguments = scanner.take_arguments()
        if arguments and not self._is_muted:
            yield ArgumentsDelta(self.num_calls - 1, arguments)
        if scanner.is_done:
            self._state = _State.BLOCK

    def _announce(self, name: str) -> Iterator[Delta]:
        self._block_has_calls = True
        self._raw = ""
        self._is_muted = not self._may_call(name)
        if not self._is_muted:
            self.num_calls += 1
            yield CallStart(self.num_calls - 1, name)

    def _may_call(self, name: str) -> bool:
        has_room = self._plan.max_calls is None or self.num_calls < self._plan.max_calls
        return has_room and name in self._plan.names


def merged(deltas: Iterable[Delta]) -> list[Delta]:
    """Join neighbouring deltas of the same kind."""
    result: list[Delta] = []
    for delta in deltas:
        last = result[-1] if result else None
        if isinstance(delta, TextDelta) and isinstance(last, TextDelta):
            result[-1] = TextDelta(last.text + delta.text)
        elif isinstance(delta, ArgumentsDelta) and isinstance(last, ArgumentsDelta) and last.index == delta.index:
            result[-1] = ArgumentsDelta(last.index, last.text + delta.text)
        else:
            result.append(delta)
    return result


def _length_of_partial_marker(text: str) -> int:
    """Return the length of the longest suffix that may be the start of a marker."""
    end = text[-_LONGEST_PARTIAL:]
    for start, character in enumerate(end):
        if character in "<[" and any(marker.startswith(end[start:]) for marker in _MARKERS):
            return len(end) - start
    return 0
