"""
The ids of a request from the client through the gateway to the worker: header names, rules, and log fields.

A missing or invalid request id is replaced by a new one; any other invalid id is dropped. A W3C trace context is
forwarded unchanged unless the process records spans (`core.spans`): then the next server's parent is its own span.
Source: W3C Trace Context, level 1, sections 3.2 and 3.3.
"""

import re
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
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
