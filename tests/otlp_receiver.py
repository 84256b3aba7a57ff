"""A receiver of traces: a real OTLP server, by HTTP or gRPC, that keeps the spans it gets."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.waiting import WAIT_S


@dataclass
class Span:
    """A span as it arrived."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    error: str
    """The description of an error status; empty without one."""
    attributes: dict[str, Any]
    events: dict[str, int]
    """Name → time, nanoseconds since 1970."""
    start_ns: int
    end_ns: int


@dataclass
class Receiver:
    """The spans that arrived, and where to send them."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)
    headers: dict[str, str] = field(default_factory=dict)
    _arrived: threading.Condition = field(default_factory=threading.Condition)

    def add(self, request: ExportTraceServiceRequest) -> None:
        with self._arrived:
            self.spans.extend(_spans(request))
            self._arrived.notify_all()

    def trace(self, trace_id: str, num_spans: int) -> list[Span]:
        """Return the spans of a trace, in the order of their start, once there are so many."""

        def found() -> list[Span]:
            return sorted((span for span in self.spans if span.trace_id == trace_id), key=lambda span: span.start_ns)

        with self._arrived:
            assert self._arrived.wait_for(lambda: len(found()) >= num_spans, WAIT_S), self.spans
            assert len(found()) == num_spans, found()
            return found()


def _spans(request: ExportTraceServiceRequest) -> Iterator[Span]:
    for group in request.resource_spans:
        service = _attributes(group.resource.attributes)["service.name"]
        for scope in group.scope_spans:
            for span in scope.spans:
                yield Span(
                    service=service,
                    name=span.name,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    error=span.status.message,
                    attributes=_attributes(span.attributes),
                    events={event.name: event.time_unix_nano for event in span.events},
                    start_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def http_receiver() -> Iterator[Receiver]:
    """Receive by HTTP until the block ends."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.paths.add(self.path)
            receiver.headers.update({name.lower(): value for name, value in self.headers.items()})
            receiver.add(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield receiver
        server.shutdown()
        thread.join(WAIT_S)


@contextmanager
def grpc_receiver() -> Iterator[Receiver]:
    """Receive by gRPC until the block ends."""
    receiver = Receiver()

    class Service(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: ExportTraceServiceRequest, _context: object) -> ExportTraceServiceResponse:  # noqa: N802
            receiver.add(request)
            return ExportTraceServiceResponse()

    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), server)
        receiver.url = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        yield receiver
        server.stop(None).wait(WAIT_S)
