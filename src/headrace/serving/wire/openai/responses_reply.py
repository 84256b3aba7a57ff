"""
Responses as answers, whole and streamed: their items and the events of these.

The output is a list of items: reasoning, messages and function calls. A builder converts the answer to events and keeps
the items, so that the whole response is what a stream adds up to.

Source: OpenAI API reference, "Responses"; "Streaming events".
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from headrace.core.errors import Busy, HeadraceError, UserError
from headrace.core.generation import Chunk, Finish, FinishReason, Token
from headrace.serving.wire.answers import Answer
from headrace.serving.wire.dialect import ClosingStream, ReplyHead
from headrace.serving.wire.framing import SSE_KEEP_ALIVE, to_json
from headrace.serving.wire.openai.answer_stream import (
    AnswerPlan,
    AnswerStream,
    CallStart,
    ChatDelta,
    ReasoningDelta,
    TextDelta,
    by_token,
)
from headrace.serving.wire.openai.envelope import error_object, token_logprobs, visible
from headrace.serving.wire.openai.responses_items import ToolOrigin, custom_input

Event = tuple[str, dict[str, object]]
"""The type of an event and its other fields, without the number."""


TextKind = Literal["message", "reasoning"]


class TextItem:
    """A message or the reasoning before one, with one content part."""

    def __init__(self, kind: TextKind, request_id: str, index: int) -> None:
        """Create item number `index` of the output."""
        self.kind = kind
        self._is_message = kind == "message"
        self._id = f"{'msg' if self._is_message else 'rs'}_{request_id}_{index}"
        self._index = index
        self._texts: list[str] = []
        self._logprobs: list[dict[str, object]] = []

    def begin(self) -> Iterator[Event]:
        yield _item_event("added", self._index, self._object("in_progress", []))
        yield self._part_event("added")

    def add(self, text: str, logprobs: Sequence[dict[str, object]]) -> Iterator[Event]:
        self._texts.append(text)
        self._logprobs += logprobs
        yield self._text_event("delta", {"delta": text}, logprobs)

    def end(self, status: str) -> Iterator[Event]:
        yield self._text_event("done", {"text": "".join(self._texts)}, self._logprobs)
        yield self._part_event("done")
        yield _item_event("done", self._index, self.item(status))

    def item(self, status: str) -> dict[str, object]:
        return self._object(status, [self._part()])

    def _object(self, status: str, content: Sequence[object]) -> dict[str, object]:
        shared = {"id": self._id, "type": self.kind, "status": status, "content": content}
        return {**shared, "role": "assistant"} if self._is_message else {**shared, "summary": []}

    def _part(self) -> dict[str, object]:
        text = "".join(self._texts)
        if self._is_message:
            return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs}
        return {"type": "reasoning_text", "text": text}

    def _part_event(self, suffix: str) -> Event:
        return f"response.content_part.{suffix}", {**self._place(), "part": self._part()}

    def _text_event(self, suffix: str, text: dict[str, object], logprobs: Sequence[object]) -> Event:
        if self._is_message:
            return f"response.output_text.{suffix}", {**self._place(), **text, "logprobs": logprobs}
        return f"response.reasoning_text.{suffix}", {**self._place(), **text}

    def _place(self) -> dict[str, object]:
        return {"item_id": self._id, "output_index": self._index, "content_index": 0}


class CallItem:
    """A call of a tool, of which the model has called the function that stands for it."""

    def __init__(self, start: CallStart, origin: ToolOrigin, request_id: str, index: int) -> None:
        """Create item number `index` of the output."""
        self._id = f"{'ctc' if origin.is_custom else 'fc'}_{request_id}_{index}"
        self._call_id = f"call_{request_id}_{start.index}"
        self._origin = origin
        self._index = index
        self._texts: list[str] = []

    def begin(self) -> Iterator[Event]:
        yield _item_event("added", self._index, self.item("in_progress"))

    def add(self, text: str, logprobs: Sequence[object]) -> Iterator[Event]:
        """Append text to the arguments, which have no logprobs; the input of a custom tool is known at their end."""
        del logprobs
        self._texts.append(text)
        if not self._origin.is_custom:
            yield "response.function_call_arguments.delta", {**self._place(), "delta": text}

    def end(self, status: str) -> Iterator[Event]:
        if self._origin.is_custom:
            text = self._input()
            yield "response.custom_tool_call_input.delta", {**self._place(), "delta": text}
            yield "response.custom_tool_call_input.done", {**self._place(), "input": text}
        else:
            done = {**self._place(), "name": self._origin.name, "arguments": "".join(self._texts)}
            yield "response.function_call_arguments.done", done
        yield _item_event("done", self._index, self.item(status))

    def item(self, status: str) -> dict[str, object]:
        is_custom, namespace = self._origin.is_custom, self._origin.namespace
        return {
            "id": self._id,
            "type": "custom_tool_call" if is_custom else "function_call",
            "status": status,
            "call_id": self._call_id,
            "name": self._origin.name,
            **({} if namespace is None else {"namespace": namespace}),
            **({"input": self._input()} if is_custom else {"arguments": "".join(self._texts)}),
        }

    def _input(self) -> str:
        return custom_input("".join(self._texts)) if self._texts else ""

    def _place(self) -> dict[str, object]:
        return {"item_id": self._id, "output_index": self._index}


def _item_event(suffix: str, index: int, item: dict[str, object]) -> Event:
    return f"response.output_item.{suffix}", {"output_index": index, "item": item}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseOptions:
    """Options of a request for the format of its response."""

    request_id: str
    created_s: int
    model: str
    plan: AnswerPlan
    is_stream: bool
    num_top_logprobs: int | None
    """Alternatives per token; None: no logprobs."""
    with_special: bool
    echoed: Mapping[str, object]
    """The settings that a response repeats."""
    origins: Mapping[str, ToolOrigin] = field(default_factory=dict)
    """The tools that functions stand for."""
    keep: Callable[[bytes], None] | None = None
    """Stores the response at its end; None: it is not stored."""

    @property
    def response_id(self) -> str:
        return f"resp_{self.request_id}"

    def response(
        self,
        status: str,
        output: Sequence[object] = (),
        *,
        usage: object = None,
        error: object = None,
        incomplete: object = None,
    ) -> dict[str, object]:
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created_s,
            "status": status,
            "model": self.model,
            "output": output,
            "error": error,
            "incomplete_details": incomplete,
            "usage": usage,
            **self.echoed,
        }


@dataclass(frozen=True, slots=True)
class ResponseReply(ReplyHead):
    """Renders the answer to a request for a response."""

    options: ResponseOptions

    def stream(self) -> "ResponseStream":
        return ResponseStream(self.options)

    def render(self, answers: Sequence[Answer]) -> bytes:
        (answer,) = answers
        (choice,) = answer.choices
        builder = _Builder(self.options, choice.opening)
        deque(builder.feed(choice.text, choice.tokens), maxlen=0)  # the events are for streams
        deque(builder.finish(choice.finish), maxlen=0)
        return to_json(builder.finished(choice.finish))


class ResponseStream(ClosingStream):
    """Renders `response.created`, the items' events and the end, numbered in their order."""

    keep_alive = SSE_KEEP_ALIVE

    def __init__(self, options: ResponseOptions) -> None:
        super().__init__()
        self._options = options
        self._builder: _Builder | None = None
        self._num_events = 0

    def _chunk(self, chunk: Chunk, request: int) -> Sequence[bytes]:
        del request
        events: list[bytes] = []
        if self._builder is None:
            self._builder = _Builder(self._options, chunk.opening)
            begun = self._options.response("in_progress")
            events.append(self._event("response.created", {"response": begun}))
            events.append(self._event("response.in_progress", {"response": begun}))
        events += self._events(self._builder.feed(chunk.text, chunk.tokens))
        if chunk.finish is not None:
            events += self._events(self._builder.finish(chunk.finish))
            response = self._builder.finished(chunk.finish)
            events.append(self._event(f"response.{response['status']}", {"response": response}))
        return events

    def _error(self, error: HeadraceError) -> Sequence[bytes]:
        events = [error_event(error, self._num_events)]
        self._num_events += 1
        if self._builder is not None:
            code = "invalid_prompt" if isinstance(error, UserError) else "server_error"  # a closed list of codes
            if isinstance(error, Busy):
                code = "rate_limit_exceeded"
            found = {"code": code, "message": error.message}
            failed = self._options.response("failed", self._builder.output(), error=found)
            if self._options.keep is not None:
                self._options.keep(to_json(failed))
            events.append(self._event("response.failed", {"response": failed}))
        return events

    def _events(self, events: Iterable[Event]) -> list[bytes]:
        return [self._event(kind, fields) for kind, fields in events]

    def _event(self, kind: str, fields: Mapping[str, object]) -> bytes:
        number = self._num_events
        self._num_events += 1
        return _framed({"type": kind, "sequence_number": number, **fields})


