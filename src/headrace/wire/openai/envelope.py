"""Common parts of OpenAI's answers: ids, usage, finish reasons, and the framing of streamed objects."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib.metadata import version as package_version

from headrace.core.errors import HeadraceError
from headrace.core.generation import Finish, FinishReason, ModelInfo
from headrace.wire.answers import Usage
from headrace.wire.dialect import Timings
from headrace.wire.framing import (
    JSON_CONTENT_TYPE,
    JSONLINES_CONTENT_TYPE,
    SSE_CONTENT_TYPE,
    SSE_KEEP_ALIVE,
    UNBUFFERED_HEADERS,
    json_line,
    sse_event,
    to_json,
)
from headrace.wire.openai.errors import error_body
from headrace.wire.openai.parameters import Framing
from headrace.wire.streams import ClosingStream

DONE = sse_event(b"[DONE]")
UNFINISHED = b'"finish_reason":null'

_FINISH_REASONS = {
    FinishReason.LENGTH: "length",
    FinishReason.EOS: "stop",
    FinishReason.STOP: "stop",
    FinishReason.REPETITION: "stop",
}
_STOP_REASONS = {FinishReason.REPETITION: "repetition_detected"}
"""vLLM's values of `stop_reason` where `finish_reason` is too coarse: clients refuse vLLM's `repetition` there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The fields that all objects of an answer share."""

    id: str
    created_s: int
    model: ModelInfo
    framing: Framing
    stream: bool
    include_usage: bool

    @property
    def content_type(self) -> str:
        """The content type of a stream or of a whole body."""
        if not self.stream:
            return JSON_CONTENT_TYPE
        return SSE_CONTENT_TYPE if self.framing == "sse" else JSONLINES_CONTENT_TYPE

    def headers(self, timings: Timings | None) -> tuple[tuple[str, str], ...]:
        """Return headers that keep proxies from buffering a stream."""
        del timings
        return UNBUFFERED_HEADERS if self.stream else ()

    def body(self, kind: str, choices: Sequence[object], usage: Usage) -> bytes:
        """Render a whole answer."""
        return to_json({**self._head(kind), "choices": choices, "usage": usage_object(usage)})

    def frame(self, kind: str) -> tuple[bytes, bytes]:
        """Return the bytes before and after the only choice of a streamed object, including its framing."""
        head = to_json(self._head(kind))[:-1] + b',"choices":['
        tail = b'],"usage":null}' if self.include_usage else b"]}"
        if self.framing == "sse":
            return b"data: " + head, tail + b"\n\n"
        return head, tail + b"\n"

    def usage_event(self, kind: str, usage: Usage) -> bytes:
        """Render the last object of a stream, which has `usage` and no choices."""
        return self._framed(to_json({**self._head(kind), "choices": [], "usage": usage_object(usage)}))

    def error_events(self, error: HeadraceError) -> list[bytes]:
        """Render the end of a stream that failed."""
        event = self._framed(error_body(error))
        return [event, DONE] if self.framing == "sse" else [event]

    @property
    def end_events(self) -> list[bytes]:
        """Render the end of a stream that succeeded."""
        return [DONE] if self.framing == "sse" else []

    @property
    def keep_alive(self) -> bytes:
        """Bytes to send between events to keep a connection open."""
        return SSE_KEEP_ALIVE if self.framing == "sse" else b""

    def _head(self, kind: str) -> dict[str, object]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created_s,
            "model": self.model.name,
            "system_fingerprint": system_fingerprint(self.model),
        }

    def _framed(self, data: bytes) -> bytes:
        return sse_event(data) if self.framing == "sse" else json_line(data)


@lru_cache(maxsize=16)
def system_fingerprint(model: ModelInfo) -> str:
    """Return a hash of what a seeded answer depends on besides the request: weights, formats, kernels, version."""
    facts = (model.name, model.revision, model.dtype, model.kv_dtype, model.device, package_version("headrace"))
    return f"fp_{sha256(repr(facts).encode()).hexdigest()[:10]}"


def usage_object(usage: Usage) -> dict[str, object]:
    """Return the `usage` object."""
    reasoning = usage.reasoning_tokens
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        **({} if reasoning is None else {"completion_tokens_details": {"reasoning_tokens": reasoning}}),
    }


def finish_reason(finish: Finish) -> str:
    """Return `finish_reason` of a choice without tool calls."""
    return _FINISH_REASONS[finish.reason]


def finish_fields(finish: Finish, reason: str) -> dict[str, str]:
    """Return `finish_reason`, and `stop_reason` of a choice that repeated itself."""
    more = _STOP_REASONS.get(finish.reason)
    return {"finish_reason": reason} if more is None else {"finish_reason": reason, "stop_reason": more}


def streamed_finish(finish: Finish, reason: str) -> bytes:
    """Return `finish_fields` as the last fields of an object that is written in parts."""
    return to_json(finish_fields(finish, reason))[1:-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeOptions:
    """Options of a request for the format of its answer, whole or streamed."""

    envelope: Envelope
    num_top_logprobs: int | None
    """Alternatives per token; None: no logprobs."""
    with_special: bool


@dataclass(frozen=True, slots=True)
class EnvelopeReply:
    """The content type and headers of a reply in an envelope."""

    options: EnvelopeOptions

    @property
    def content_type(self) -> str:
        """The content type of JSON or of a stream."""
        return self.options.envelope.content_type

    def headers(self, timings: Timings | None) -> tuple[tuple[str, str], ...]:
        """Return additional response headers."""
        return self.options.envelope.headers(timings)


class EnvelopeStream(ClosingStream):
    """A stream of objects in an envelope, which ends with the usage, if requested, and `[DONE]`."""

    def __init__(self, envelope: Envelope, kind: str) -> None:
        super().__init__()
        self.keep_alive = envelope.keep_alive
        self._envelope = envelope
        self._kind = kind
        self._head, self._tail = envelope.frame(kind)
        self._meter = UsageMeter()

    def _end(self) -> Sequence[bytes]:
        usage = [self._envelope.usage_event(self._kind, self._meter.usage)] if self._envelope.include_usage else []
        return [*usage, *self._envelope.end_events]

    def _error(self, error: HeadraceError) -> Sequence[bytes]:
        return self._envelope.error_events(error)

    def _framed(self, choice: bytes) -> bytes:
        """Render an object with one choice."""
        return b"".join((self._head, choice, self._tail))


class UsageMeter:
    """Sums up the usage of a stream: prompt tokens once per request, output tokens per choice."""

    def __init__(self) -> None:
        self._prompts: dict[int, Finish] = {}
        self._output_tokens = 0
        self._reasoning_tokens: int | None = None

    def add(self, request: int, finish: Finish, reasoning_tokens: int | None = None) -> None:
        """Count a choice that has finished."""
        self._prompts.setdefault(request, finish)
        self._output_tokens += finish.output_tokens
        if reasoning_tokens is not None:
            self._reasoning_tokens = (self._reasoning_tokens or 0) + reasoning_tokens

    @property
    def usage(self) -> Usage:
        """Return the usage so far."""
        return Usage(
            prompt_tokens=sum(finish.prompt_tokens for finish in self._prompts.values()),
            output_tokens=self._output_tokens,
            cached_tokens=sum(finish.cached_tokens for finish in self._prompts.values()),
            reasoning_tokens=self._reasoning_tokens,
        )
