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
        self.finish_reason: str | None = None
        """See `finish_reason_of`; None: the answer has not said it."""

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
        return "".join(self._read_line(line) for line in lines)

    def finish(self) -> str:
        """Return the remaining text at the end of the stream."""
        self._pending += self._decode(b"", True)
        if self._form is _Form.ONE_OBJECT:
            return self._take_complete_characters()
        rest = self._take()
        return self._read_line(rest) if self._form in (_Form.FIRST_LINE, _Form.LINES) else rest

    def _read_line(self, line: str) -> str:
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
        self.finish_reason = finish_reason_of(value) or self.finish_reason
        text = text_of_value(value)
        return line + "\n" if text is None else text

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


def text_of_value(value: Any) -> str | None:
    """Return the new text in a JSON value of TGI, LMI or OpenAI, or None for any other value."""
    if isinstance(value, list):
        texts = [text_of_value(item) for item in value]
        known = [text for text in texts if text is not None]
        return "\n".join(known) if known and len(known) == len(texts) else None
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("choices"), list):
        return "".join(_text_of_choice(choice) for choice in value["choices"] if isinstance(choice, dict))
    if isinstance(value.get("token"), dict):
        token = value["token"]
        return "" if token.get("special") or token.get("special_token") else str(token.get("text") or "")
    if "generated_text" in value:
        return str(value["generated_text"] or "")
    return None


def finish_reason_of(value: Any) -> str | None:
    """Return the finish reason in a JSON value of TGI, LMI or OpenAI; `repetition` if the answer repeated itself."""
    if isinstance(value, list):
        return next((reason for reason in map(finish_reason_of, value) if reason is not None), None)
    if not isinstance(value, dict):
        return None
    choices = value.get("choices")
    ends = choices if isinstance(choices, list) else [value.get("details")]
    for end in ends:
        if isinstance(end, dict) and end.get("finish_reason"):
            return "repetition" if end.get("stop_reason") == "repetition_detected" else str(end["finish_reason"])
    return None


def _text_of_choice(choice: dict[str, Any]) -> str:
    inner = choice.get("delta") or choice.get("message") or {}
    return str(choice.get("text") or (inner.get("content") if isinstance(inner, dict) else "") or "")
