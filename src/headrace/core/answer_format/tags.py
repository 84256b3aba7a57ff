"""The parser of answers whose reasoning is between two tags."""

from collections.abc import Callable, Iterator

from headrace.core.answer_format.formats import AnswerFormat
from headrace.core.answer_format.parts import ContentText, Part, ReasoningText, Section, held_length


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
        return Section.REASONING if self._step == self._in_reasoning else Section.CONTENT

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
        return [ReasoningText(held) if self._step == self._in_reasoning else ContentText(held)]

    def _at_start(self) -> Iterator[Part]:
        text = self._buffer.lstrip()
        if text.startswith(self._format.start):
            self._buffer = text[len(self._format.start) :]
            self._start = self._num_fed - len(self._buffer)
            self._step = self._in_reasoning
        elif text and not self._format.start.startswith(text):
            self._step = self._in_content
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
        if opening and text.startswith(opening):
            self._buffer = text[len(opening) :]
            self._step = self._in_wrapper
        elif text and (not opening or not opening.startswith(text)):
            self._buffer = text
            self._step = self._in_content
        return iter(())

    def _in_wrapper(self) -> Iterator[Part]:
        text, is_complete = self._until((self._format.wrapper or ("", ""))[1])
        if text:
            yield ContentText(text)
        if is_complete:
            self._at_edge = True
            self._step = self._after_wrapper

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
