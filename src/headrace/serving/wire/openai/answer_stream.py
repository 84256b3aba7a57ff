"""
The text of one choice of a chat, whole or streamed, as deltas: reasoning, content and tool calls.

`core.answer_format` finds the reasoning by the model's separators; what remains goes through the `ToolStream`. Calls in
message headers (gpt-oss) need no search in the text.

Calls have three sources: the whole answer is the arguments of one named function; the whole answer is an array of
calls; or the model mixes text and calls (`auto`), in the forms of `core.answer_format.call_forms`, or as bare JSON at
the start of the answer (Llama 3). A grammar enforces the first two, so their arguments are streamed. In `auto`, text
that may become a call is held back until its block has ended, and then is either calls or text. The deltas do not
depend on how the text was split into chunks.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.core.answer_format.call_forms import CALL_STARTS
from headrace.core.answer_format.formats import AnswerFormat
from headrace.core.answer_format.parser import CallOpening, CallText, ContentText, Part, held_length, make_parser
from headrace.core.generation import Token
from headrace.serving.wire.openai.marked_calls import MarkedBlock, is_marked
from headrace.serving.wire.openai.tool_calls import BlockState, Call, CallBlock, CallName, ForcedCalls, read_arguments
from headrace.serving.wire.openai.tools import ToolPlan


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text to append to the message's content."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Text to append to the message's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The start of a call of the function `name`; `index` counts the calls."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """Text to append to the arguments of call `index`."""

    index: int
    text: str


ChatDelta = TextDelta | ReasoningDelta | CallStart | ArgumentsDelta
_MARKER_BEGINS: Final = re.compile(f"[{re.escape(''.join({marker[0] for marker in CALL_STARTS}))}]")


class ToolStream:
    """Converts the text of one choice to deltas."""

    def __init__(self, plan: ToolPlan) -> None:
        self.num_calls = 0
        self._plan = plan
        self._forced = ForcedCalls()
        """Reads the answer in mode `required`."""
        self._buffer = ""
        """Text that may still become either text or a call."""
        self._block: CallBlock | MarkedBlock | None = None
        self._is_at_start = True
        self._skips_space = False
        self._space = ""
        """White space at the end of the text so far, which is left out if a call follows."""
        self._is_muted = False
        """True if the current call exceeds `max_calls` and is dropped."""
        self._called: str | None = None
        """The function of a call that the answer's format announced."""
        self._arguments: list[str] = []
        """The arguments of that call, which are held back unless a grammar enforces them."""

    def feed(self, text: str) -> list[ChatDelta]:
        if self._plan.mode == "none":
            return [TextDelta(text)] if text else []
        if self._plan.mode == "named":
            return self._named(text)
        if self._plan.mode == "required":
            return merged(self._read_forced(text))
        self._buffer += text
        return merged(self._read())

    def finish(self) -> list[ChatDelta]:
        """End the answer, which decides about the text that was held back."""
        if self._plan.mode == "required":
            return merged(self._text(self._forced.rest(has_calls=self.num_calls > 0)))
        held = [*self.close_call(), *self._read(is_last=True)]
        return merged([*held, TextDelta(self._space)] if self._space else held)

    def open_call(self, name: str) -> list[ChatDelta]:
        """Start a call that the answer's format announces; a call of an unknown function is text."""
        self._called = name
        if self._plan.mode == "auto" or not self._is_known(name):
            return []
        return self._named("") if self._plan.mode == "named" else list(self._announce(name))

    def feed_call(self, text: str) -> list[ChatDelta]:
        """Process arguments of the call that `open_call` began."""
        if self._plan.mode == "auto":
            self._arguments.append(text)
            return []
        if not self._is_known(self._called):
            return [TextDelta(text)]
        return [] if self._is_muted else [ArgumentsDelta(self.num_calls - 1, text)]

    def close_call(self) -> list[ChatDelta]:
        """End the call that `open_call` began, if there is one; without an object of arguments it is text."""
        name, self._called = self._called, None
        if name is None or self._plan.mode != "auto":
            return []
        written = "".join(self._arguments)
        self._arguments.clear()
        arguments = read_arguments(written) if self._is_known(name) else None
        if arguments is None:
            return [TextDelta(written)] if written else []
        return list(self._complete(Call(name, arguments)))

    def _is_known(self, name: str | None) -> bool:
        return name == self._plan.named if self._plan.mode == "named" else name in self._plan.names

    def _named(self, text: str) -> list[ChatDelta]:
        starts: list[ChatDelta] = [] if self.num_calls else [CallStart(0, self._plan.named)]
        self.num_calls = 1
        return [*starts, ArgumentsDelta(0, text)] if text else starts

    def _read_forced(self, text: str) -> Iterator[ChatDelta]:
        for piece in self._forced.feed(text):
            if isinstance(piece, CallName):
                yield from self._announce(piece.name)
            elif piece and not self._is_muted:
                yield ArgumentsDelta(self.num_calls - 1, piece)

    def _read(self, *, is_last: bool = False) -> Iterator[ChatDelta]:
        """Yield the deltas that the buffer already determines."""
        before: tuple[CallBlock | MarkedBlock | None, str] | None = None
        while before != (self._block, self._buffer):
            before = self._block, self._buffer
            if self._block is None:
                yield from self._in_text(is_last=is_last)
            else:
                yield from self._in_block(self._block, is_last=is_last)

    def _text(self, text: str) -> Iterator[ChatDelta]:
        """
        Yield text for the client, without the white space around a call.

        Templates write their own in front of an earlier call: with the model's in addition, the next prompt would
        differ from what the model wrote, and the prefix cache would end there.
        """
        text = text.lstrip() if self._skips_space else self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if shown:
            self._skips_space = False
            yield TextDelta(shown)

    def _take(self, count: int) -> str:
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _in_text(self, *, is_last: bool) -> Iterator[ChatDelta]:
        if self._is_at_start:
            start = self._buffer.lstrip()
            if start.rstrip() in {"", "["} and not is_last:
                return
            self._is_at_start = False
            if start[:1] == "{" or (start[:1] == "[" and start[1:].lstrip().startswith("{")):
                self._block = CallBlock("", self._plan.names)
                return
        if _MARKER_BEGINS.search(self._buffer) is None:  # nearly all text
            yield from self._text(self._take(len(self._buffer)))
            return
        markers = [(place, marker) for marker in CALL_STARTS if (place := self._buffer.find(marker)) >= 0]
        if markers:
            place, marker = min(markers)
            yield from self._text(self._take(place))
            self._open_block(marker, is_last=is_last)
        else:
            held = 0 if is_last else held_length(self._buffer, CALL_STARTS)
            yield from self._text(self._take(len(self._buffer) - held))

    def _open_block(self, marker: str, *, is_last: bool) -> None:
        """Begin a block at a marker, in the form that the next character tells."""
        next_character = self._buffer[len(marker) :].lstrip()[:1]
        if not (next_character or is_last):
            return
        if is_marked(marker, next_character):
            self._block = MarkedBlock(marker, self._plan.names, self._plan.parameters)
        else:
            self._block = CallBlock(self._take(len(marker)), self._plan.names)

    def _in_block(self, block: CallBlock | MarkedBlock, *, is_last: bool) -> Iterator[ChatDelta]:
        self._buffer = block.feed(self._buffer, is_last=is_last)
        if block.state is BlockState.OPEN:
            return
        self._block = None
        if block.state is BlockState.TEXT:
            yield from self._text(block.raw)
            return
        for call in block.calls:
            yield from self._complete(call)

    def _complete(self, call: Call) -> Iterator[ChatDelta]:
        yield from self._announce(call.name)
        if not self._is_muted:
            yield ArgumentsDelta(self.num_calls - 1, call.arguments)

    def _announce(self, name: str) -> Iterator[ChatDelta]:
        has_room = self._plan.max_calls is None or self.num_calls < self._plan.max_calls
        self._skips_space, self._space = True, ""
        self._is_muted = not has_room
        if has_room:
            self.num_calls += 1
            yield CallStart(self.num_calls - 1, name)


def merged(deltas: Iterable[ChatDelta]) -> list[ChatDelta]:
    """Join neighbouring deltas of the same kind; arguments only if they are of the same call."""
    result: list[ChatDelta] = []
    for delta in deltas:
        last = result[-1] if result else None
        if isinstance(last, TextDelta | ReasoningDelta) and isinstance(delta, type(last)):
            result[-1] = type(delta)(last.text + delta.text)
        elif isinstance(delta, ArgumentsDelta) and isinstance(last, ArgumentsDelta) and last.index == delta.index:
            result[-1] = ArgumentsDelta(last.index, last.text + delta.text)
        else:
            result.append(delta)
    return result


class TokenPlaces:
    """Remembers which characters of a text each token added, to count the tokens of a part of it."""

    def __init__(self, start: int) -> None:
        """Create an empty record that begins at character `start`."""
        self._place = start
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, text: str, tokens: Sequence[Token]) -> None:
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
        return merged(self._deltas(self._parser.feed(text)))

    def finish(self) -> list[ChatDelta]:
        held = () if self._parser is None else self._deltas(self._parser.finish())
        return merged([*held, *self._tools.finish()])

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
