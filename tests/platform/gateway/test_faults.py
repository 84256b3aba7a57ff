"""Dying workers and disconnecting clients: every request ends, and all counts return to zero."""

import asyncio
import http.client
import random
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from botocore.exceptions import ClientError, EventStreamError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.prompt_server import PLATFORM_HTTP
from tests.waiting import WAIT_S

from .conftest import running
from .routes import route, variant
from .workers import Exchange

PATHS = [
    "/endpoints/ep/invocations",
    "/endpoints/ep/invocations-response-stream",
    "/endpoints/ep/openai/v1/completions",
]


async def die(exchange: Exchange) -> None:
    exchange.die()


async def never(exchange: Exchange) -> None:
    await exchange.until_gone()


async def stream_forever(exchange: Exchange) -> None:
    exchange.start(content_type="text/event-stream")
    exchange.chunk(b"data: first\n\n")
    await exchange.until_gone()


def named(name: str):
    async def script(exchange: Exchange) -> None:
        exchange.whole(name.encode())

    return script


def test_a_request_to_a_worker_that_dies_before_it_answers_goes_to_another_one(gateway):
    dead, alive = gateway.worker(die), gateway.worker(named("alive"))
    gateway.put(route(variant("AllTraffic", [dead.url, alive.url])))
    for _ in range(30):
        assert gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"x")["Body"].read() == b"alive"
    assert dead.asked


def test_a_request_to_a_worker_that_is_gone_goes_to_another_one(gateway):
    gone, alive = gateway.worker(), gateway.worker(named("alive"))
    gateway.put(route(variant("AllTraffic", [gone.url, alive.url])))
    gateway.run(gone.stop())
    for _ in range(10):
        assert gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"x")["Body"].read() == b"alive"


def test_a_request_that_no_worker_answers_fails_once(gateway):
    workers = [gateway.worker(die) for _ in range(5)]
    gateway.put(route(variant("AllTraffic", [worker.url for worker in workers])))
    with pytest.raises(ClientError, match="could not get a response from the ep endpoint") as caught:
        gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"x")
    assert caught.value.response["Error"]["Code"] == "ModelError"
    assert caught.value.response["OriginalStatusCode"] == 0
    assert sum(len(worker.asked) for worker in workers) == 3


def test_a_request_that_reached_no_replica_may_be_retried_by_sdks(gateway):
    gone = gateway.serve()
    gateway.run(gone.stop())
    with pytest.raises(ClientError, match="no instance that can answer now") as caught:
        gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"x")
    assert caught.value.response["Error"]["Code"] == "ServiceUnavailable"
    assert caught.value.response["ResponseMetadata"]["RetryAttempts"] == 2


def test_a_request_that_a_worker_may_have_run_is_a_model_error(gateway):
    async def answer_one_and_die(exchange: Exchange) -> None:
        if len(exchange.worker.asked) == 1:
            exchange.whole(b"ok")
        else:
            await exchange.worker.stop()

    worker = gateway.serve(answer_one_and_die)
    assert gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"x")["Body"].read() == b"ok"
    with pytest.raises(ClientError, match="could not get a response"):
        gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"x")
    assert len(worker.asked) == 2


def test_a_request_is_never_repeated_once_its_response_has_begun(gateway):
    async def break_off(exchange: Exchange) -> None:
        exchange.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        await exchange.flush()
        exchange.die()

    workers = [gateway.worker(break_off) for _ in range(2)]
    gateway.put(route(variant("AllTraffic", [worker.url for worker in workers])))
    with pytest.raises(ClientError, match="could not load the entire response body") as caught:
        gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"x")
    assert caught.value.response["OriginalStatusCode"] == 200
    assert sum(len(worker.asked) for worker in workers) == 1


def test_a_response_that_is_not_http_is_a_model_error(gateway):
    async def greet(exchange: Exchange) -> None:
        exchange.raw(b"220 mail.example.com ESMTP\r\n")
        await exchange.until_gone()

    gateway.serve(greet)
    with pytest.raises(ClientError, match="could not get a response"):
        gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"x")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("script", [never, stream_forever], ids=["before the answer", "in the answer"])
@pytest.mark.parametrize("protocol", [PLATFORM_HTTP, "httptools"], ids=["short way", "plain ASGI"])
def test_a_worker_sees_at_once_that_its_client_has_disconnected(path, script, protocol):
    with running(http=protocol) as gateway:
        worker = gateway.serve(script)
        with socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2]))) as client:
            client.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}".encode())
            gateway.until(lambda: worker.asked, "the worker was asked")
            if script is stream_forever and path != PATHS[0]:
                assert client.recv(10) == b"HTTP/1.1 2"
        gateway.until(lambda: worker.num_gone == 1, "the worker saw it")
        gateway.until(gateway.is_idle, "the request ended")
        ((_, counters),) = gateway.gateway.metrics.counters()
        assert counters.clients_gone == 1


