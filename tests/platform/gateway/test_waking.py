"""Requests to targets scaled to zero, with real clients: they are held, and none is lost."""

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from botocore.exceptions import ClientError

from headrace.core.telemetry import setup_logging
from headrace.platform.state.routes import AdapterRoute, AsyncOutput, WakeTarget
from tests.waiting import WAIT_S

from .async_parts import MemoryObjects
from .conftest import Running, running
from .routes import asleep, component, route, variant
from .workers import Exchange

PATHS = [
    "/endpoints/ep/invocations",
    "/endpoints/ep/invocations-response-stream",
    "/endpoints/ep/openai/v1/completions",
]


class Waker:
    """Records the targets to wake; the test wakes them."""

    def __init__(self) -> None:
        self.wanted: list[WakeTarget] = []
        self.told = threading.Event()

    def __call__(self, wanted: WakeTarget) -> None:
        self.wanted.append(wanted)
        self.told.set()


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Running, Waker]]:
    waker = Waker()
    with running(wake=waker, hold_timeout_s=WAIT_S, max_held=8, heartbeat_s=0.01) as made:
        yield made, waker


@pytest.fixture
def waker(shared) -> Waker:
    waker = shared[1]
    waker.wanted.clear()
    waker.told.clear()
    return waker


@pytest.fixture
def sleepy(shared, waker) -> Iterator[Running]:
    setup_logging(format="json", level="info", stream=shared[0].log)
    yield shared[0]
    shared[0].until(shared[0].is_idle, "all requests ended")
    assert not shared[0].gateway.held
    shared[0].clean_up()


def wake(gateway: Running, waker: Waker, script=None) -> None:
    """Start one replica when the target is to be woken."""
    assert waker.told.wait(WAIT_S)
    worker = gateway.worker(script) if script else gateway.worker()
    gateway.put(route(variant("AllTraffic", [worker.url])))


@pytest.mark.parametrize("path", PATHS)
def test_a_request_at_zero_is_answered_by_the_replica_that_it_has_woken(sleepy, waker, path):
    sleepy.put(route(asleep()))
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(sleepy.client.post, path, json={"prompt": "x"})
        wake(sleepy, waker)
        answer = asking.result(WAIT_S)
    assert answer.status_code == 200
    assert b'"prompt"' in answer.content
    assert waker.wanted[0] == WakeTarget(endpoint="ep", variant="AllTraffic")
    sleepy.until(lambda: '"held_ms"' in sleepy.log.getvalue(), "the log says so")


NO_WORK = [
    ("GET", "/endpoints/ep/openai/v1/models", 200),
    ("HEAD", "/endpoints/ep/openai/v1/models", 200),
    ("GET", "/endpoints/ep/openai/v1/models/tiny", 503),
    ("GET", "/endpoints/ep/openai/v1/own-route", 503),
    ("GET", "/v1/models", 200),
    ("POST", "/v1/messages/count_tokens", 503),
    ("POST", "/endpoints/ep/openai/v1/messages/count_tokens", 503),
    ("POST", "/v1/responses/input_tokens", 503),
    ("POST", "/endpoints/ep/openai/v1/load_lora_adapter", 503),
]


def test_a_request_that_asks_for_no_work_wakes_nothing_and_does_not_count(waker):
    published = []
    with running(wake=waker, publish=lambda record, _: published.append(record.api)) as gateway:
        gateway.put(route(asleep()))
        for method, path, status in NO_WORK:
            answer = gateway.client.request(method, path, json={"model": "ep"} if method == "POST" else None)
            assert answer.status_code == status, (method, path, answer.text)
            assert status == 200 or "scaled to zero" in answer.json()["error"]["message"]
        assert gateway.client.get(NO_WORK[0][1]).json()["data"][0]["id"] == "ep"
        gateway.serve()
        for method, path, _ in NO_WORK:
            assert gateway.client.request(method, path, json={"model": "ep"}).status_code in {200, 404}, path
        assert not waker.wanted
        assert not published
        assert not list(gateway.gateway.metrics.counters())
        assert not gateway.gateway.metrics.refused
        gateway.client.post("/v1/completions", json={"model": "ep"})
        gateway.until(lambda: published, "work counts")


@pytest.mark.parametrize("prefer", ["wait", "respond-async, Wait=100"])
def test_a_client_that_prefers_to_wait_gets_the_list_of_the_worker_that_it_has_woken(sleepy, waker, prefer):
    async def models(exchange: Exchange) -> None:
        exchange.whole(b'{"data": [{"id": "tiny"}]}')

    sleepy.put(route(asleep()))
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(sleepy.client.get, "/endpoints/ep/openai/v1/models", headers={"prefer": prefer})
        wake(sleepy, waker, models)
        assert asking.result(WAIT_S).json() == {"data": [{"id": "tiny"}]}
    assert not list(sleepy.gateway.metrics.counters())


