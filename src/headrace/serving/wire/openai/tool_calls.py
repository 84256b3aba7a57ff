"""
Detection of tool calls in a text: calls that a model writes by itself, and calls that a grammar forces.

A block of calls begins at a marker, or at the bracket of bare JSON, and is decided once, on its complete text: either
everything in it is calls of known functions, or all of it is text. Nothing of it is released before, because a later
character can still decide: an unknown function, a stray word, an end within the arguments. Small slips of models are
accepted where no argument can be lost: a missing bracket at the end of a call, too many brackets after it, more keys.

Models write calls in a few forms, and data that looks like a call. A text is a call only if all its arguments are
found, so that a tool never runs with fewer than the model wrote.

Calls in other notations are read by `openai.marked_calls`.

Forced calls are an array of `{"name": ..., "arguments": ...}` objects. The grammar guarantees the form, so arguments
are passed on as they arrive. Only the end of an answer can cut them.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import msgspec

from headrace.core.answer_format.call_forms import ARGUMENTS, CALL_ID, CALL_STARTS, JSON_ENDS, TOOL_CALLS

_OUTSIDE: Final = re.compile(r'["{}\[\]]|[^\w\s+\-.,:]')
"""A character outside of strings that opens or closes something, or that JSON does not have there."""
_IN_STRING: Final = re.compile(r'["\\]')


class JsonScan:
    """
    Finds the end of a value that begins with a bracket.

    Brackets are counted and strings are skipped; the text is not checked any further.
    """

    def __init__(self, *, closing: str = "}") -> None:
        """Begin in front of the bracket that `closing` closes."""
        self.is_closed = False
        """The value has ended."""
        self.is_stopped = False
        """A character follows that the value cannot have; it is not consumed."""
        self._closing = closing
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    @property
    def lacks_one_bracket(self) -> bool:
        """True if one closing bracket would complete the text so far."""
        return self._depth == 1 and not self._in_string

    def feed(self, text: str, position: int) -> int:
        """Read from a position to the end of the value or of the text; return the position after it."""
        while position < len(text) and not (self.is_closed or self.is_stopped):
            if self._is_escaped:
                self._is_escaped = False
                position += 1
                continue
            found = (_IN_STRING if self._in_string else _OUTSIDE).search(text, position)
            if found is None:
                return len(text)
            position = found.start() + self._read(found[0])
        return position

    def _read(self, character: str) -> int:
        """Process a character that matters; return how many are consumed."""
        if self._in_string:
            self._is_escaped = character == "\\"
            self._in_string = self._is_escaped
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]" and (self._depth > 1 or character == self._closing):
            self._depth -= 1
            self.is_closed = self._depth == 0
        else:
            self.is_stopped = True
            return 0
        return 1


NO_ARGUMENTS: Final = "{}"
_ARGUMENT_KEYS: Final = frozenset({"arguments", "parameters"})
"""Keys of the arguments: the first for Hermes, Qwen and Mistral, the second for Llama 3."""
_NAME_KEYS: Final = ("name", "tool_name")
"""Keys of the function's name; the second for Command R."""
CALL_KEYS: Final = frozenset({*_ARGUMENT_KEYS, *_NAME_KEYS, "tool_call_id", "type", "id", "index", "function"})
"""Keys with which calls begin."""
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_string = msgspec.json.Decoder(str).decode
UNREADABLE: Final = (msgspec.DecodeError, ValueError, RecursionError)


@dataclass(frozen=True, slots=True)
class Call:
    """A complete tool call; the arguments are the text of a JSON object, as the model wrote it."""

    name: str
    arguments: str


def read_call(text: str, *, needs_arguments: bool = False) -> Call | None:
    """
    Return the call that the text of a JSON object is, or None if it is something else.

    With `needs_arguments`, a call that only names its function is refused: more of it may be missing.
    """
    try:
        refuse_repeated_keys(text)
        members = _members(text)
        if "function" not in members or not members.keys().isdisjoint(_NAME_KEYS):
            return _call(members, needs_arguments=needs_arguments)
        inner = _members(members["function"])  # OpenAI's form; with `parameters` it is the declaration of a function
        is_call = _ARGUMENT_KEYS.isdisjoint(members) and "arguments" in inner
        return _call(inner, needs_arguments=True) if is_call else None
    except UNREADABLE:
        return None


def read_arguments(text: str) -> str | None:
    """Return the text of an object of arguments, or None if it is not one; nothing and `null` are no arguments."""
    text = text.strip()
    if text in {"", "null"}:
        return NO_ARGUMENTS
    try:
        refuse_repeated_keys(text)
        return text if isinstance(msgspec.json.decode(text), dict) else None
    except UNREADABLE:
        return None


