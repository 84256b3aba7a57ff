"""
The parser of Harmony, the format of gpt-oss: messages with a header that names a channel and a recipient.

`analysis` is reasoning; `final`, and `commentary` to the user, are content; a message to `functions.NAME` calls that
function. The header's recipient may come before or after the channel. Source: openai-harmony `docs/format.md`.
"""

import re
from typing import Final

from headrace.core.answer_format.formats import CHANNEL, CONSTRAIN, MESSAGE, MESSAGE_ENDS, START
from headrace.core.answer_format.parts import (
    CallOpening,
    CallText,
    ContentText,
    Part,
    ReasoningText,
    Section,
    find_first,
    held_length,
)

_BODY_ENDS: Final = (*MESSAGE_ENDS, START, CHANNEL)
"""A message also ends where the next one begins: models forget `<|end|>`."""
_HEADER_ENDS: Final = (MESSAGE, *MESSAGE_ENDS)
_FIRST: Final = (START, CHANNEL, CONSTRAIN, MESSAGE, "to=")
"""The beginnings of a header; the first one of an answer comes after `<|start|>assistant`, which ends the prompt."""
_MAX_HEADER: Final = 512
"""Characters after which a header without `<|message|>` is taken for text."""
_LONGEST: Final = max(map(len, _HEADER_ENDS))
_RECIPIENT: Final = re.compile(r"\bto=([^\s<]+)")
_CHANNEL: Final = re.compile(re.escape(CHANNEL) + r"\s*([^\s<]*)")
_FUNCTIONS: Final = "functions."


class ChannelParser:
    """A parser of Harmony messages; texts of the same kind are joined by a newline."""

    def __init__(self) -> None:
        self._buffer = ""
        self._section = Section.HEADER
        self._called = ""
        self._seen: set[Section] = set()
        """Sections that have text already."""
        self._is_new = False
        """No text of the current message has been returned."""
        self._num_fed = 0
        self._start = 0
        """Character with which the text of the current message begins."""
        self._spans: list[tuple[int, int]] = []
        """The reasoning of messages that have ended."""

    @property
    def section(self) -> Section:
        """See `AnswerParser`."""
        return self._section

    @property
    def called(self) -> str:
        """See `AnswerParser`."""
        return self._called

    @property
    def reasoning_spans(self) -> tuple[tuple[int, int], ...]:
        """See `AnswerParser`."""
        is_open = self._section is Section.REASONING
        return (*self._spans, (self._start, self._num_fed)) if is_open else tuple(self._spans)

    def feed(self, text: str) -> list[Part]:
        """See `AnswerParser`."""
        self._buffer += text
        self._num_fed += len(text)
        parts: list[Part] = []
        while self._buffer and (
            self._read_header(parts) if self._section is Section.HEADER else self._read_body(parts)
        ):
            pass
        return parts

    def finish(self) -> list[Part]:
        """See `AnswerParser`. A header that was cut off is dropped."""
        parts: list[Part] = []
        if self._section is Section.HEADER and not self._begins_header():
            self._open(Section.CONTENT)
        if self._section is not Section.HEADER:
            self._write(self._buffer, parts)
        self._buffer = ""
        return parts

    def _read_header(self, parts: list[Part]) -> bool:
        """Read a header up to its end; return whether there may be more to read."""
        if not self._begins_header():
            self._open(Section.CONTENT)
            return True
        end = find_first(self._buffer, _HEADER_ENDS)
        if end is not None and end[0] <= _MAX_HEADER:
            header = self._take(*end)
            if end[1] == MESSAGE:
                self._open_message(header, parts)
            return True
        if end is None and len(self._buffer) <= _MAX_HEADER + _LONGEST:
            return False
        text = self._buffer.lstrip()
        self._buffer = text.removeprefix(next((marker for marker in (START, CHANNEL) if text.startswith(marker)), ""))
        self._open(Section.CONTENT)
        return True

    def _begins_header(self) -> bool:
        text = self._buffer.lstrip()
        return any(text.startswith(first) or first.startswith(text) for first in _FIRST)

    def _open_message(self, header: str, parts: list[Part]) -> None:
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        if recipient is not None and recipient[1].startswith(_FUNCTIONS):
            self._called = recipient[1].removeprefix(_FUNCTIONS)
            parts.append(CallOpening(self._called))
            self._open(Section.CALL)
        elif recipient is not None or (channel is not None and channel[1] == "analysis"):
            self._open(Section.REASONING)  # a tool that no request can define, such as `python`, has no other place
        else:
            self._open(Section.CONTENT)

    def _open(self, section: Section) -> None:
        self._section = section
        self._is_new = True
        self._start = self._num_fed - len(self._buffer)

    def _read_body(self, parts: list[Part]) -> bool:
        """Read text up to the end of the message; return whether there may be more to read."""
        end = find_first(self._buffer, _BODY_ENDS)
        if end is None:
            free = len(self._buffer) - held_length(self._buffer, _BODY_ENDS)
            self._write(self._take(free, ""), parts)
            return False
        place, marker = end
        if self._section is Section.REASONING:
            self._spans.append((self._start, self._num_fed - len(self._buffer) + place))
        self._write(self._take(place, marker if marker in MESSAGE_ENDS else ""), parts)
        self._section = Section.HEADER
        return True

    def _write(self, text: str, parts: list[Part]) -> None:
        if not text:
            return
        if self._section is Section.CALL:
            parts.append(CallText(text))
            return
        if self._is_new and self._section in self._seen:
            text = f"\n{text}"
        self._is_new = False
        self._seen.add(self._section)
        parts.append(ReasoningText(text) if self._section is Section.REASONING else ContentText(text))

    def _take(self, count: int, marker: str) -> str:
        """Take text and the marker after it; return the text."""
        taken, self._buffer = self._buffer[:count], self._buffer[count + len(marker) :]
        return taken
