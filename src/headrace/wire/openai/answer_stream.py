"""
The text of one choice of a chat, whole or streamed, as deltas: reasoning, content and tool calls.

`core.answer_format` finds the reasoning by the model's separators; what remains goes through the `ToolStream`. Calls in
message headers (gpt-oss) need no search in the text.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from headrace.core.answer_format.formats import AnswerFormat
from headrace.core.answer_format.parser import make_parser
from headrace.core.answer_format.parts import CallOpening, CallText, ContentText, Part
from headrace.core.generation import Token
from headrace.wire.openai.tool_stream import Delta, TextDelta, ToolStream, merged
from headrace.wire.openai.tools import ToolPlan


class TokenPlaces:
    """Remembers which characters of a text each token added, to count the tokens of a part of it."""

    def __init__(self, start: int) -> None:
        """Create an empty record that begins at character `start`."""
        self._place = start
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, text: str, tokens: Sequence[Token]) -> None:
        """Add the next text and its tokens."""
        for piece, its_tokens in by_token(text, tokens):
            end = self._place + len(piece)
            for _ in its_tokens:
                self._starts.append(self._place)
                self._ends.append(end)
            self._place = end

    def count(self, start: int, stop: int) -> int:
        """
        Return the number of tokens with a character in `start:stop`.

        A token that adds no text, such as the first bytes of a character, counts where the text continues.
        """
        if start >= stop:
            return 0
        first = bisect_left(self._starts, start)
        if first and self._ends[first - 1] > start:
            first -= 1
        return bisect_left(self._starts, stop) - first


def by_token(text: str, tokens: Sequence[Token]) -> Iterator[tuple[str, Sequence[Token]]]:
    """Yield the part of the text that each token adds: none for a hidden one and one that a stop string cut off."""
    place = 0
    for token in tokens:
        end = place + len(token.text) if text.startswith(token.text, place) else place
        yield text[place:end], (token,)
        place = end
    if place < len(text):
        yield text[place:], ()


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Text to append to the message's reasoning."""

    text: str


ChatDelta = ReasoningDelta | Delta


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPlan:
    """The parts of an answer to separate."""

    tools: ToolPlan
    format: AnswerFormat | None = None
    """The separators of the reasoning; None: all text is content."""
    includes_reasoning: bool = True


class AnswerStream:
    """Converts the text of one choice to deltas."""

    def __init__(self, plan: AnswerPlan, opening: str) -> None:
        """Create the stream of a choice that continues `opening`, the end of its prompt."""
        self._plan = plan
        self._tools = ToolStream(plan.tools)
        self._parser = None if plan.format is None else make_parser(plan.format, opening)
        self._places = TokenPlaces(len(opening))

    @property
    def num_calls(self) -> int:
        """Tool calls so far."""
        return self._tools.num_calls

    @property
    def num_reasoning_tokens(self) -> int | None:
        """Tokens of the reasoning so far, without its separators; None: its format is unknown."""
        if self._parser is None:
            return None
        return sum(self._places.count(start, stop) for start, stop in self._parser.reasoning_spans)

    def feed(self, text: str, tokens: Sequence[Token] = ()) -> list[ChatDelta]:
        """Process the next part of the answer; `tokens` are needed to count those of the reasoning."""
        if self._parser is None:
            return [*self._tools.feed(text)]
        self._places.add(text, tokens)
        return _merged(self._deltas(self._parser.feed(text)))

    def finish(self) -> list[ChatDelta]:
        """End the answer."""
        held = () if self._parser is None else self._deltas(self._parser.finish())
        return _merged([*held, *self._tools.finish()])

    def _deltas(self, parts: Iterable[Part]) -> Iterator[ChatDelta]:
        for part in parts:
            if not isinstance(part, CallText):
                yield from self._tools.close_call()
            if isinstance(part, ContentText):
                yield from self._content(part.text)
            elif isinstance(part, CallOpening):
                yield from self._tools.open_call(part.name)
            elif isinstance(part, CallText):
                yield from self._tools.feed_call(part.text)
            elif self._plan.includes_reasoning:
                yield ReasoningDelta(part.text)

    def _content(self, text: str) -> Iterable[ChatDelta]:
        known = self._plan.format
        if known is not None and known.has_channels and self._plan.tools.mode == "auto":
            return [TextDelta(text)]  # calls are messages of their own
        return self._tools.feed(text)


def _merged(deltas: Iterable[ChatDelta]) -> list[ChatDelta]:
    """Join neighbouring deltas of the same kind."""
    result: list[ChatDelta] = []
    run: list[Delta] = []
    for delta in deltas:
        if not isinstance(delta, ReasoningDelta):
            run.append(delta)
            continue
        result += merged(run)
        run.clear()
        last = result[-1] if result else None
        if isinstance(last, ReasoningDelta):
            result[-1] = ReasoningDelta(last.text + delta.text)
        else:
            result.append(delta)
    return [*result, *merged(run)]
