"""
The text inside what an endpoint answers, whatever its dialect. Pure: bytes in, text out.

Answers come as server-sent events, JSON lines, one JSON value (perhaps in pieces, as LMI 0.25 streams it) or plain
text. What is none of the forms that are known is text as it is.
"""

import codecs
import json
import re
from enum import Enum, auto
from typing import Any

_MAX_LINE = 1 << 20
_ONE_OBJECT = re.compile(r'\s*\{\s*"generated_text"\s*:\s*"')
"""How LMI 0.25 begins the one object that it streams in pieces."""
_WHOLE_CHARACTERS = re.compile(
    r'(?:[^"\\]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\[^u])*'
)
"""Of a JSON text, without an escape, or a pair of them, that has not come whole."""
_LINE_MARKS = ("data:", "event:", ":", "{", "[")


class _Form(Enum):
    UNKNOWN = auto()
    FIRST_LINE = auto()
    """Events or JSON, the first line of which has not ended: it may turn out to be one object."""
    LINES = auto()
    ONE_OBJECT = auto()
    """Inside the text of one object."""
    PLAIN = auto()


class AnswerText:
    """Reads a stream of parts; `feed` gives the new text."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._pending = ""
        self._form = _Form.UNKNOWN

    def feed(self, part: bytes) -> str:
        """Take a part in."""
        self._pending += self._decode(part)
        if self._form in (_Form.UNKNOWN, _Form.FIRST_LINE):
            self._find_form()
        if self._form is _Form.PLAIN:
            return self._taken()
        if self._form is _Form.ONE_OBJECT:
            return self._taken_characters()
        if self._form is _Form.UNKNOWN:
            return ""
        *lines, self._pending = self._pending.split("\n")
        if lines:
            self._form = _Form.LINES
        if len(self._pending) > _MAX_LINE:
            self._form = _Form.PLAIN
        return "".join(text_of_line(line) for line in lines)

    def finish(self) -> str:
        """What is left when the stream has ended."""
        self._pending += self._decode(b"", True)
        if self._form is _Form.ONE_OBJECT:
            return self._taken_characters()
        rest = self._taken()
        return text_of_line(rest) if self._form in (_Form.FIRST_LINE, _Form.LINES) else rest

    def _find_form(self) -> None:
        """By the first characters; while they may still become one of the marks, nothing is decided."""
        begun = self._pending.lstrip()
        one_object = _ONE_OBJECT.match(begun)
        if one_object is not None:
            self._pending = begun[one_object.end() :]
            self._form = _Form.ONE_OBJECT
        elif begun.startswith(_LINE_MARKS):
            self._form = _Form.FIRST_LINE
        elif begun and not any(mark.startswith(begun) for mark in _LINE_MARKS):
            self._form = _Form.PLAIN

    def _taken_characters(self) -> str:
        """The characters that have come whole; what stands behind the closing quote stays where it is."""
        whole = _WHOLE_CHARACTERS.match(self._pending)
        assert whole is not None, "it matches nothing, too"
        self._pending = self._pending[whole.end() :]
        try:
            return str(json.loads(f'"{whole[0]}"', strict=False))
        except ValueError:
            return whole[0]

    def _taken(self) -> str:
        taken, self._pending = self._pending, ""
        return taken


def text_of_line(line: str) -> str:
    """The new text in one event or one JSON value."""
    line = line.strip()
    if not line or line.startswith((":", "event:", "id:", "retry:")):
        return ""
    data = line[5:].strip() if line.startswith("data:") else line
    if data == "[DONE]":
        return ""
    try:
        value = json.loads(data)
    except ValueError:
        return line + "\n"
    text = text_of_value(value)
    return line + "\n" if text is None else text


def text_of_value(value: Any) -> str | None:
    """The new text in a JSON value of TGI's, LMI's or OpenAI's; None: it is none of these."""
    if isinstance(value, list):
        texts = [text_of_value(one) for one in value]
        known = [text for text in texts if text is not None]
        return "\n".join(known) if known and len(known) == len(texts) else None
    if not isinstance(value, dict):
        return None
    if "choices" in value:
        return "".join(_text_of_choice(choice) for choice in value["choices"] if isinstance(choice, dict))
    if isinstance(value.get("token"), dict):
        token = value["token"]
        return "" if token.get("special") or token.get("special_token") else str(token.get("text") or "")
    if "generated_text" in value:
        return str(value["generated_text"] or "")
    return None


def _text_of_choice(choice: dict[str, Any]) -> str:
    inner = choice.get("delta") or choice.get("message") or {}
    return str(choice.get("text") or (inner.get("content") if isinstance(inner, dict) else "") or "")
