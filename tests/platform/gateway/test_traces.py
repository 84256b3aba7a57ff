"""Spans of requests, from a client through the gateway to a model server, as a receiver of OpenTelemetry gets them."""

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest

from headrace.core.telemetry import setup_logging
from headrace.core.tracing import Tracer
from headrace.platform.state.routes import AsyncOutput
from headrace.serving.http.otlp import tracing
from headrace.testing.echo import EchoBackend, EchoScript
from tests import plain_http
from tests.otlp_receiver import Receiver, Span, grpc_receiver, http_receiver
from tests.serving.server.conftest import SLOW, Echo, serving
from tests.waiting import WAIT_S

from .async_parts import MemoryObjects
from .conftest import Running, running
from .routes import route, variant

PARENT_ID = "00f067aa0ba902b7"
SECRET_PROMPT = "the plans of the castle"
BODY = {"inputs": SECRET_PROMPT, "parameters": {"max_new_tokens": 3}}
CHAT = {"model": "ep", "max_tokens": 4, "messages": [{"role": "user", "content": SECRET_PROMPT}]}


def new_trace(*, flags: str = "01") -> tuple[str, dict[str, str]]:
    """Return a trace id and the header of a client that records a span."""
    trace_id = uuid4().hex
    return trace_id, {"traceparent": f"00-{trace_id}-{PARENT_ID}-{flags}", "tracestate": "vendor=a"}


@dataclass
class Scene:
    """A gateway, a model server behind it, and the receiver of their spans."""

    gateway: Running
    server: Echo
    receiver: Receiver

    def post(self, path: str, body: object = BODY, *, flags: str = "01", **headers: str) -> str:
        """Send a request with a trace, which succeeds; return the trace's id."""
        trace_id, context = new_trace(flags=flags)
        answer = self.gateway.client.post(path, json=body, headers={**context, **headers})
        assert answer.status_code < 300, answer.text
        return trace_id


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with http_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def tracers(receiver: Receiver) -> Iterator[tuple[Tracer, Tracer]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        with (
            tracing(receiver.url, {}, service="headrace-platform") as platform,
            tracing(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}, service="headrace-server") as server,
        ):
            yield platform, server


