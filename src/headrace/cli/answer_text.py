"""
Extract the generated text from the answer of an endpoint in any dialect. Pure: bytes in, text out.

Answers are server-sent events, JSON lines, a JSON value (LMI 0.25 streams it in pieces) or plain text. An unknown
format is treated as plain text.
"""

import codecs
import json
import re
from enum import Enum, auto
from typing import Any

_MAX_LINE = 1 << 20
_ONE_OBJECT = re.compile(r'\s*\{\s*"generated_text"\s*:\s*"')
"""The start of the single object that LMI 0.25 streams in pieces."""
_WHOLE_CHARACTERS = re.compile(
    r'(?:[^"\\]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\[^u])*'
)
"""Complete characters of a JSON string: an escape, or a surrogate pair, that is cut off does not match."""
_LINE_MARKS = ("data:", "event:", ":", "{", "[")


class _Form(Enum):
    UNKNOWN = auto()
    FIRST_LINE = auto()
    """Events or JSON whose first line has not ended: it may turn out to be a single object."""
    LINES = auto()
    ONE_OBJECT = auto()
    """Inside the text of one object."""
    PLAIN = auto()


class AnswerText:
    """An incremental parser of an answer; `feed` returns the new text."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._pending = ""
        self._form = _Form.UNKNOWN

    def feed(self, part: bytes) -> str:
        """Parse a part and return its text."""
        self._pending += self._decode(part)
        if self._form in (_Form.UNKNOWN, _Form.FIRST_LINE):
            self._find_form()
        if self._form is _Form.PLAIN:
            return self._take()
        if self._form is _Form.ONE_OBJECT:
            return self._take_complete_characters()
        if self._form is _Form.UNKNOWN:
            return ""
        *lines, self._pending = self._pending.split("\n")
        if lines:
            self._form = _Form.LINES
        if len(self._pending) > _MAX_LINE:
            self._form = _Form.PLAIN
        return "".join(text_of_line(line) for line in lines)

    def finish(self) -> str:
        """Return the remaining text at the end of the stream."""
        self._pending += self._decode(b"", True)
        if self._form is _Form.ONE_OBJECT:
            return self._take_complete_characters()
        rest = self._take()
        return text_of_line(rest) if self._form in (_Form.FIRST_LINE, _Form.LINES) else rest

    def _find_form(self) -> None:
        """Decide the format by the first characters, once they cannot become another mark."""
        begun = self._pending.lstrip()
        one_object = _ONE_OBJECT.match(begun)
        if one_object is not None:
            self._pending = begun[one_object.end() :]
            self._form = _Form.ONE_OBJECT
        elif begun.startswith(_LINE_MARKS):
            self._form = _Form.FIRST_LINE
        elif begun and not any(mark.startswith(begun) for mark in _LINE_MARKS):
            self._form = _Form.PLAIN

    def _take_complete_characters(self) -> str:
        """Take the complete characters; anything after the closing quote stays pending."""
        whole = _WHOLE_CHARACTERS.match(self._pending)
        assert whole is not None, "the pattern also matches the empty string"
        self._pending = self._pending[whole.end() :]
        try:
            return str(json.loads(f'"{whole[0]}"', strict=False))
        except ValueError:
            return whole[0]

    def _take(self) -> str:
        taken, self._pending = self._pending, ""
        return taken


def text_of_line(line: str) -> str:
    """Return the new text in a line: an event, a JSON value or plain text."""
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
    """Return the new text in a JSON value of TGI, LMI or OpenAI, or None for any other value."""
    if isinstance(value, list):
        texts = [text_of_value(item) for item in value]
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
