"""
The text inside what an endpoint answers, whatever its dialect. Pure: bytes in, text out.

Answers come as server-sent events, JSON lines, one JSON value (perhaps in pieces, as LMI 0.25 streams it) or plain
text. What is none of the forms that are known is text as it is.
"""

import codecs
import json
from typing import Any

_MAX_LINE = 1 << 20


class AnswerText:
    """Reads a stream of parts; `feed` gives the new text."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._pending = ""
        self._is_lines: bool | None = None
        """Events or JSON lines; None until the first character told."""

    def feed(self, part: bytes) -> str:
        """Take a part in."""
        self._pending += self._decode(part)
        if self._is_lines is None and self._pending.strip():
            self._is_lines = self._pending.lstrip().startswith(("data:", "event:", ":", "{", "["))
        if not self._is_lines:
            return self._taken() if self._is_lines is False else ""
        *lines, self._pending = self._pending.split("\n")
        if len(self._pending) > _MAX_LINE:
            self._is_lines = False
        return "".join(text_of_line(line) for line in lines)

    def finish(self) -> str:
        """What is left when the stream has ended."""
        self._pending += self._decode(b"", True)
        rest = self._taken()
        return text_of_line(rest) if self._is_lines else rest

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
