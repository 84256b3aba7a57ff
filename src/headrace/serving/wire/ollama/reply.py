"""
Answers of `/api/chat` and `/api/generate`, whole and as one JSON object per line, and errors: `{"error": "..."}`.

The last object has the token counts and the durations. Source: Ollama `docs/api.md`; `api/types.go` (Metrics).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.core.errors import HeadraceError
from headrace.core.generation import Chunk, Finish, FinishReason, Token
from headrace.serving.wire.answers import Answer
from headrace.serving.wire.dialect import ClosingStream, ErrorReply, ReplyHead, Timings, retry_headers
from headrace.serving.wire.framing import NDJSON_CONTENT_TYPE, json_line, to_json
from headrace.serving.wire.openai.answer_stream import (
    AnswerPlan,
    AnswerStream,
    CallStart,
    ChatDelta,
    ReasoningDelta,
    TextDelta,
)
from headrace.serving.wire.openai.envelope import token_logprobs, visible


def error_body(error: HeadraceError) -> bytes:
    """Render the JSON object for an error, in a body or a stream."""
    return to_json({"error": error.message})


def render_error(error: HeadraceError) -> ErrorReply:
    return ErrorReply(status=error.http_status, body=error_body(error), headers=retry_headers(error))


def error_line(error: HeadraceError) -> bytes:
    """Render the line that ends a stream with an error."""
    return json_line(error_body(error))


_NS_PER_S = 1_000_000_000
_LOADED: dict[str, object] = {"done": True, "done_reason": "load"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyOptions:
    """Options of a request for the format of its answer."""

    id: str
    model: str
    created_at: str
    is_chat: bool
    is_stream: bool
    timings: Callable[[], Timings]
    plan: AnswerPlan
    num_top_logprobs: int | None
    """Alternatives per token; None: no logprobs."""

    def answer(self, parts: "Parts", end: dict[str, object] | None = None) -> bytes:
        """Render the object with a part of the answer; `end` has the fields of the last one."""
        return to_json(
            {
                "model": self.model,
                "created_at": self.created_at,
                **self._content(parts),
                **self._logprobs(parts),
                **(end or {"done": False}),
            }
        )

    def _content(self, parts: "Parts") -> dict[str, object]:
        thinking = {"thinking": parts.thinking} if parts.thinking else {}
        if not self.is_chat:
            return {"response": parts.content, **thinking}
        message: dict[str, object] = {"role": "assistant", "content": parts.content, **thinking}
        if parts.calls:
            message["tool_calls"] = [
                {"id": f"call_{self.id}_{call['index']}", "function": call} for call in parts.calls
            ]
        return {"message": message}

    def _logprobs(self, parts: "Parts") -> dict[str, object]:
        if self.num_top_logprobs is None or not parts.tokens:
            return {}
        found = token_logprobs(visible(parts.tokens, with_special=False), num_top=self.num_top_logprobs)
        if self.num_top_logprobs == 0:
            for token in found:
                del token["top_logprobs"]
        return {"logprobs": found}

    def end(self, finish: Finish) -> dict[str, object]:
        """Return the fields of the last object: the reason, the token counts and the durations in nanoseconds."""
        timings = self.timings()
        return {
            "done": True,
            "done_reason": "length" if finish.reason is FinishReason.LENGTH else "stop",
            "total_duration": nanoseconds(timings.total_s),
            "load_duration": 0,
            "prompt_eval_count": finish.prompt_tokens,
            "prompt_eval_duration": nanoseconds(timings.first_chunk_s - timings.validation_s),
            "eval_count": finish.output_tokens,
            "eval_duration": nanoseconds(timings.total_s - timings.first_chunk_s),
        }


def nanoseconds(seconds: float) -> int:
    return round(seconds * _NS_PER_S)


@dataclass(slots=True)
class Parts:
    """Content, thinking, tool calls and tokens of a part of the answer."""

    content: str = ""
    thinking: str = ""
    calls: list[dict[str, object]] = field(default_factory=list)
    """Complete calls: their index, name and arguments."""
    tokens: list[Token] = field(default_factory=list)
    """The tokens since the previous part; their text may have been held back."""

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to send, though there may be tokens."""
        return not (self.content or self.thinking or self.calls)


class _PartStream:
    """Converts the text of an answer to parts, in which each call is complete."""

    def __init__(self, plan: AnswerPlan, opening: str) -> None:
        self._stream = AnswerStream(plan, opening)
        self._open: CallStart | None = None
        """The call whose arguments are arriving."""
        self._arguments: list[str] = []
        self._tokens: list[Token] = []

    def feed(self, text: str, tokens: Sequence[Token], finish: Finish | None) -> Parts:
        """Process the next text, which is the last one if there is a `finish`."""
        parts = Parts()
        self._tokens += tokens
        deltas = self._stream.feed(text)
        if finish is not None:
            deltas += self._stream.finish()
        for delta in deltas:
            self._add(delta, parts)
        if finish is not None:
            self._close(parts)
        if finish is not None or not parts.is_empty:
            parts.tokens, self._tokens = self._tokens, []
        return parts

    def _add(self, delta: ChatDelta, parts: Parts) -> None:
        if isinstance(delta, ReasoningDelta):
            parts.thinking += delta.text
        elif isinstance(delta, TextDelta):
            parts.content += delta.text
        elif isinstance(delta, CallStart):
            self._close(parts)
            self._open = delta
        else:
            self._arguments.append(delta.text)

    def _close(self, parts: Parts) -> None:
        """Add the open call, whose arguments are an object: no request forces calls, and others are complete."""
        if self._open is not None:
            arguments = msgspec.json.decode("".join(self._arguments), type=dict[str, object])
            parts.calls.append({"index": self._open.index, "name": self._open.name, "arguments": arguments})
        self._open = None
        self._arguments.clear()


@dataclass(frozen=True, slots=True)
class OllamaReply(ReplyHead):
    """Renders the answer to a chat or a prompt."""

    options: ReplyOptions

    stream_type = NDJSON_CONTENT_TYPE

    def stream(self) -> "OllamaStream":
        return OllamaStream(self.options)

    def render(self, answers: Sequence[Answer]) -> bytes:
        """Render the whole answer; without answers the request only loads the model."""
        if not answers:
            return self.options.answer(Parts(), _LOADED)
        (answer,) = answers
        (choice,) = answer.choices
        parts = _PartStream(self.options.plan, choice.opening).feed(choice.text, choice.tokens, choice.finish)
        return self.options.answer(parts, self.options.end(choice.finish))


class OllamaStream(ClosingStream):
    """Renders one object per part and a last one with the counts; clients cannot skip keep-alive lines."""

    def __init__(self, options: ReplyOptions) -> None:
        super().__init__()
        self._options = options
        self._parts: _PartStream | None = None

    def _chunk(self, chunk: Chunk, request: int) -> Sequence[bytes]:
        del request
        if self._parts is None:
            self._parts = _PartStream(self._options.plan, chunk.opening)
        parts = self._parts.feed(chunk.text, chunk.tokens, chunk.finish)
        lines = [] if parts.is_empty else [json_line(self._options.answer(parts))]
        if chunk.finish is not None:
            rest = Parts(tokens=parts.tokens if parts.is_empty else [])
            lines.append(json_line(self._options.answer(rest, self._options.end(chunk.finish))))
        return lines

    def _end(self) -> Sequence[bytes]:
        return () if self._parts is not None else (json_line(self._options.answer(Parts(), _LOADED)),)

    def _error(self, error: HeadraceError) -> Sequence[bytes]:
        return (error_line(error),)
