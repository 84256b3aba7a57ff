"""
Messages as answers, whole and streamed, and errors: `{"type": "error", "error": {"type", "message"}}`.

A stream has one content block after the other, each with a start, deltas and a stop. Prompt tokens are known at the
end of the generation, so `message_start` counts none and `message_delta` has them all; the SDKs read them there.

Source: Anthropic API reference, "Messages"; "Streaming messages"; "Errors".
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from headrace.core.errors import (
    Busy,
    ContextTooLong,
    HeadraceError,
    ModelNotFound,
    PromptTooLong,
    Unavailable,
    UserError,
)
from headrace.core.generation import Chunk, Finish, FinishReason
from headrace.serving.wire.answers import Answer
from headrace.serving.wire.dialect import ClosingStream, ErrorReply, ReplyHead, retry_headers
from headrace.serving.wire.framing import to_json
from headrace.serving.wire.openai.answer_stream import (
    AnswerPlan,
    AnswerStream,
    CallStart,
    ChatDelta,
    ReasoningDelta,
    TextDelta,
)

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


def error_body(error: HeadraceError) -> bytes:
    """Render the JSON object for an error, in a body or a stream."""
    return to_json({"type": "error", "error": {"type": _type(error), "message": _message(error)}})


def render_error(error: HeadraceError) -> ErrorReply:
    return ErrorReply(status=error.http_status, body=error_body(error), headers=retry_headers(error))


def error_event(error: HeadraceError) -> bytes:
    """Render the event that ends a stream with an error."""
    return b"event: error\ndata: %b\n\n" % error_body(error)


def _message(error: HeadraceError) -> str:
    """Return the text of an error; those about lengths are Anthropic's, which Claude Code reads to shorten the chat."""
    if isinstance(error, PromptTooLong):
        counted = f"{'' if error.is_exact else 'at least '}{error.prompt_tokens} tokens"
        return f"prompt is too long: {counted} > {error.max_prompt_tokens} maximum"
    if isinstance(error, ContextTooLong):
        numbers = f"{error.prompt_tokens} + {error.max_new_tokens} > {error.max_total_tokens}"
        advice = "decrease input length or `max_tokens` and try again"
        return f"input length and `max_tokens` exceed context limit: {numbers}, {advice}"
    return error.message


def _type(error: HeadraceError) -> str:
    if isinstance(error, ModelNotFound):
        return "not_found_error"
    if isinstance(error, Busy):
        return "rate_limit_error"
    if isinstance(error, Unavailable):
        return "overloaded_error"
    if error.http_status in _TYPES:
        return _TYPES[error.http_status]
    return "invalid_request_error" if isinstance(error, UserError) else "api_error"


