"""Incremental parser of one tool call, `{"name": ..., "arguments": {...}}`."""

from enum import Enum, auto

import msgspec

_SPACE = " \t\r\n"
_ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
"""Keys of the arguments: the first for Hermes, Qwen and Mistral, the second for Llama 3."""
_OTHER_KEYS = frozenset({"name", "type", "id"})


class _State(Enum):
    START = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    INSIDE = auto()
    DONE = auto()
    BROKEN = auto()


class CallScanner:
    """
    A state machine over the characters of one JSON object.

    `name` is known once its string has ended. Arguments are returned as they arrive, exactly as the model wrote them,
    but never before the name. The JSON is checked only as far as needed to find the ends of values.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self._state = _State.START
        self._key = ""
        self._value: list[str] = []
        self._opened = ""
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._arguments: list[str] = []
        self._has_arguments = False

    @property
    def is_done(self) -> bool:
        """True once the object has ended."""
        return self._state is _State.DONE

    @property
    def is_broken(self) -> bool:
        """True once the text cannot be a tool call."""
        return self._state is _State.BROKEN

    def feed(self, text: str) -> int:
        """Read to the end of the text, the object or the name; return the number of characters read."""
        position = 0
        was_named = self.name is not None
        while position < len(text) and self._state not in {_State.DONE, _State.BROKEN}:
            if self.name is not None and not was_named:
                break
            if self._state is _State.INSIDE:
                position = self._inside(text, position)
            else:
                position += self._between(text[position])
        return position

    def take_arguments(self) -> str:
        """Return the arguments since the last call of this method; empty until the name is known."""
        if self.name is None:
            return ""
        if self.is_done and not self._has_arguments:
            self._has_arguments = True
            return "{}"
        taken = "".join(self._arguments)
        self._arguments.clear()
        return taken

    def _between(self, character: str) -> int:
        """Handle a character outside of values; return the number of characters consumed."""
        if character in _SPACE:
            return 1
        if self._state is _State.START:
            self._state = _State.KEY if character == "{" else _State.BROKEN
        elif self._state is _State.KEY:
            self._before_key(character)
        elif self._state is _State.COLON:
            self._state = _State.VALUE if character == ":" else _State.BROKEN
        else:
            self._open_value(character)
            return 0
        return 1

    def _before_key(self, character: str) -> None:
        if character == '"':
            self._key = ""
            self._open_value(character, is_key=True)
            self._value.append(character)
            self._in_string = True
        elif character == "}":
            self._state = _State.DONE if self.name is not None else _State.BROKEN
        elif character != ",":
            self._state = _State.BROKEN

    def _open_value(self, character: str, *, is_key: bool = False) -> None:
        self._opened = "key" if is_key else character
        self._value.clear()
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._state = _State.INSIDE

    def _inside(self, text: str, start: int) -> int:
        """Read a value (or key) to its end or the end of the text; return the position after it."""
        position = start
        while position < len(text):
            character = text[position]
            if not self._in_string and self._depth == 0 and character in ",}] \t\r\n" and self._opened not in '"{[':
                self._keep(text[start:position])
                self._close()
                return position
            position += 1
            if self._ends_with(character):
                self._keep(text[start:position])
                self._close()
                return position
        self._keep(text[start:position])
        return position

    def _ends_with(self, character: str) -> bool:
        """Process one character; return whether it ends a string, an object or an array."""
        if self._in_string:
            if self._is_escaped:
                self._is_escaped = False
            elif character == "\\":
                self._is_escaped = True
            elif character == '"':
                self._in_string = False
                return self._depth == 0
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            return self._depth <= 0
        return False

    def _keep(self, piece: str) -> None:
        if self._streams_arguments:
            self._arguments.append(piece)
            self._has_arguments = True
        else:
            self._value.append(piece)

    @property
    def _streams_arguments(self) -> bool:
        return self._opened in {"{", "["} and self._key in _ARGUMENT_KEYS

    def _close(self) -> None:
        if self._opened == "key":
            self._key = _string("".join(self._value)) or ""
            self._state = _State.COLON if self._key in _ARGUMENT_KEYS | _OTHER_KEYS else _State.BROKEN
            return
        self._state = _State.KEY
        if self._key == "name":
            self.name = _string("".join(self._value))
            if self.name is None:
                self._state = _State.BROKEN
        elif self._key in _ARGUMENT_KEYS and self._opened == '"':
            self._arguments.append(_string("".join(self._value)) or "{}")
            self._has_arguments = True


def _string(raw: str) -> str | None:
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
