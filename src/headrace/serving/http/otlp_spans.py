"""
Spans recorded with OpenTelemetry's SDK; the only module that imports it (`pip install 'headrace[otel]'`).

A thread of the SDK exports them in batches, from a bounded queue (`OTEL_BSP_*`): an unreachable receiver costs spans,
never requests. The SDK reads the standard variables for sampling, limits, resources and the exporter itself.
"""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from headrace import __version__
from headrace.core.telemetry import get_logger
from headrace.core.tracing import SpanValue, TraceContext

_FLUSH_S = 2.0
"""Longest time that the last spans may delay the end of the process."""
_EXPORTERS = "opentelemetry.exporter"
"""The logger of all exporters."""


class OtelTracer:
    """A `Tracer` that exports spans."""

    def __init__(self, exporter: SpanExporter, *, service: str, url: str) -> None:
        """Start the exporting thread; `url` is the receiver, for the log."""
        resource = Resource.create({"service.name": service, "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(ReportingExporter(exporter, url)))
        self._tracer = self._provider.get_tracer("headrace", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def start(self, name: str, trace: TraceContext) -> "OtelSpan":
        """Start the span of a request; the sampler decides whether it is recorded."""
        carrier = {"traceparent": trace.traceparent, "tracestate": trace.tracestate} if trace.traceparent else {}
        parent = self._propagator.extract(carrier)
        return OtelSpan(self._tracer.start_span(name, context=parent, kind=SpanKind.SERVER), trace)

    def close(self) -> None:
        """Export the last spans; give up after `_FLUSH_S`."""
        thread = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        thread.start()
        thread.join(_FLUSH_S)
        if thread.is_alive():
            get_logger().warning("traces.lost", message=f"The last spans were not exported within {_FLUSH_S:g} s.")


class OtelSpan:
    def __init__(self, span: Span, trace: TraceContext) -> None:
        self._span = span
        self._began_ns, self._began_s = time.time_ns(), time.perf_counter()
        context = span.get_span_context()
        self.trace = replace(
            trace,
            traceparent=f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}",
            tracestate=context.trace_state.to_header(),
            has_span=True,
        )
        self._is_failed = False
        self.is_recording = span.is_recording()
        if self.is_recording:
            self.describe({"headrace.request_id": trace.request_id, "headrace.inference_id": trace.inference_id})

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def describe(self, attributes: Mapping[str, SpanValue]) -> None:
        present: dict[str, Any] = {name: value for name, value in attributes.items() if value not in (None, "")}
        self._span.set_attributes(present)

    def add_event(self, name: str, at_s: float) -> None:
        """Add an event; `at_s` is a time of `perf_counter`."""
        self._span.add_event(name, timestamp=self._began_ns + round((at_s - self._began_s) * 1e9))

    def fail(self, error: str) -> None:
        """Mark the request as failed; only the first error is kept, as the most specific one."""
        if self._is_failed:
            return
        self._is_failed = True
        self._span.set_attribute("error.type", error)
        self._span.set_status(StatusCode.ERROR, error)

    def end(self) -> None:
        """End the span, which hands it to the exporting thread if it is sampled."""
        self._span.end()


class ReportingExporter(SpanExporter):
    """An exporter that logs when exports begin to fail and when they work again, not at each attempt."""

    def __init__(self, exporter: SpanExporter, url: str) -> None:
        self._exporter = exporter
        self._url = url
        self._num_lost = 0
        self._reason = _LastLine()
        logger = logging.getLogger(_EXPORTERS)
        logger.handlers[:], logger.propagate = [self._reason], False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            if not self._num_lost:
                get_logger().warning("traces.not_exported", url=self._url, reason=self._reason.text)
            self._num_lost += len(spans)
        elif self._num_lost:
            get_logger().info("traces.exported_again", url=self._url, lost_spans=self._num_lost)
            self._num_lost = 0
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class _LastLine(logging.Handler):
    """Keeps the last line that an exporter logged, as the reason of a failure."""

    text = "unknown"

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()