_decode_arguments = msgspec.json.Decoder(dict[str, object]).decode
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_SIGNATURE = "headrace"
"""Thinking blocks carry a signature, which Anthropic's servers check; SDKs require the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOptions:
    """Options of a request for the format of its answer."""

    id: str
    model: str
    plan: AnswerPlan
    is_stream: bool
    max_tokens: int

    def call_id(self, call: int) -> str:
        return f"toolu_{self.id.removeprefix('msg_')}_{call}"

    def message(self, content: Sequence[object], finish: Finish | None, num_calls: int) -> dict[str, object]:
        """Return a message; without `finish` it has only begun."""
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            **self.stop(finish, num_calls),
            "usage": _usage(finish),
        }

    def stop(self, finish: Finish | None, num_calls: int) -> dict[str, object]:
        """Return why an answer ended; an answer that is cut before `max_tokens` has filled the context."""
        if finish is None:
            return {"stop_reason": None, "stop_sequence": None}
        if finish.reason is FinishReason.LENGTH:
            reason = "max_tokens" if finish.output_tokens >= self.max_tokens else "model_context_window_exceeded"
            return {"stop_reason": reason, "stop_sequence": None}
        if finish.reason is FinishReason.STOP and isinstance(finish.stop, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": finish.stop}
        return {"stop_reason": "tool_use" if num_calls else "end_turn", "stop_sequence": None}


def _usage(finish: Finish | None) -> dict[str, object]:
    """Return the token counts: `input_tokens` are those that the prefix cache did not have."""
    cached = 0 if finish is None else finish.cached_tokens
    return {
        "input_tokens": 0 if finish is None else finish.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": 0 if finish is None else finish.output_tokens,
    }


@dataclass(frozen=True, slots=True)
class MessageReply(ReplyHead):
    """Renders the answer to a request for a message."""

    options: MessageOptions

    def stream(self) -> "MessageStream":
        return MessageStream(self.options)

    def render(self, answers: Sequence[Answer]) -> bytes:
        (answer,) = answers
        (choice,) = answer.choices
        stream = AnswerStream(self.options.plan, choice.opening)
        blocks: list[tuple[dict[str, object], list[str]]] = []
        for delta in (*stream.feed(choice.text), *stream.finish()):
            if isinstance(delta, CallStart) or not blocks or blocks[-1][0]["type"] != _kind(delta):
                blocks.append((_new_block(delta, self.options), []))
            if not isinstance(delta, CallStart):
                blocks[-1][1].append(delta.text)
        content = [_filled(block, "".join(texts)) for block, texts in blocks]
        return to_json(self.options.message(content, choice.finish, stream.num_calls))


def _filled(block: dict[str, object], text: str) -> dict[str, object]:
    if block["type"] == "thinking":
        return {**block, "thinking": text, "signature": _SIGNATURE}
    if block["type"] == "text":
        return {**block, "text": text}
    try:
        return {**block, "input": _decode_arguments(text)}
    except (msgspec.DecodeError, RecursionError):
        return {"type": "text", "text": text}  # without its arguments, which were cut off, a call must not run


def _kind(delta: ChatDelta) -> str:
    if isinstance(delta, ReasoningDelta):
        return "thinking"
    return "text" if isinstance(delta, TextDelta) else "tool_use"


def _new_block(delta: ChatDelta, options: MessageOptions) -> dict[str, object]:
    if isinstance(delta, CallStart):
        return {"type": "tool_use", "id": options.call_id(delta.index), "name": delta.name, "input": {}}
    if isinstance(delta, ReasoningDelta):
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


class MessageStream(ClosingStream):
    """Renders `message_start`, the content blocks, `message_delta` and `message_stop`."""

    keep_alive = _PING

    def __init__(self, options: MessageOptions) -> None:
        super().__init__()
        self._options = options
        self._stream: AnswerStream | None = None
        self._block = ""
        """The type of the open block; empty if none is open."""
        self._index = -1

    def _chunk(self, chunk: Chunk, request: int) -> Sequence[bytes]:
        del request
        events: list[bytes] = []
        if self._stream is None:
            self._stream = AnswerStream(self._options.plan, chunk.opening)
            events.append(_event("message_start", message=self._options.message([], None, 0)))
        deltas = self._stream.feed(chunk.text)
        if chunk.finish is not None:
            deltas += self._stream.finish()
        for delta in deltas:
            events.extend(self._delta(delta))
        if chunk.finish is not None:
            events.extend(self._close())
            stop, usage = self._options.stop(chunk.finish, self._stream.num_calls), _usage(chunk.finish)
            events.append(_event("message_delta", delta=stop, usage=usage))
            events.append(_event("message_stop"))
        return events

    def _delta(self, delta: ChatDelta) -> Iterable[bytes]:
        kind = _kind(delta)
        if isinstance(delta, CallStart) or kind != self._block:
            yield from self._close()
            self._index += 1
            self._block = kind
            block = _new_block(delta, self._options)
            yield _event("content_block_start", index=self._index, content_block=block)
        if isinstance(delta, CallStart):
            return
        if isinstance(delta, ReasoningDelta):
            content = {"type": "thinking_delta", "thinking": delta.text}
        elif isinstance(delta, TextDelta):
            content = {"type": "text_delta", "text": delta.text}
        else:
            content = {"type": "input_json_delta", "partial_json": delta.text}
        yield _event("content_block_delta", index=self._index, delta=content)

    def _close(self) -> Iterable[bytes]:
        if self._block == "thinking":
            signature = {"type": "signature_delta", "signature": _SIGNATURE}
            yield _event("content_block_delta", index=self._index, delta=signature)
        if self._block:
            yield _event("content_block_stop", index=self._index)
        self._block = ""

    def _error(self, error: HeadraceError) -> Sequence[bytes]:
        return (error_event(error),)


def render_count(num_tokens: int) -> bytes:
    return to_json({"input_tokens": num_tokens})


def _event(kind: str, **fields: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), to_json({"type": kind, **fields}))
