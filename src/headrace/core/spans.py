"""
Spans of requests, as the servers know them; `http.otlp` records them with OpenTelemetry.

Without a recorder a request costs one small object, and its trace context is forwarded unchanged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.core.tracing import TraceContext

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
