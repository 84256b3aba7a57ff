"""
Finds tool calls in an answer while it streams.

Three sources of calls: the whole answer is the arguments of one named function; the whole answer is an array of calls;
or the model may write text and calls as it likes (`auto`), in the forms that open models use:
`<tool_call>{...}</tool_call>` (Hermes, Qwen, SmolLM), `[TOOL_CALLS][...]` (Mistral), or JSON alone at the start of the
answer (Llama 3). What might become a call is held back until the name of a known function has been read; if none
comes, it is text after all. The deltas do not depend on how the text was cut into pieces.
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
"""What may stand between two calls."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of the function `name` begins; `index` counts the calls."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of the arguments of call `index`."""

    index: int
    text: str


Delta = TextDelta | CallStart | ArgumentsDelta


class _State(Enum):
    TEXT = auto()
    BLOCK = auto()
    """Among calls, outside of any."""
    CALL = auto()
    OVER = auto()
    """Something else than the calls that were forced; nothing is read any more."""


class ToolStream:
    """Turns the text of one choice into deltas."""

    def __init__(self, plan: ToolPlan) -> None:
        self.num_calls = 0
        self._plan = plan
        self._is_forced = plan.mode == "required"
        self._state = _State.BLOCK if self._is_forced else _State.TEXT
        self._buffer = ""
        """Text that nothing could be decided about yet."""
        self._raw = ""
        """What has been read of a block that may yet turn out to be text."""
        self._block_has_calls = self._is_forced
        self._is_at_start = True
        self._skips_space = False
        self._scanner = CallScanner()
        self._is_muted = False
        """The call that is being read is one too many."""

    def feed(self, text: str) -> list[Delta]:
        """Take more of the answer."""
        if self._plan.mode == "none":
            return [TextDelta(text)] if text else []
        if self._plan.mode == "named":
            return self._named(text)
        self._buffer += text
        return _merged(self._read())

    def finish(self) -> list[Delta]:
        """The answer has ended: what was held back is text, unless it belongs to a block of calls."""
        if self._state is not _State.TEXT and self._block_has_calls:
            return []
        held, self._raw, self._buffer = self._raw + self._buffer, "", ""
        return _merged(self._text(held))

    def _named(self, text: str) -> list[Delta]:
        starts: list[Delta] = [] if self.num_calls else [CallStart(0, self._plan.named)]
        self.num_calls = 1
        return [*starts, ArgumentsDelta(0, text)] if text else starts

    def _read(self) -> Iterator[Delta]:
        """Decide all that can be decided."""
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
        """Text for the client; the white space after a call is none."""
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
        found = [(place, marker) for marker in _MARKERS if (place := self._buffer.find(marker)) >= 0]
        if found:
            place, marker = min(found)
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
        """Whether the end marker, or the start of one, comes next."""
        if self._is_forced or not self._block_has_calls:
            return False
        if self._buffer.startswith(_END):
            self._take(len(_END))
            self._state = _State.TEXT
            self._skips_space = True
            return True
        return _END.startswith(self._buffer)

    def _leave_block(self) -> Iterator[Delta]:
        """Text comes next; what was read of a block without calls was text, too."""
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


def _merged(deltas: Iterable[Delta]) -> list[Delta]:
    """The deltas, neighbours of the same kind joined."""
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
    """How many characters at the end could be the start of a marker."""
    end = text[-_LONGEST_PARTIAL:]
    for start, character in enumerate(end):
        if character in "<[" and any(marker.startswith(end[start:]) for marker in _MARKERS):
            return len(end) - start
    return 0
