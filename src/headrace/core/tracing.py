"""
The ids of a request from the client through the gateway to the worker, and its spans as the servers know them.

A missing or invalid request id is replaced by a new one; any other invalid id is dropped. A W3C trace context is
forwarded unchanged unless the process records spans: then the next server's parent is its own span.
`http.otlp` records spans with OpenTelemetry; without a recorder a request costs one small object.
Source: W3C Trace Context, level 1, sections 3.2 and 3.3.
"""

import re
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

import structlog

REQUEST_ID = "X-Request-Id"
ANTHROPIC_REQUEST_ID = "request-id"
"""The response header that Anthropic's SDKs read."""
INFERENCE_ID = "X-Amzn-SageMaker-Inference-Id"
AMZN_TRACE_ID = "X-Amzn-Trace-Id"

_REQUEST_ID = re.compile(r"[A-Za-z0-9._~:/+=@,;|-]{1,128}", re.ASCII)
_INFERENCE_ID = re.compile(r"[ -~]{1,64}", re.ASCII)
"""SageMaker's limit. Source: botocore sagemaker-runtime, shape InferenceId."""
_AMZN_TRACE_ID = re.compile(r"[A-Za-z0-9._=;:/-]{1,256}", re.ASCII)
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}", re.ASCII)
_LATER_TRACEPARENT = re.compile(rf"(?!00){_TRACEPARENT.pattern}(?:-[ -~]{{0,200}})?", re.ASCII)
"""Versions after 00 may have additional fields."""
_TRACESTATE = re.compile(r"[ -~]{1,512}", re.ASCII)
_SCOPE_KEY = "headrace.trace"

RawHeaders = Iterable[tuple[bytes, bytes]]


def new_request_id() -> str:
    """Return a unique request id."""
    return uuid4().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceContext:
    """The ids of one request; an id that it does not have is empty."""

    request_id: str = field(default_factory=new_request_id)
    inference_id: str = ""
    amzn_trace_id: str = ""
    traceparent: str = ""
    """Names the trace and the parent of the next server's span."""
    tracestate: str = ""
    has_span: bool = False
    """The parent in `traceparent` is this process's own span, not the caller's."""

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Return the headers to forward to the next server."""
        named = (
            (REQUEST_ID, self.request_id),
            (INFERENCE_ID, self.inference_id),
            (AMZN_TRACE_ID, self.amzn_trace_id),
            ("traceparent", self.traceparent),
            ("tracestate", self.tracestate),
        )
        return tuple((name, value) for name, value in named if value)

    def log_fields(self) -> dict[str, str]:
        """Return the fields for each log line of the request."""
        _, trace_id, span_id, *_ = self.traceparent.split("-") if self.traceparent else ("", "", "")
        fields = {
            "request_id": self.request_id,
            "inference_id": self.inference_id,
            "trace_id": trace_id,
            "span_id" if self.has_span else "parent_id": span_id,
            "amzn_trace_id": self.amzn_trace_id,
        }
        return {name: value for name, value in fields.items() if value}


def read_trace(headers: RawHeaders) -> TraceContext:
    """Read the ids from the head of a request; header names are in lower case, as in ASGI."""
    found: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1").strip()
        found[name] = f"{found[name]},{value}" if name in found else value
    traceparent = _fit(_TRACEPARENT, found.get("traceparent")) or _fit(_LATER_TRACEPARENT, found.get("traceparent"))
    return TraceContext(
        request_id=_fit(_REQUEST_ID, found.get(REQUEST_ID.lower())) or new_request_id(),
        inference_id=_fit(_INFERENCE_ID, found.get(INFERENCE_ID.lower(), found.get("inference-id"))),
        amzn_trace_id=_fit(_AMZN_TRACE_ID, found.get(AMZN_TRACE_ID.lower())),
        traceparent=traceparent,
        tracestate=_fit(_TRACESTATE, found.get("tracestate")) if traceparent else "",
    )


def trace_of(scope: MutableMapping[str, Any]) -> TraceContext:
    """Return the ids of an ASGI scope's request; repeated calls return the same ids."""
    trace = scope.get(_SCOPE_KEY)
    if trace is None:
        trace = scope[_SCOPE_KEY] = read_trace(scope["headers"])
    assert isinstance(trace, TraceContext)
    return trace


def replace_trace(scope: MutableMapping[str, Any], trace: TraceContext) -> None:
    """Let `trace_of` return other ids for this request from now on."""
    scope[_SCOPE_KEY] = trace


def bind_to_log(trace: TraceContext) -> None:
    """Add the ids to every log line of the current task, replacing those of an earlier request."""
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**trace.log_fields())


def _fit(pattern: re.Pattern[str], value: str | None) -> str:
    return value if value is not None and pattern.fullmatch(value) else ""


SpanValue = str | int | float | Sequence[str] | None
"""An attribute's value; None: the span does not get the attribute."""


class Span(Protocol):
    """The time of one request in one process."""

    @property
    def trace(self) -> TraceContext:
        """The ids of the request for log lines and for the next server, whose span is a child of this one."""
        ...

    @property
    def is_recording(self) -> bool:
        """False if nothing is recorded: tracing is off, or the request is not sampled."""
        ...

    def rename(self, name: str) -> None:
        """Change the name, once the route is known."""
        ...

    def describe(self, attributes: Mapping[str, SpanValue]) -> None:
        """Add attributes."""
        ...

    def add_event(self, name: str, at_s: float) -> None:
        """Add an event; `at_s` is a time of `perf_counter`."""
        ...

    def fail(self, error: str) -> None:
        """Mark the request as failed by a code, never a text that a client or a model wrote; the first one counts."""
        ...

    def end(self) -> None:
        """End the span."""
        ...


class Tracer(Protocol):
    """Creates the spans of one process."""

    def start(self, name: str, trace: TraceContext) -> Span:
        """Start the span of a request, as a child of the caller's span if there is one."""
        ...


@dataclass(frozen=True, slots=True)
class NoSpan:
    """A span that is not recorded."""

    trace: TraceContext
    is_recording: bool = False

    def rename(self, name: str) -> None:
        """Ignore the name."""

    def describe(self, attributes: Mapping[str, SpanValue]) -> None:
        """Ignore the attributes."""

    def add_event(self, name: str, at_s: float) -> None:
        """Ignore the event."""

    def fail(self, error: str) -> None:
        """Ignore the error."""

    def end(self) -> None:
        """Do nothing."""


class NoTracer:
    """A tracer that records nothing."""

    def start(self, _name: str, trace: TraceContext) -> NoSpan:
        """Return a span that is not recorded."""
        return NoSpan(trace)


NO_TRACER = NoTracer()
