"""
Calls in notations other than JSON, converted to JSON: Python's literals, and Gemma's with strings between marks.

Small slips of models are accepted where the text has one reading: a quote in a Python string without a backslash, if no
comma or bracket follows it; `true`, `false` and `null` in Python.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

import msgspec

from headrace.core.answer_format.call_forms import GEMMA_QUOTE
from headrace.serving.wire.openai.tool_calls import UNREADABLE, Call, JsonScan, read_arguments, read_call

_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])")
_WORD: Final = re.compile(r"[A-Za-z]+(?!\w)")
_WORDS: Final = {
    "True": "true",
    "False": "false",
    "None": "null",
    "true": "true",
    "false": "false",
    "null": "null",
}
_AFTER_STRING: Final = r"(?=\s*[,:)\]}])"
_PYTHON_STRING: Final = re.compile(
    rf"""(?s)("{{3}}|'{{3}}|["'])((?:\\.|(?!\1)[^\\]|\1(?!\s*[,:)\]}}]))*)\1{_AFTER_STRING}"""
)
_GEMMA_STRING: Final = re.compile(rf"(?s)({re.escape(GEMMA_QUOTE)})(.*?){re.escape(GEMMA_QUOTE)}")
_ESCAPE: Final = re.compile(r"(?s)\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)")
_ESCAPES: Final = {**dict(zip("ntrbfav0", "\n\t\r\b\f\a\v\0", strict=True)), "\n": "", **{c: c for c in "\\'\"/"}}
_PYTHON_NAME: Final = re.compile(r"[^\s=(),\[\]{}\"']+")
_GEMMA_NAME: Final = re.compile(r"[^:{}\[\],\"<>]+")


class Malformed(Exception):
    """The text is no call in its notation."""


class Unfinished(Malformed):
    """The text ends within a string, so that what ended it may belong to the string."""


class _Notation:
    """A position in a text of literals; reads values from there, and returns them as JSON."""

    def __init__(self, text: str, string: re.Pattern[str], quotes: tuple[str, ...]) -> None:
        self._text = text
        self._position = 0
        self._string = string
        self._quotes = quotes

    @property
    def is_at_end(self) -> bool:
        """True if only white space is left."""
        self.skip()
        return self._position == len(self._text)

    def skip(self) -> None:
        """Read white space."""
        while self._text[self._position : self._position + 1].isspace():
            self._position += 1

    def has(self, sign: str) -> bool:
        """Read a sign, after white space; return whether it is there."""
        self.skip()
        is_there = self._text.startswith(sign, self._position)
        self._position += len(sign) if is_there else 0
        return is_there

    def expect(self, sign: str) -> None:
        if not self.has(sign):
            self.refuse()

    def name(self, pattern: re.Pattern[str]) -> str:
        self.skip()
        return (self._match(pattern) or self.refuse())[0].strip()

    def members(self, close: str, member: Callable[[], str]) -> list[str]:
        """Read members with commas between them, up to a closing bracket."""
        found: list[str] = []
        while not self.has(close):
            if found:
                self.expect(",")
                if self.has(close):
                    break
            found.append(member())
        return found

    def value(self) -> str:
        """Read a value."""
        if self.has("["):
            return f"[{', '.join(self.members(']', self.value))}]"
        if self.has("{"):
            return self.object("}", self._key, ":")
        if self._is_at_string():
            return _json(self.string())
        number = self._match(_NUMBER)
        if number is not None:
            return number[0]
        return _WORDS.get(self.name(_WORD)) or self.refuse()

    def object(self, close: str, key: Callable[[], str], separator: str) -> str:
        """Read pairs of keys and values up to a closing bracket; return an object."""
        values: dict[str, str] = {}

        def pair() -> str:
            name = key()
            self.expect(separator)
            if name in values:
                self.refuse()
            values[name] = self.value()
            return name

        self.members(close, pair)
        return f"{{{', '.join(f'{_json(name)}: {value}' for name, value in values.items())}}}"

    def string(self) -> str:
        found = self._match(self._string)
        if found is None:
            raise Unfinished
        return found[2] if found[1] == GEMMA_QUOTE else _ESCAPE.sub(_unescaped, found[2])

    def _key(self) -> str:
        self.skip()
        if self._is_at_string():
            return self.string()
        return self.refuse() if "'" in self._quotes else self.name(_GEMMA_NAME)

    def _is_at_string(self) -> bool:
        return self._text.startswith(self._quotes, self._position)

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self._text, self._position)
        self._position = self._position if found is None else found.end()
        return found

    def refuse(self) -> NoReturn:
        raise Malformed


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1]
    if len(code) > 1:
        return chr(int(code[1:], 16))
    return _ESCAPES.get(code, escape[0])


