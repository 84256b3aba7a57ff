"""
Parsers that split the text of an answer into its parts: one of tags, one of Harmony's messages.

Source of Harmony, the format of gpt-oss: openai-harmony `docs/format.md`.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

from headrace.core.answer_format.formats import CHANNEL, CONSTRAIN, MESSAGE, MESSAGE_ENDS, START, AnswerFormat


class Section(Enum):
    """The place in an answer that a parser has reached."""

    UNDECIDED = auto()
    """At the beginning, where reasoning or content may follow."""
    HEADER = auto()
    """Between messages or in the header of one."""
    REASONING = auto()
    CONTENT = auto()
    CALL = auto()
    """In the arguments of a call."""


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """A piece of the reasoning, which users rarely read."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentText:
    """Text of the answer for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class CallOpening:
    """The header of a message that calls the function `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class CallText:
    """Text of the arguments of the latest call."""

    text: str


Part = ReasoningText | ContentText | CallOpening | CallText


class AnswerParser(Protocol):
    """
    Splits the text of one answer into its parts, whatever pieces it arrives in.

    Text that may become a separator is held back.
    """

    @property
    def section(self) -> Section:
        """The place after all text so far."""
        ...

    @property
    def called(self) -> str:
        """The function that the current message calls, in section CALL."""
        ...

    @property
    def reasoning_spans(self) -> tuple[tuple[int, int], ...]:
        """The characters of the text so far that are reasoning, as start and end; separators are not."""
        ...

    def feed(self, text: str) -> list[Part]:
        """Process the next text; return the parts that it determines."""
        ...

    def finish(self) -> list[Part]:
        """End the answer; return what was held back."""
        ...


def held_length(text: str, separators: tuple[str, ...]) -> int:
    """Return the length of the longest suffix that may be the start of a separator."""
    longest = min(len(text), max(map(len, separators)) - 1)
    for length in range(longest, 0, -1):
        end = text[-length:]
        if any(separator.startswith(end) for separator in separators):
            return length
    return 0


def find_first(text: str, separators: tuple[str, ...]) -> tuple[int, str] | None:
    """Return the place of the first separator and the separator, or None."""
    found = [(place, separator) for separator in separators if (place := text.find(separator)) >= 0]
    return min(found) if found else None


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
    """
    A parser of messages with a header that names a channel and a recipient (Harmony).

    `analysis` is reasoning; `final`, and `commentary` to the user, are content; a message to `functions.NAME` calls
    that function. The recipient may come before or after the channel. Texts of the same kind are joined by a newline.
    """

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


class TagParser:
    """
    A parser of reasoning that a start tag opens at the beginning, up to the end tag or the end of the answer.

    White space around reasoning and before the content is dropped. Later tags are content.
    """

    called = ""

    def __init__(self, known: AnswerFormat) -> None:
        self._format = known
        self._buffer = ""
        self._step: Callable[[], Iterator[Part]] = self._at_start
        self._at_edge = True
        """White space that comes next is dropped."""
        self._num_fed = 0
        self._start: int | None = None
        self._end: int | None = None
        """Character after the reasoning; None: it has not ended."""

    @property
    def section(self) -> Section:
        """See `AnswerParser`."""
        if self._step == self._at_start:
            return Section.UNDECIDED
        return Section.REASONING if self._step in {self._at_label, self._in_reasoning} else Section.CONTENT

    @property
    def reasoning_spans(self) -> tuple[tuple[int, int], ...]:
        """See `AnswerParser`."""
        if self._start is None:
            return ()
        return ((self._start, self._num_fed if self._end is None else self._end),)

    def feed(self, text: str) -> list[Part]:
        """See `AnswerParser`."""
        self._buffer += text
        self._num_fed += len(text)
        parts: list[Part] = []
        step: Callable[[], Iterator[Part]] | None = None
        while step != self._step and self._buffer:
            step = self._step
            parts.extend(step())
        return parts

    def finish(self) -> list[Part]:
        """See `AnswerParser`."""
        held, self._buffer = self._buffer, ""
        if self._step not in {self._at_start, self._in_content}:
            held = held.strip() if self._at_edge else held.rstrip()
        if not held:
            return []
        return [ReasoningText(held) if self.section is Section.REASONING else ContentText(held)]

    def _at_start(self) -> Iterator[Part]:
        text = self._buffer.lstrip()
        if text.startswith(self._format.start):
            self._buffer = text[len(self._format.start) :]
            self._start = self._num_fed - len(self._buffer)
            self._step = self._at_label if self._format.label else self._in_reasoning
        elif text.startswith(self._format.end):  # of reasoning that was left out (MiniMax M3)
            self._buffer = text[len(self._format.end) :]
            self._at_edge = True
            self._step = self._before_content
        elif self._is_wrapped(text):
            self._step = self._before_content
        elif text and not self._begins_separator(text):
            self._step = self._in_content
        return iter(())

    def _is_wrapped(self, text: str) -> bool:
        """Return whether text in front of which there is no reasoning begins with a tag around the content."""
        opening, _ = self._format.wrapper or ("", "")
        return self._format.wraps_always and text.startswith(opening)

    def _begins_separator(self, text: str) -> bool:
        """Return whether a text at the start may become a separator."""
        opening, _ = self._format.wrapper if self._format.wrapper and self._format.wraps_always else ("", "")
        return any(marker.startswith(text) for marker in (self._format.start, self._format.end, opening))

    def _at_label(self) -> Iterator[Part]:
        label = self._format.label
        if self._buffer.startswith(label) or not label.startswith(self._buffer):
            self._buffer = self._buffer.removeprefix(label)
            self._start = self._num_fed - len(self._buffer)
            self._step = self._in_reasoning
        return iter(())

    def _in_reasoning(self) -> Iterator[Part]:
        text, is_complete = self._until(self._format.end)
        if text:
            yield ReasoningText(text)
        if is_complete:
            self._end = self._num_fed - len(self._buffer) - len(self._format.end)
            self._at_edge = True
            self._step = self._before_content

    def _before_content(self) -> Iterator[Part]:
        text = self._buffer.lstrip()
        opening, _ = self._format.wrapper or ("", "")
        filler = self._format.filler
        if filler and text.startswith(filler):
            self._buffer = text = text[len(filler) :].lstrip()
        if opening and text.startswith(opening):
            self._buffer = text[len(opening) :]
            self._step = self._in_wrapper
        elif text and not any(marker.startswith(text) for marker in (opening, filler)):
            self._buffer = text
            self._step = self._in_content
        return iter(())

    def _in_wrapper(self) -> Iterator[Part]:
        text, is_complete = self._until((self._format.wrapper or ("", ""))[1])
        if text:
            yield ContentText(text)
        if is_complete:
            self._at_edge = True
            self._step = self._before_content if self._format.filler else self._after_wrapper

    def _after_wrapper(self) -> Iterator[Part]:
        self._buffer = self._buffer.lstrip()
        if self._buffer:
            self._step = self._in_content
        return iter(())

    def _in_content(self) -> Iterator[Part]:
        text, self._buffer = self._buffer, ""
        if text:
            yield ContentText(text)

    def _until(self, tag: str) -> tuple[str, bool]:
        """Take the text before a tag, without white space around it; True once the tag has arrived."""
        if self._at_edge:
            self._buffer = self._buffer.lstrip()
        place = self._buffer.find(tag)
        if place >= 0:
            text, self._buffer = self._buffer[:place].rstrip(), self._buffer[place + len(tag) :]
            return text, True
        free = self._buffer[: len(self._buffer) - held_length(self._buffer, (tag,))].rstrip()
        self._buffer = self._buffer[len(free) :]
        self._at_edge = self._at_edge and not free
        return free, False


def make_parser(known: AnswerFormat, opening: str = "") -> AnswerParser:
    """Return a parser of an answer that continues `opening`, see `AnswerFormat.opening`."""
    parser: AnswerParser = ChannelParser() if known.has_channels else TagParser(known)
    parser.feed(opening)
    return parser