def test_many_requests_at_zero_wake_once_and_are_all_answered(sleepy, waker):
    sleepy.put(route(asleep()))
    with ThreadPoolExecutor(8) as pool:
        asking = [
            pool.submit(sleepy.boto.invoke_endpoint, EndpointName="ep", Body=b"%d" % number) for number in range(8)
        ]
        sleepy.until(lambda: sleepy.gateway.held == {"ep": 8}, "all are held")
        assert len(set(waker.wanted)) == 1
        wake(sleepy, waker)
        assert [future.result(WAIT_S)["Body"].read() for future in asking] == [b"%d" % number for number in range(8)]
    assert sleepy.gateway.metrics.held_s.count >= 8


def test_requests_above_the_limit_are_throttled_with_a_retry_after(sleepy, waker):
    sleepy.put(route(asleep()))
    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(sleepy.client.post, PATHS[0], content=b"x") for _ in range(8)]
        sleepy.until(lambda: sleepy.gateway.held == {"ep": 8}, "all are held")
        for path in PATHS:
            refused = sleepy.client.post(path, content=b"{}")
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
        wake(sleepy, waker)
        assert {future.result(WAIT_S).status_code for future in asking} == {200}


def test_requests_above_the_concurrency_of_a_serverless_variant_are_throttled(sleepy, waker):
    """Requests that are held count too; those that have ended do not, and neither do those that ask for no work."""
    serverless = replace(asleep(), max_concurrency=3)
    sleepy.put(route(serverless))
    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(sleepy.client.post, PATHS[0], content=b"x") for _ in range(3)]
        sleepy.until(lambda: sleepy.gateway.held == {"ep": 3}, "all are held")
        for path in PATHS:
            refused = sleepy.client.post(path, content=b"{}")
            assert refused.status_code == 429
            assert "3 requests in flight, which is its MaxConcurrency" in refused.text
        with pytest.raises(ClientError) as caught:
            sleepy.boto.invoke_endpoint(EndpointName="ep", Body=b"x")
        assert caught.value.response["Error"]["Code"] == "ThrottlingException"
        assert sleepy.client.get("/endpoints/ep/openai/v1/models").status_code == 200
        wake(sleepy, waker)
        assert {future.result(WAIT_S).status_code for future in asking} == {200}
    worker = sleepy.worker()
    sleepy.put(route(replace(variant("AllTraffic", [worker.url]), max_concurrency=1)))
    assert [sleepy.client.post(PATHS[0], content=b"x").status_code for _ in range(3)] == [200] * 3


def test_payloads_of_a_serverless_variant_have_the_limits_of_aws(sleepy):
    worker = sleepy.worker()
    for limit, error, size in ((None, None, 5 << 20), (1, None, 4 << 20), (1, "oversize body", (4 << 20) + 1)):
        sleepy.put(route(replace(variant("AllTraffic", [worker.url]), max_concurrency=limit)))
        for path in PATHS:
            answer = sleepy.client.post(path, content=b" " * size)
            assert (answer.status_code, (error or "") in answer.text) == (400 if error else 200, True)
    with pytest.raises(ClientError, match=r"\(ValidationError\).*: Request [\w-]+ has oversize body\.$"):
        sleepy.boto.invoke_endpoint(EndpointName="ep", Body=b"x" * size)

    async def oversize(exchange: Exchange) -> None:
        exchange.whole(b"x" * size)

    worker.script = oversize
    with pytest.raises(ClientError, match=r"\(ModelError\).*could not load the entire response body"):
        sleepy.boto.invoke_endpoint(EndpointName="ep", Body=b"x")


def test_a_held_request_ends_at_its_timeout(waker):
    with running(wake=waker, hold_timeout_s=0.05) as gateway:
        gateway.put(route(asleep()))
        for path in PATHS:
            answer = gateway.client.post(path, content=b"{}")
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"
            assert "had no instance that could answer for 0.05 s" in answer.text
        gateway.put(route(variant("AllTraffic"), components=[component("c", [])]))
        answer = gateway.client.post(PATHS[0], content=b"{}", headers={"X-Amzn-SageMaker-Inference-Component": "c"})
        assert "Inference component c of endpoint ep had no copy that could answer for 0.05 s" in answer.text


def test_the_timeout_of_the_model_begins_after_the_hold(waker):
    with running(wake=waker, invocation_timeout_s=4.0) as gateway, ThreadPoolExecutor(1) as pool:
        gateway.put(route(asleep()))
        asking = pool.submit(gateway.client.post, PATHS[0], content=b"x")
        gateway.until(lambda: gateway.gateway.held, "it is held")
        assert not threading.Event().wait(4.1), "longer than the model may take"
        wake(gateway, waker)
        assert asking.result(WAIT_S).status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_a_held_request_is_dropped_when_its_client_disconnects(sleepy, waker, path):
    sleepy.put(route(asleep()))
    host, port = sleepy.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        sleepy.until(lambda: sleepy.gateway.held, "it is held")
    sleepy.until(lambda: not sleepy.gateway.held, "it is given up")
    worker = sleepy.worker()
    sleepy.put(route(variant("AllTraffic", [worker.url])))
    sleepy.until(sleepy.is_idle, "it ended")
    assert not worker.asked