def test_a_client_that_disconnects_while_it_sends_reaches_no_worker(gateway):
    worker = gateway.serve()
    with socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2]))) as client:
        client.sendall(b"POST /endpoints/ep/invocations HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
        gateway.until(lambda: gateway.gateway.metrics.in_flight == 1, "the request began")
    gateway.until(gateway.is_idle, "the request ended")
    assert not worker.asked
    assert gateway.gateway._service.budget.held_bytes == 0


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("script", [never, stream_forever], ids=["before the answer", "in the answer"])
def test_a_stopping_platform_answers_the_requests_that_still_wait(gateway, path, script):
    worker = gateway.serve(script)
    has_begun = threading.Event()

    def ask() -> tuple[int, bytes]:
        with gateway.client.stream("POST", path, json={}) as response:
            pieces = response.iter_raw()
            first = next(pieces)
            has_begun.set()
            return response.status_code, first + b"".join(pieces)

    def stop() -> None:
        for task in gateway.server.server_state.tasks:
            task.cancel()  # as uvicorn does at the end of its grace period

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        is_streamed = script is stream_forever and path != PATHS[0]
        gateway.until(has_begun.is_set if is_streamed else lambda: worker.asked, "the request is under way")
        gateway.loop.call_soon_threadsafe(stop)
        status, body = asking.result(WAIT_S)
    assert status == (200 if is_streamed else 503)
    assert b"The platform is stopping" in body


FATES = ["answer", "die", "die in the answer", "die in the stream", "refuse", "hang"]


def fated(fate: str):
    async def script(exchange: Exchange) -> None:
        if fate == "die":
            exchange.die()
        elif fate == "hang":
            await exchange.until_gone()
        elif fate == "refuse":
            exchange.whole(b"no", status="400 Bad Request")
        elif fate == "die in the answer":
            exchange.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n1")
            await exchange.flush()
            exchange.die()
        else:
            exchange.start(content_type="text/event-stream")
            for _ in range(3):
                exchange.chunk(b"data: x\n\n")
                await asyncio.sleep(0)
            if fate == "answer":
                exchange.end()
            else:
                await exchange.flush()
                exchange.die()

    return script


def ask_and_perhaps_leave(url: str, path: str, *, stays: bool) -> None:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=WAIT_S)
    try:
        connection.request("POST", path, b"{}")
        if stays:
            response = connection.getresponse()
            response.read()
            assert response.status in {200, 400, 404, 424, 500, 503}
    finally:
        connection.close()


@pytest.fixture(scope="module")
def impatient():
    with running(invocation_timeout_s=0.1, stream_timeout_s=0.1) as made:
        yield made


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(FATES), min_size=1, max_size=3),
    st.lists(st.tuples(st.sampled_from(PATHS), st.booleans()), min_size=1, max_size=8),
)
def test_every_request_ends_and_is_counted_out_whatever_fails(impatient, fates, requests):
    workers = [impatient.worker(fated(fate)) for fate in fates]
    impatient.put(route(variant("AllTraffic", [worker.url for worker in workers])))
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask_and_perhaps_leave, impatient.url, path, stays=stays) for path, stays in requests]
        for future in asked:
            future.result(WAIT_S)
    impatient.until(impatient.is_idle, "all requests ended")
    assert impatient.gateway._service.budget.held_bytes == 0
    for worker in workers:
        impatient.run(worker.stop())


def test_a_worker_killed_under_load_leaves_no_request_without_an_end(gateway):
    """One of two workers is killed under ten clients: its streams end with an error, the others are complete."""

    async def slowly(exchange: Exchange) -> None:
        exchange.start()
        for number in range(20):
            exchange.chunk(b"%d\n" % number)
            await asyncio.sleep(0.002)
        exchange.end()

    num_midway = 0

    async def half(exchange: Exchange) -> None:
        nonlocal num_midway
        exchange.start()
        exchange.chunk(b"0\n")
        num_midway += 1
        await exchange.until_gone()

    victim, other = gateway.worker(half), gateway.worker(slowly)
    gateway.put(route(variant("AllTraffic", [victim.url, other.url], strategy="LEAST_OUTSTANDING_REQUESTS")))
    outcomes: list[str] = []
    is_over = threading.Event()

    def client() -> None:
        while not is_over.is_set():
            stream = gateway.boto.invoke_endpoint_with_response_stream(EndpointName="ep", Body=b"x")
            try:
                with closing(stream["Body"]) as events:
                    parts = [event["PayloadPart"]["Bytes"] for event in events]
                outcomes.append("whole" if len(parts) == 20 else f"{len(parts)} parts")
            except EventStreamError as error:
                outcomes.append(error.response["Error"]["Code"])

    with ThreadPoolExecutor(10) as pool:
        clients = [pool.submit(client) for _ in range(10)]
        gateway.until(lambda: len(outcomes) > 20 and num_midway > 2, "some requests ended, some are under way")
        gateway.run(victim.stop())
        num_before = len(outcomes)
        gateway.until(lambda: len(outcomes) > num_before + 30, "requests go on")
        is_over.set()
        for future in clients:
            future.result(WAIT_S)
    assert set(outcomes) == {"whole", "ModelStreamError"}
    gateway.until(gateway.is_idle, "all requests ended")


@pytest.mark.parametrize("seed", range(3))
def test_malformed_requests_are_client_errors_and_leave_the_server_working(gateway, seed):
    gateway.serve()
    randomness = random.Random(seed)
    paths = [
        *PATHS,
        "/v1/chat/completions",
        "/v1/models/x",
        "/endpoints/%0d%0aX: y/invocations",
        "/endpoints/ep/openai/v1/../x",
    ]
    for _ in range(100):
        path = randomness.choice(paths)
        headers = {
            randomness.choice(
                ["X-Amzn-SageMaker-Session-Id", "X-Amzn-SageMaker-Inference-Id", "Content-Type", "Accept"]
            ): bytes(randomness.choices(range(32, 256), k=randomness.randrange(300))).strip()
        }
        body = randomness.randbytes(randomness.randrange(100))
        response = gateway.client.post(path, content=body, headers=headers)
        assert response.status_code < 500
    assert gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"x")["Body"].read() == b"x"
