"""The ids of a request travel from its client through the gateway into the log of a real model server."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.platform.state.routes import AsyncOutput
from headrace.testing.echo import EchoBackend
from tests import plain_http
from tests.serving.server.conftest import Echo, serving
from tests.waiting import WAIT_S

from .async_parts import MemoryObjects
from .conftest import Running, running
from .routes import route, variant

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"
AMZN = "Root=1-67891233-abcdef012345678912345678"
HEADERS = {"X-Request-Id": "mine-1", "traceparent": TRACEPARENT, "X-Amzn-Trace-Id": AMZN}
LOGGED = {"request_id": "mine-1", "trace_id": TRACE_ID, "parent_id": "00f067aa0ba902b7", "amzn_trace_id": AMZN}
BODY = json.dumps({"inputs": "a b c", "parameters": {"max_new_tokens": 3}}).encode()
OUTPUT = AsyncOutput(output_path="s3://out/results")
AT_BOTH = ("invocation.finished", "request.finished")


@dataclass
class Scene:
    """A gateway, a model server behind it, and the log that they share."""

    gateway: Running
    server: Echo

    def logged(self, *events: str) -> list[dict[str, Any]]:
        """Return the first line of each event, once all have been logged."""

        def first() -> dict[str, dict[str, Any]]:
            lines = [json.loads(line) for line in self.server.log.getvalue().splitlines()]
            return {line["event"]: line for line in reversed(lines) if line["event"] in events}

        self.gateway.until(lambda: len(first()) == len(events), f"{events} in {self.server.log.getvalue()}")
        return [first()[event] for event in events]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("async")
    with running(objects=MemoryObjects(), async_folder=folder) as gateway, serving(EchoBackend()) as server:
        gateway.put(route(variant("AllTraffic", [server.url]), async_output=OUTPUT))
        yield Scene(gateway, server)


@pytest.fixture
def scene(shared: Scene) -> Iterator[Scene]:
    shared.server.log.seek(0)
    shared.server.log.truncate()
    yield shared
    shared.gateway.until(shared.gateway.is_idle, "all requests ended")
    shared.server.until(lambda: not shared.server.open_calls, "the server has logged them")


@contextmanager
def instrumented(gateway: Running) -> Iterator[Any]:
    """boto3 as tracers instrument it, with a header in each request."""

    def add(request: Any, **_: Any) -> None:
        request.headers["traceparent"] = TRACEPARENT

    gateway.boto.meta.events.register("before-send", add)
    yield gateway.boto
    gateway.boto.meta.events.unregister("before-send", add)


def test_boto3s_inference_id_and_request_id_are_in_both_logs(scene):
    answer = scene.gateway.boto.invoke_endpoint(
        EndpointName="ep", Body=BODY, ContentType="application/json", InferenceId="my id"
    )
    request_id = answer["ResponseMetadata"]["RequestId"]
    for line in scene.logged(*AT_BOTH):
        assert (line["request_id"], line["inference_id"]) == (request_id, "my id")


@pytest.mark.parametrize("path", ["invocations", "invocations-response-stream"])
def test_all_ids_are_in_both_logs_and_in_the_response(scene, path):
    body = json.dumps({**json.loads(BODY), "stream": True}) if path != "invocations" else BODY
    headers = {**HEADERS, "X-Amzn-SageMaker-Inference-Id": "i-1", "content-type": "application/json"}
    answer = scene.gateway.client.post(f"/endpoints/ep/{path}", content=body, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["x-request-id"] == answer.headers["x-amzn-requestid"] == "mine-1"
    for line in scene.logged(*AT_BOTH):
        assert LOGGED.items() | {("inference_id", "i-1")} <= line.items()


@pytest.mark.parametrize("base", ["/v1", "/endpoints/ep/openai/v1"])
@pytest.mark.parametrize("stream", [False, True])
def test_openais_client_finds_its_id_in_the_response_and_in_both_logs(scene, base, stream):
    import openai

    with openai.OpenAI(base_url=f"{scene.gateway.url}{base}", api_key="k", timeout=WAIT_S) as client:
        messages = [{"role": "user", "content": "hi"}]
        answer = client.chat.completions.with_raw_response.create(
            model="ep", messages=messages, max_tokens=3, stream=stream, extra_headers=HEADERS
        )
        parsed = answer.parse()
        ids = {chunk.id for chunk in parsed} if stream else {parsed.id}
    assert answer.request_id == "mine-1"
    assert ids == {"chatcmpl-mine-1"}
    for line in scene.logged(*AT_BOTH):
        assert LOGGED.items() <= line.items()


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_client_finds_its_id_in_the_response(scene, stream):
    import anthropic

    with anthropic.Anthropic(base_url=scene.gateway.url, api_key="k", timeout=WAIT_S) as client:
        messages = [{"role": "user", "content": "hi"}]
        answer = client.messages.with_raw_response.create(
            model="ep", messages=messages, max_tokens=3, stream=stream, extra_headers=HEADERS
        )
        answer.parse().close() if stream else answer.parse()
    assert answer.request_id == "mine-1"


def test_an_asynchronous_invocation_keeps_the_ids_of_the_request_that_was_accepted(scene):
    with instrumented(scene.gateway) as client:
        answer = client.invoke_endpoint_async(EndpointName="ep", Body=BODY, ContentType="application/json")
    (line,) = scene.logged("request.finished")
    assert line["inference_id"] == answer["InferenceId"]
    assert line["request_id"] == answer["ResponseMetadata"]["RequestId"]
    assert line["trace_id"] == TRACE_ID
    scene.gateway.until(lambda: scene.gateway.gateway.metrics.async_done, "the outcome")
    lines = [json.loads(text) for text in scene.server.log.getvalue().splitlines()]
    both = [line for line in lines if line["event"] == "invocation.finished"]
    assert {line["status"] for line in both} == {202, 200}
    assert {(line["request_id"], line["inference_id"], line["trace_id"]) for line in both} == {
        (answer["ResponseMetadata"]["RequestId"], answer["InferenceId"], TRACE_ID)
    }


def test_a_bad_id_is_replaced_and_the_request_is_answered(scene):
    headers = {"x-request-id": "a b", "traceparent": "nonsense", "tracestate": "a=b"}
    answer = scene.gateway.client.post("/endpoints/ep/invocations", content=BODY, headers=headers)
    assert answer.status_code == 200
    for line in scene.logged(*AT_BOTH):
        assert line["request_id"] == answer.headers["x-request-id"] != "a b"
        assert "trace_id" not in line


def test_every_log_line_of_a_request_has_its_own_ids_only(scene):
    scene.gateway.put(route(variant("AllTraffic", ["http://127.0.0.1:1"]), endpoint="dead"))
    with plain_http.Client(base_url=scene.gateway.url, timeout=WAIT_S) as one_connection:
        one_connection.post("/endpoints/dead/invocations", content=BODY, headers=HEADERS)
        one_connection.post("/endpoints/ep/invocations", content=BODY, headers={"x-request-id": "mine-2"})
    silent, _ = scene.logged("worker.silent", "request.finished")
    assert LOGGED.items() <= silent.items()
    (line,) = scene.logged("request.finished")
    assert line["request_id"] == "mine-2"
    assert "trace_id" not in line


def test_all_routes_and_errors_of_a_server_return_the_id(scene):
    for path, status in (("/ping", 200), ("/v1/models", 200), ("/nowhere", 404)):
        answer = scene.server.client.get(path, headers=HEADERS)
        assert (answer.status_code, answer.headers["x-request-id"]) == (status, "mine-1")