def test_held_requests_fail_at_once_when_their_endpoint_is_deleted(sleepy, waker):
    sleepy.put(route(asleep()))
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(sleepy.client.post, PATHS[0], content=b"x")
        assert waker.told.wait(WAIT_S)
        sleepy.store.drop("ep")
        answer = asking.result(WAIT_S)
    assert answer.status_code == 400
    assert "not found" in answer.text


def test_a_held_sse_request_gets_heartbeats(sleepy, waker):
    async def chat(exchange: Exchange) -> None:
        exchange.start(content_type="text/event-stream")
        exchange.chunk(b"data: {}\n\n")
        exchange.end()

    sleepy.put(route(asleep()))
    with sleepy.client.stream("POST", PATHS[2], json={"stream": True}) as response:
        pieces = response.iter_raw()
        assert next(pieces).startswith(b": ")
        assert response.headers["content-type"].startswith("text/event-stream")
        wake(sleepy, waker, chat)
        text = b"".join(pieces)
    events = [line for line in text.splitlines() if line and not line.startswith(b":")]
    assert events == [b"data: {}"]


def test_an_error_after_a_heartbeat_is_an_event(sleepy, waker):
    async def refuse(exchange: Exchange) -> None:
        exchange.whole(b'{"error":\n {"message": "too long"}}', status="400 Bad Request")

    sleepy.put(route(asleep()))
    with sleepy.client.stream("POST", PATHS[2], json={"stream": True}) as response:
        pieces = response.iter_raw()
        next(pieces)
        wake(sleepy, waker, refuse)
        text = b"".join(pieces).decode()
    (event,) = [line for line in text.splitlines() if line.startswith("data: ")]
    assert json.loads(event.removeprefix("data: "))["error"]["message"] == "too long"


def test_requests_at_zero_fail_like_on_aws_if_nothing_is_woken(gateway):
    gateway.put(route(asleep()), route(variant("AllTraffic"), endpoint="host", components=[component("ic", [])]))
    with pytest.raises(ClientError, match="no instance that can answer now"):
        gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"x")
    with pytest.raises(ClientError, match="has no capacity to process this request") as caught:
        gateway.boto.invoke_endpoint(EndpointName="host", InferenceComponentName="ic", Body=b"x")
    assert caught.value.response["Error"]["Code"] == "ValidationError"
    assert not gateway.gateway.held


def test_a_request_wakes_the_component_that_it_names(sleepy, waker):
    sleepy.put(route(variant("AllTraffic"), components=[component("ic", [])]))
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(sleepy.boto.invoke_endpoint, EndpointName="ep", InferenceComponentName="ic", Body=b"x")
        assert waker.told.wait(WAIT_S)
        assert waker.wanted == [WakeTarget(endpoint="ep", component="ic")]
        worker = sleepy.worker()
        sleepy.put(route(variant("AllTraffic"), components=[component("ic", [worker.url])]))
        assert asking.result(WAIT_S)["Body"].read() == b"x"


def test_a_request_for_an_adapter_wakes_its_base(sleepy, waker):
    sleepy.put(
        route(variant("AllTraffic"), components=[component("ic", [], adapter=AdapterRoute(name="ic", base="chat"))])
    )
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(sleepy.boto.invoke_endpoint, EndpointName="ep", InferenceComponentName="ic", Body=b"x")
        assert waker.told.wait(WAIT_S)
        assert waker.wanted == [WakeTarget(endpoint="ep", component="chat")]
        worker = sleepy.worker()
        sleepy.put(route(variant("AllTraffic"), components=[component("ic", [worker.url])]))
        assert asking.result(WAIT_S)["Body"].read() == b"x"


def test_a_variant_at_zero_is_woken_by_its_share_of_requests_while_others_answer(waker):
    numbers = iter([0.9, 0.1, 0.1, 0.1])
    with running(wake=waker, draw=lambda: next(numbers)) as gateway:
        worker = gateway.worker()
        gateway.put(route(variant("a", [worker.url]), asleep("b")))
        assert gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"x")["Body"].read() == b"x"
        assert waker.wanted == [WakeTarget(endpoint="ep", variant="b")]
        assert gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"x")["Body"].read() == b"x"
        assert len(waker.wanted) == 1


def test_an_asynchronous_invocation_wakes_its_endpoint_too(tmp_path, waker):
    output = AsyncOutput(output_path="s3://out/results")
    objects = MemoryObjects()
    with running(wake=waker, objects=objects, async_folder=tmp_path) as gateway:
        gateway.put(route(asleep(), async_output=output))
        accepted = gateway.client.post("/endpoints/ep/async-invocations", content=b"later")
        assert accepted.status_code == 202
        assert waker.told.wait(WAIT_S)
        assert waker.wanted[0] == WakeTarget(endpoint="ep", variant="AllTraffic")
        worker = gateway.worker()
        gateway.put(route(variant("AllTraffic", [worker.url]), async_output=output))
        gateway.until(lambda: objects.puts, "its outcome is written")
        assert next(iter(objects.objects.values()))[0] == b"later"