@pytest.fixture(scope="module")
def shared(
    receiver: Receiver, tracers: tuple[Tracer, Tracer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    folder, (platform, worker) = tmp_path_factory.mktemp("async"), tracers
    with (
        running(objects=MemoryObjects(), async_folder=folder, tracer=platform) as gateway,
        serving(EchoBackend(), tracer=worker) as server,
    ):
        gateway.put(
            route(variant("AllTraffic", [server.url])),
            route(
                variant("AllTraffic", [server.url]), endpoint="later", async_output=AsyncOutput(output_path="s3://o")
            ),
        )
        yield Scene(gateway, server, receiver)


@pytest.fixture
def scene(shared: Scene) -> Iterator[Scene]:
    setup_logging(format="json", level="info", stream=shared.server.log)
    yield shared
    shared.server.backend.script = EchoScript()
    shared.gateway.until(shared.gateway.is_idle, "all requests ended")


def check_parents(*spans: Span) -> None:
    """The first span is the client's child, and each other one that of the one before it."""
    assert [span.parent_id for span in spans] == [PARENT_ID, *(span.span_id for span in spans[:-1])]
    for outer, inner in pairwise(spans):
        assert outer.start_ns <= inner.start_ns


@pytest.mark.parametrize("path", ["invocations", "invocations-response-stream"])
def test_a_request_has_a_span_in_the_gateway_and_its_child_in_the_server(scene: Scene, path: str) -> None:
    body = {**BODY, "stream": path != "invocations"}
    trace_id = scene.post(f"/endpoints/ep/{path}", body, **{"X-Request-Id": "mine-1"})
    gateway, server = scene.receiver.trace(trace_id, 2)
    check_parents(gateway, server)
    assert (gateway.service, gateway.name) == ("headrace-platform", f"POST /endpoints/{{EndpointName}}/{path}")
    assert (server.service, server.name) == ("headrace-server", "POST /invocations")
    expected = {
        "http.response.status_code": 200,
        "headrace.endpoint": "ep",
        "headrace.variant": "AllTraffic",
        "headrace.worker": scene.server.url,
        "headrace.tries": 1,
        "headrace.request_id": "mine-1",
    }
    assert expected.items() <= gateway.attributes.items()
    assert {"worker.chosen", "worker.answered", "first_part"} == gateway.events.keys()
    assert server.attributes["headrace.request_id"] == "mine-1"
    assert not gateway.error
    assert not server.error


def test_the_servers_span_has_the_attributes_for_generative_ai(scene: Scene) -> None:
    trace_id = scene.post("/v1/chat/completions", {**CHAT, "temperature": 0.5})
    gateway, server = scene.receiver.trace(trace_id, 2)
    assert (gateway.name, server.name) == ("POST /v1/chat/completions", "POST /v1/chat/completions")
    expected = {
        "gen_ai.provider.name": "headrace",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "echo",
        "gen_ai.response.model": "echo",
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.response.finish_reasons": ["length"],
        "http.request.method": "POST",
        "http.response.status_code": 200,
    }
    assert expected.items() <= server.attributes.items()
    assert server.attributes["gen_ai.usage.input_tokens"] > 0
    ttft_s = server.attributes["gen_ai.latency.time_to_first_token"]
    assert 0 < ttft_s <= server.attributes["gen_ai.latency.e2e"]
    assert server.start_ns <= server.events["first_token"] <= server.events["last_token"] <= server.end_ns


def test_no_span_has_a_prompt_an_answer_or_a_credential(scene: Scene) -> None:
    trace_id = scene.post("/v1/chat/completions?q=s3cret", CHAT, Authorization="Bearer s3cret")
    for span in scene.receiver.trace(trace_id, 2):
        assert SECRET_PROMPT not in str(span)
        assert "s3cret" not in str(span)


def test_the_log_has_the_trace_and_the_span_of_each_process(scene: Scene) -> None:
    trace_id = scene.post("/endpoints/ep/invocations")
    gateway, server = scene.receiver.trace(trace_id, 2)
    lines = [json.loads(line) for line in scene.server.log.getvalue().splitlines()]  # the log of both
    spans = {line["event"]: line["span_id"] for line in lines if line.get("trace_id") == trace_id}
    assert spans == {"invocation.finished": gateway.span_id, "request.finished": server.span_id}


def test_a_request_without_a_context_begins_a_trace(scene: Scene) -> None:
    answer = scene.gateway.client.post("/endpoints/ep/invocations", json=BODY)
    assert answer.status_code == 200
    request_id = answer.headers["x-request-id"]
    found: list[Span] = []

    def arrived() -> bool:
        found[:] = [span for span in scene.receiver.spans if span.attributes["headrace.request_id"] == request_id]
        return len(found) == 2

    scene.gateway.until(arrived, "both spans")
    inner, outer = sorted(found, key=lambda span: span.service, reverse=True)
    assert (outer.parent_id, inner.parent_id) == ("", outer.span_id)


def test_a_request_that_its_client_does_not_sample_has_no_spans(scene: Scene) -> None:
    unsampled = scene.post("/endpoints/ep/invocations", flags="00")
    sampled = scene.post("/endpoints/ep/invocations")
    scene.receiver.trace(sampled, 2)
    assert not [span for span in scene.receiver.spans if span.trace_id == unsampled]


def test_health_checks_and_pages_have_no_spans(scene: Scene) -> None:
    trace_id, context = new_trace()
    assert scene.server.client.get("/ping", headers=context).status_code == 200
    assert scene.gateway.client.get("/v1/models", headers=context).status_code == 200
    scene.receiver.trace(scene.post("/endpoints/ep/invocations"), 2)
    assert not [span for span in scene.receiver.spans if span.trace_id == trace_id]


def test_a_client_that_leaves_a_stream_is_the_error_of_both_spans(scene: Scene) -> None:
    scene.server.backend.script = replace(SLOW, delay_s=0.05)
    trace_id, context = new_trace()
    body = {**CHAT, "max_tokens": 400, "stream": True, "ignore_eos": True}
    with (
        plain_http.Client(base_url=scene.gateway.url, timeout=WAIT_S) as client,
        client.stream("POST", "/v1/chat/completions", json=body, headers=context) as answer,
    ):
        next(answer.iter_bytes())
    gateway, server = scene.receiver.trace(trace_id, 2)
    for span in (gateway, server):
        assert span.error == span.attributes["error.type"] == "client_disconnected"


@pytest.mark.parametrize(("stream", "status"), [(False, 500), (True, 200)])
def test_a_failure_of_the_model_is_the_error_of_the_servers_span(scene: Scene, stream: bool, status: int) -> None:
    scene.server.backend.script = EchoScript(fail_after_tokens=1)
    trace_id, context = new_trace()
    scene.gateway.client.post("/v1/chat/completions", json={**CHAT, "stream": stream}, headers=context)
    gateway, server = scene.receiver.trace(trace_id, 2)
    assert server.attributes["http.response.status_code"] == status
    assert server.error == server.attributes["error.type"] == "engine_failed"
    assert gateway.attributes.get("error.type") or stream


def test_a_refused_request_names_its_error_and_is_no_failure(scene: Scene) -> None:
    trace_id, context = new_trace()
    answer = scene.gateway.client.post("/endpoints/nowhere/invocations", json=BODY, headers=context)
    assert answer.status_code == 400
    (gateway,) = scene.receiver.trace(trace_id, 1)
    assert gateway.attributes["error.type"] == "ValidationError"
    assert gateway.attributes["http.response.status_code"] == 400
    assert not gateway.error


def test_an_unknown_route_gives_its_span_no_name_that_clients_choose(scene: Scene) -> None:
    trace_id, context = new_trace()
    assert scene.server.client.post("/v1/nowhere", json={}, headers=context).status_code == 404
    (span,) = scene.receiver.trace(trace_id, 1)
    assert span.name == "POST"


def test_an_asynchronous_invocation_continues_the_trace_of_its_acceptance(scene: Scene) -> None:
    trace_id = scene.post("/endpoints/later/async-invocations")
    accepted, run, server = scene.receiver.trace(trace_id, 3)
    check_parents(accepted, run, server)
    assert (accepted.name, run.name) == ("POST /endpoints/{EndpointName}/async-invocations", "async invocation")
    assert run.attributes["headrace.endpoint"] == "later"


def test_spans_go_to_a_receiver_by_grpc_too_and_leave_before_the_process_ends() -> None:
    environment = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_SERVICE_NAME": "mine"}
    with grpc_receiver() as receiver:
        with tracing(receiver.url, environment, service="unused") as tracer, serving(tracer=tracer) as server:
            trace_id, context = new_trace()
            assert server.post("/invocations", BODY, headers=context).status_code == 200
        (span,) = receiver.trace(trace_id, 1)
    assert (span.service, span.parent_id) == ("mine", PARENT_ID)


def test_a_receiver_that_is_down_costs_no_request_and_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "5")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    closed = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    closed.close()
    with tracing(url, {}, service="s") as tracer, serving(tracer=tracer) as server:

        def reports() -> list[dict[str, Any]]:
            lines = [json.loads(line) for line in server.log.getvalue().splitlines()]
            return [line for line in lines if line["event"].startswith("traces.")]

        for _ in range(3):
            assert server.post("/invocations", BODY).status_code == 200
            server.until(reports, "the warning")
        (report,) = reports()
    assert (report["level"], report["event"]) == ("warning", "traces.not_exported")
    assert report["url"] == f"{url}/v1/traces"
    assert report["reason"]