def _call(members: Mapping[str, msgspec.Raw], *, needs_arguments: bool) -> Call | None:
    keys = _ARGUMENT_KEYS & members.keys()
    names = [members[key] for key in _NAME_KEYS if key in members]
    if len(names) != 1 or len(keys) > 1:
        return None
    if not keys and (needs_arguments or not members.keys() <= {*_NAME_KEYS, "type"}):
        return None  # more may be meant as an argument
    if not keys and "type" in members and _string(members["type"]) != "function":
        return None
    if "parameters" in members and "description" in members:  # a declared function, which models repeat
        return None
    arguments = NO_ARGUMENTS
    for key in keys:
        written = bytes(members[key]).decode()  # an object, or a text that has one
        found = read_arguments(_string(written) if written.startswith('"') else written)
        if found is None:
            return None
        arguments = found
    return Call(_string(names[0]), arguments)


def refuse_repeated_keys(text: str) -> None:
    """Raise `ValueError` if a key is repeated in an object: readers would drop one of the values."""

    def check(pairs: list[tuple[str, object]]) -> None:
        if len({key for key, _ in pairs}) < len(pairs):
            raise ValueError("repeated key")

    json.loads(text, object_pairs_hook=check)


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
        self._marker_after = JSON_ENDS.get(start, "")
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

    def feed(self, text: str, *, is_last: bool = False) -> str:
        """Read as far as the text is determined; return the rest."""
        position, before = 0, (-1, False)
        while self.state is BlockState.OPEN and before != (position, self._scan is None):
            before = position, self._scan is None
            if self._scan is None:
                position = self._between(text, position, is_last=is_last)
            else:
                scan, start = self._scan, position
                position = scan.feed(text, start)
                self._object.append(text[start:position])
                if scan.is_closed or scan.is_stopped:
                    self._complete(scan)
        self._raw.append(text[:position])
        if is_last and self.state is BlockState.OPEN:
            self._end(text[position:])
        return text[position:]

    def _end(self, rest: str) -> None:
        """Decide at the end of the answer, in front of characters that are not consumed."""
        if self._scan is not None:
            self._complete(self._scan)
        if self.state is BlockState.OPEN:
            is_over = bool(self.calls) and (not rest or self._marker_after.startswith(rest))
            self.state = BlockState.CALLS if is_over else BlockState.TEXT

    def _between(self, text: str, position: int, *, is_last: bool) -> int:
        """Read what separates calls, up to the next object or the end of the block."""
        filling = (_FILLING_AFTER_CALL if self.calls else _FILLING).match(text, position)
        position = position if filling is None else filling.end()
        rest = text[position : position + _NUM_FIRST]
        end = (self._marker_after,) if self._marker_after and self.calls else ()
        markers = (*end, *CALL_STARTS)
        found = max((marker for marker in markers if rest.startswith(marker)), key=len, default="")
        if not (found and is_last) and any(marker.startswith(rest) for marker in markers if marker != rest):
            return position  # the end of a block may begin the next one (GigaChat 3)
        if found:
            self.state = BlockState.CALLS if self.calls else BlockState.TEXT
            return position + len(found) if found in end else position
        if rest[0] == "{":
            return self._open(rest, position, is_last=is_last)
        if self._start == TOOL_CALLS and not self.calls and self._name is None:
            return self._read_header(rest, position)
        self.state = BlockState.TEXT
        return position

    def _read_header(self, rest: str, position: int) -> int:
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


_FORCED_HEADER: Final = re.compile(
    rf'[ \t\r\n\[,}}]*\{{{_SPACE}"name"{_SPACE}:{_SPACE}"([^"\\]*)"{_SPACE},{_SPACE}"arguments"{_SPACE}:{_SPACE}'
    r"(?=([{\[]))"
)
_MAX_FORCED_HEADER: Final = 1000
_FORCED_FILLING: Final = " \t\r\n[],}"
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
            header = _FORCED_HEADER.match(self._buffer)
            if header is None:
                self._is_text = len(self._buffer) >= _MAX_FORCED_HEADER
                return
            self._scan = JsonScan(closing=_CLOSING[header[2]])
            self._buffer = self._buffer[header.end() :]
            yield CallName(header[1])

    def rest(self, *, has_calls: bool) -> str:
        """Return the text that is not part of a call; after a call, not its brackets and the start of the next one."""
        is_cut = self._buffer.strip(_FORCED_FILLING)[:1] in {"", "{"}
        return "" if is_cut and has_calls else self._buffer

    def _arguments(self, scan: JsonScan) -> str:
        end = scan.feed(self._buffer, 0)
        piece, self._buffer = self._buffer[:end], self._buffer[end:]
        self._scan = None if scan.is_closed else scan
        self._is_text = scan.is_stopped
        return piece