def _json(text: str) -> str:
    """Return a JSON string; raises `ValueError` for half of a surrogate pair, which no text has."""
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16")
    return msgspec.json.encode(whole).decode()


def python_json(text: str) -> str | None:
    """Return the JSON of a list or dictionary that Python wrote; None: it is none."""
    if not text.startswith(("[", "{")):
        return None
    reader = _Notation(text, _PYTHON_STRING, ('"', "'"))
    try:
        value = reader.value()
    except (Malformed, *UNREADABLE):
        return None
    return value if reader.is_at_end else None


def _python_calls(text: str) -> list[Call]:
    if text.lstrip("[ \t\r\n").startswith("{"):
        return _json_calls(text)
    reader = _Notation(text, _PYTHON_STRING, ('"', "'"))

    def call() -> Call:
        name = reader.name(_PYTHON_NAME)
        reader.expect("(")
        return Call(name, reader.object(")", lambda: reader.name(_PYTHON_NAME), "="))

    is_list = reader.has("[")
    calls: list[Call] = []
    while not (reader.has("]") if is_list else reader.is_at_end):
        if calls:
            reader.has(",")
        calls.append(call())
    return calls if reader.is_at_end else reader.refuse()


def _gemma_calls(text: str) -> list[Call]:
    reader = _Notation(text, _GEMMA_STRING, (GEMMA_QUOTE,))
    reader.expect("call")
    reader.expect(":")
    name = reader.name(_GEMMA_NAME)
    call = Call(name, reader.value())
    return [call] if reader.is_at_end and call.arguments.startswith("{") else reader.refuse()


def _json_calls(text: str) -> list[Call]:
    return [read_call(bytes(item).decode()) or _refuse() for item in _items(text)]


def _calls_by_name(text: str) -> list[Call]:
    calls: list[Call] = []
    for item in _items(text):
        ((name, written),) = msgspec.json.decode(item, type=dict[str, msgspec.Raw]).items()
        arguments = read_arguments(bytes(written).decode())
        calls.append(_refuse() if arguments is None else Call(name, arguments))
    return calls


def _items(text: str) -> list[msgspec.Raw]:
    """Return the members of a JSON array, or a value alone."""
    written = text.strip()
    if not written.startswith("["):
        written = f"[{written}]"
    scan = JsonScan(closing="]")
    scan.feed(written, 0)
    if not (scan.is_closed or scan.is_stopped):
        raise Unfinished
    return msgspec.json.decode(written, type=list[msgspec.Raw])


def _refuse() -> NoReturn:
    raise Malformed


_READERS: Mapping[str, Callable[[str], list[Call]]] = {
    "python": _python_calls,
    "gemma": _gemma_calls,
    "by_name": _calls_by_name,
}


def read_calls(text: str, notation: str) -> list[Call]:
    """
    Return the calls between two markers.

    Raises:
        Unfinished: The text ends within a string.
        Malformed: It has no call, or is not in the notation.
    """
    try:
        return _READERS[notation](text) or _refuse()
    except UNREADABLE as exc:
        raise Malformed from exc