def error_event(error: HeadraceError, sequence_number: int = 0) -> bytes:
    """
    Render an error in a stream.

    NOTE: The reference has the fields at the top level, OpenAI's servers send them inside `error`, and its SDKs raise
    an exception only then.
    """
    found = error_object(error, prompt="input")
    fields = {name: found[name] for name in ("code", "message", "param")}
    return _framed({"type": "error", "sequence_number": sequence_number, **fields, "error": found})


def _framed(event: Mapping[str, object]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), to_json(event))


class _Builder:
    """Converts an answer to items and their events."""

    def __init__(self, options: ResponseOptions, opening: str) -> None:
        self._options = options
        self._stream = AnswerStream(options.plan, opening)
        self._done: list[dict[str, object]] = []
        self._open: TextItem | CallItem | None = None
        self._tokens: list[Token] = []
        """Tokens that are not in a delta yet."""

    def feed(self, text: str, tokens: Sequence[Token]) -> Iterator[Event]:
        if self._options.num_top_logprobs is None:
            yield from self._deltas(self._stream.feed(text, tokens))
            return
        for piece, its_tokens in by_token(text, tokens):
            self._tokens += visible(its_tokens, with_special=self._options.with_special)
            yield from self._deltas(self._stream.feed(piece, its_tokens))

    def finish(self, finish: Finish) -> Iterator[Event]:
        """End the answer; it has at least one item."""
        yield from self._deltas(self._stream.finish())
        if self._open is None:
            yield from self._begin(TextItem("message", self._options.request_id, len(self._done)))
        yield from self._close("incomplete" if finish.reason is FinishReason.LENGTH else "completed")

    def output(self) -> list[dict[str, object]]:
        return self._done if self._open is None else [*self._done, self._open.item("incomplete")]

    def finished(self, finish: Finish) -> dict[str, object]:
        """Return the response after its end, and store it if the request asks for it."""
        is_cut = finish.reason is FinishReason.LENGTH
        usage = {
            "input_tokens": finish.prompt_tokens,
            "input_tokens_details": {"cached_tokens": finish.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": finish.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self._stream.num_reasoning_tokens or 0},
            "total_tokens": finish.prompt_tokens + finish.output_tokens,
        }
        response = self._options.response(
            "incomplete" if is_cut else "completed",
            self._done,
            usage=usage,
            incomplete={"reason": "max_output_tokens"} if is_cut else None,
        )
        if self._options.keep is not None:
            self._options.keep(to_json(response))
        return response

    def _deltas(self, deltas: Iterable[ChatDelta]) -> Iterator[Event]:
        for delta in deltas:
            yield from self._delta(delta)
            self._tokens.clear()

    def _delta(self, delta: ChatDelta) -> Iterator[Event]:
        if isinstance(delta, CallStart):
            yield from self._close("completed")
            origin = self._options.origins.get(delta.name) or ToolOrigin(name=delta.name)
            yield from self._begin(CallItem(delta, origin, self._options.request_id, len(self._done)))
            return
        if isinstance(delta, TextDelta | ReasoningDelta):
            kind: TextKind = "message" if isinstance(delta, TextDelta) else "reasoning"
            if not (isinstance(self._open, TextItem) and self._open.kind == kind):
                yield from self._close("completed")
                yield from self._begin(TextItem(kind, self._options.request_id, len(self._done)))
        if self._open is not None:
            num_top = self._options.num_top_logprobs
            logprobs: list[dict[str, object]] = []
            if num_top is not None and isinstance(delta, TextDelta):  # only messages have them
                logprobs = token_logprobs(_last_tokens(self._tokens, delta.text), num_top=num_top)
            yield from self._open.add(delta.text, logprobs)

    def _begin(self, item: TextItem | CallItem) -> Iterator[Event]:
        self._open = item
        yield from item.begin()

    def _close(self, status: str) -> Iterator[Event]:
        if self._open is not None:
            yield from self._open.end(status)
            self._done.append(self._open.item(status))
        self._open = None


def render_count(num_tokens: int) -> bytes:
    return to_json({"object": "response.input_tokens", "input_tokens": num_tokens})


def _last_tokens(tokens: Sequence[Token], text: str) -> Sequence[Token]:
    """Return the tokens at the end that make up `text`: the first ones may be separators, which no item has."""
    num_characters, start = 0, len(tokens)
    while start and (num_characters < len(text) or not tokens[start - 1].text):
        start -= 1
        num_characters += len(tokens[start].text)
    return tokens[start:]
