"""Forwarding to workers that died but are still in the route: no request without a first byte is lost."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.exceptions import ClientError

from headrace.core.telemetry import setup_logging
from tests.waiting import WAIT_S

from .conftest import Running, running
from .routes import component, route, variant
from .test_faults import PATHS, die, named
from .test_waking import Waker
from .workers import Exchange, Worker


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Running, Waker]]:
    waker = Waker()
    with running(wake=waker, hold_timeout_s=WAIT_S, max_held=8) as made:
        yield made, waker


@pytest.fixture
def patient(shared: tuple[Running, Waker]) -> Iterator[Running]:
    """A gateway that holds requests."""
    setup_logging(format="json", level="info", stream=shared[0].log)
    yield shared[0]
    shared[0].until(shared[0].is_idle, "all requests ended")
    assert not shared[0].gateway.held
    shared[0].clean_up()


def gone(gateway: Running) -> Worker:
    """A worker that has just died."""
    worker = gateway.worker()
    gateway.run(worker.stop())
    return worker


@pytest.mark.parametrize("path", PATHS)
def test_a_request_is_held_for_the_replacement_of_a_dead_worker(patient: Running, path: str) -> None:
    patient.put(route(variant("AllTraffic", [gone(patient).url])))
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(patient.client.post, path, json={"prompt": "x"})
        patient.until(lambda: patient.gateway.held, "it is held")
        patient.put(route(variant("AllTraffic", [], standby=True)))
        patient.put(route(variant("AllTraffic", [patient.worker().url])))
        assert asking.result(WAIT_S).status_code == 200


def test_a_request_to_a_component_is_held_too(patient: Running) -> None:
    host = variant("AllTraffic")
    patient.put(route(host, components=[component("ic", [gone(patient).url, gone(patient).url])]))
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(patient.boto.invoke_endpoint, EndpointName="ep", InferenceComponentName="ic", Body=b"x")
        patient.until(lambda: patient.gateway.held, "it is held")
        patient.put(route(host, components=[component("ic", [gone(patient).url, patient.worker().url])]))
        assert asking.result(WAIT_S)["Body"].read() == b"x"


@pytest.mark.parametrize("path", PATHS)
def test_a_request_is_retried_if_its_worker_died_before_the_first_byte(patient: Running, path: str) -> None:
    async def never(exchange: Exchange) -> None:
        await exchange.until_gone()

    victim = patient.worker(never)
    patient.put(route(variant("AllTraffic", [victim.url])))
    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(patient.client.post, path, json={"number": number}) for number in range(3)]
        patient.until(lambda: len(victim.asked) == 3, "all are under way")
        patient.run(victim.stop())
        patient.until(lambda: patient.gateway.held == {"ep": 3}, "they are held")
        patient.put(route(variant("AllTraffic", [patient.worker().url])))
        assert [future.result(WAIT_S).status_code for future in asking] == [200] * 3


def test_a_failed_try_and_the_time_on_hold_count_as_no_model_latency(patient: Running) -> None:
    async def linger(exchange: Exchange) -> None:
        await exchange.until_gone()

    def sums() -> tuple[float, float]:
        found = [counters for _, counters in patient.gateway.metrics.counters()]
        return sum(each.model_s.sum for each in found), sum(each.overhead_s.sum for each in found)

    before, victim = sums(), patient.worker(linger)
    patient.put(route(variant("AllTraffic", [victim.url])))
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(patient.client.post, PATHS[0], json={})
        patient.until(lambda: victim.asked, "it is under way")
        patient.run(asyncio.sleep(0.05))
        patient.run(victim.stop())
        patient.until(lambda: patient.gateway.held, "it is held")
        held_s = time.perf_counter()
        patient.put(route(variant("AllTraffic", [patient.worker().url])))
        assert asking.result(WAIT_S).status_code == 200
        answered_s = time.perf_counter()
    patient.until(patient.is_idle, "the request ended")
    model_s, overhead_s = (after - earlier for after, earlier in zip(sums(), before, strict=True))
    assert model_s < answered_s - held_s
    assert overhead_s >= 0.05


def test_a_request_that_crashes_workers_is_not_retried_without_end(patient: Running) -> None:
    breaking = patient.worker(die)
    patient.put(route(variant("AllTraffic", [breaking.url])))
    with pytest.raises(ClientError, match="could not get a response") as caught:
        patient.boto.invoke_endpoint(EndpointName="ep", Body=b"x")
    assert caught.value.response["Error"]["Code"] == "ModelError"
    assert len(breaking.asked) == 2


def test_a_request_is_never_retried_after_the_first_byte_of_a_response(patient: Running) -> None:
    async def begin(exchange: Exchange) -> None:
        exchange.raw(b"HTTP/1.1 2")
        await exchange.flush()
        exchange.die()

    workers = [patient.worker(begin) for _ in range(2)]
    patient.put(route(variant("AllTraffic", [worker.url for worker in workers])))
    with pytest.raises(ClientError, match="could not get a response") as caught:
        patient.boto.invoke_endpoint(EndpointName="ep", Body=b"x")
    assert caught.value.response["OriginalStatusCode"] == 0
    assert sum(len(worker.asked) for worker in workers) == 1


def test_a_request_whose_kept_connection_broke_in_the_head_is_not_retried(patient: Running) -> None:
    async def answer_and_break(exchange: Exchange) -> None:
        if len(exchange.worker.asked) == 1:
            exchange.whole(b"ok")
            return
        exchange.raw(b"HTTP/1.1 2")
        await exchange.flush()
        exchange.die()

    worker = patient.worker(answer_and_break)
    patient.put(route(variant("AllTraffic", [worker.url])))
    assert patient.boto.invoke_endpoint(EndpointName="ep", Body=b"x")["Body"].read() == b"ok"
    with pytest.raises(ClientError, match="could not get a response"):
        patient.boto.invoke_endpoint(EndpointName="ep", Body=b"x")
    assert len(worker.asked) == 2


def test_a_held_request_without_a_replacement_is_unavailable_and_may_be_retried() -> None:
    with running(wake=Waker(), hold_timeout_s=0.05) as gateway:
        gateway.put(route(variant("AllTraffic", [gone(gateway).url])))
        for path in PATHS:
            answer = gateway.client.post(path, content=b"{}")
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"


def test_a_request_that_broke_its_worker_is_a_model_error_if_no_replacement_comes() -> None:
    async def end(exchange: Exchange) -> None:
        await exchange.worker.stop()

    with running(wake=Waker(), hold_timeout_s=0.05) as gateway:
        gateway.serve(end)
        answer = gateway.client.post(PATHS[0], content=b"{}")
        assert answer.status_code == 424, "SDKs do not repeat it: the model may have run"


def test_all_holds_of_a_request_share_one_deadline() -> None:
    """The request is held, released, and held again, because the replacement is dead too."""
    with running(wake=Waker(), hold_timeout_s=0.5) as gateway, ThreadPoolExecutor(1) as pool:
        gateway.put(route(variant("AllTraffic", [gone(gateway).url])))
        asking = pool.submit(gateway.client.post, PATHS[0], content=b"x")
        end_s = time.monotonic() + WAIT_S
        while not asking.done():
            assert time.monotonic() < end_s, "each hold has a deadline of its own"
            gateway.put(route(variant("AllTraffic", [gone(gateway).url])))
        assert asking.result().status_code == 503


def test_a_worker_that_returns_at_its_address_is_used_again(patient: Running) -> None:
    worker = gone(patient)
    patient.put(route(variant("AllTraffic", [worker.url])))
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(patient.client.post, PATHS[0], content=b"x")
        patient.until(lambda: patient.gateway.held, "it is held")

        async def come_back() -> None:
            port = int(worker.url.rpartition(":")[2])
            worker._server = await asyncio.start_server(worker._serve, "127.0.0.1", port)

        patient.run(come_back())
        assert asking.result(WAIT_S).content == b"x"


def test_a_worker_in_quarantine_gets_no_requests(patient: Running) -> None:
    dead, alive = gone(patient), patient.worker(named("alive"))
    patient.put(route(variant("AllTraffic", [dead.url, alive.url])))
    began_s = time.monotonic()
    for _ in range(30):
        assert patient.client.post(PATHS[0], content=b"x").content == b"alive"
    num_found = patient.log.getvalue().count("worker.silent")
    assert num_found <= 2 + (time.monotonic() - began_s), "at first, and once a second"


def test_the_listener_is_called_once_for_each_worker_in_quarantine(patient: Running) -> None:
    told: list[None] = []
    patient.gateway.on_quarantine(lambda: told.append(None))
    dead = [gone(patient), gone(patient)]
    patient.put(route(variant("AllTraffic", [worker.url for worker in dead])))
    with ThreadPoolExecutor(6) as pool:
        asking = [pool.submit(patient.client.post, PATHS[0], content=b"x") for _ in range(6)]
        patient.until(lambda: patient.gateway.held == {"ep": 6}, "all are held")
        assert len(told) == 2
        patient.put(route(variant("AllTraffic", [patient.worker().url])))
        assert {future.result(WAIT_S).status_code for future in asking} == {200}


def test_a_request_of_a_lost_session_is_not_held(patient: Running) -> None:
    async def open_session(exchange: Exchange) -> None:
        exchange.whole(b"hi", **{"x-amzn-sagemaker-session-id": "s1; Expires=2099-01-01T00:00:00Z"})

    worker = patient.worker(open_session)
    patient.put(route(variant("AllTraffic", [worker.url])))
    opened = patient.boto.invoke_endpoint(EndpointName="ep", Body=b"x", SessionId="NEW_SESSION")
    opened["Body"].read()
    session = opened["NewSessionId"].partition(";")[0]
    patient.run(worker.stop())
    answer = patient.client.post(PATHS[0], content=b"x", headers={"X-Amzn-SageMaker-Session-Id": session})
    assert answer.status_code == 503
    assert not patient.gateway.held


def test_killing_workers_under_load_loses_no_request_without_a_first_byte(patient: Running) -> None:
    """Eight clients, one replica that is replaced four times: all are answered."""

    async def slowly(exchange: Exchange) -> None:
        await asyncio.sleep(0.02)
        exchange.whole(b"ok")

    replicas = [patient.worker(slowly)]
    patient.put(route(variant("AllTraffic", [replicas[-1].url])))
    outcomes: list[int] = []
    is_over = threading.Event()

    def client() -> None:
        while not is_over.is_set():
            outcomes.append(patient.client.post(PATHS[0], content=b"x").status_code)

    with ThreadPoolExecutor(8) as pool:
        clients = [pool.submit(client) for _ in range(8)]
        for _ in range(4):
            num_before = len(outcomes)
            patient.until(lambda before=num_before: len(outcomes) >= before + 20, "requests are answered")
            patient.until(lambda: patient.gateway.loads, "some are under way")
            patient.run(replicas[-1].stop())
            patient.until(lambda: patient.gateway.held, "some are held")
            replicas.append(patient.worker(slowly))
            patient.put(route(variant("AllTraffic", [replicas[-1].url])))
        is_over.set()
        for future in clients:
            future.result(WAIT_S)
    assert set(outcomes) == {200}
