"""Workers that died and are in the route yet: no request that had no byte of an answer is lost if one comes back."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.exceptions import ClientError

from headrace.core.telemetry import setup_logging
from headrace.gateway.quarantine import FIRST_S, LONGEST_S, Quarantine
from headrace.state.routes import Replica
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
def test_a_request_waits_for_the_one_that_comes_instead(patient: Running, path: str) -> None:
    patient.put(route(variant("AllTraffic", [gone(patient).url])))
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(patient.client.post, path, json={"prompt": "x"})
        patient.until(lambda: patient.gateway.held, "it is held")
        patient.put(route(variant("AllTraffic", [], standby=True)))
        patient.put(route(variant("AllTraffic", [patient.worker().url])))
        assert asking.result(WAIT_S).status_code == 200


def test_a_request_for_a_component_waits_too(patient: Running) -> None:
    host = variant("AllTraffic")
    patient.put(route(host, components=[component("ic", [gone(patient).url, gone(patient).url])]))
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(patient.boto.invoke_endpoint, EndpointName="ep", InferenceComponentName="ic", Body=b"x")
        patient.until(lambda: patient.gateway.held, "it is held")
        patient.put(route(host, components=[component("ic", [gone(patient).url, patient.worker().url])]))
        assert asking.result(WAIT_S)["Body"].read() == b"x"


@pytest.mark.parametrize("path", PATHS)
def test_a_request_that_had_no_byte_when_its_worker_died_is_asked_again(patient: Running, path: str) -> None:
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
        assert [one.result(WAIT_S).status_code for one in asking] == [200] * 3


def test_a_request_that_breaks_workers_is_given_up(patient: Running) -> None:
    breaking = patient.worker(die)
    patient.put(route(variant("AllTraffic", [breaking.url])))
    with pytest.raises(ClientError, match="could not get a response") as caught:
        patient.boto.invoke_endpoint(EndpointName="ep", Body=b"x")
    assert caught.value.response["Error"]["Code"] == "ModelError"
    assert len(breaking.asked) == 2


def test_an_answer_whose_first_byte_came_is_never_asked_for_again(patient: Running) -> None:
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


def test_a_kept_connection_that_broke_in_the_head_is_not_tried_anew(patient: Running) -> None:
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


def test_if_nobody_comes_it_is_unavailable_and_may_be_asked_for_again() -> None:
    with running(wake=Waker(), hold_timeout_s=0.05) as gateway:
        gateway.put(route(variant("AllTraffic", [gone(gateway).url])))
        for path in PATHS:
            answer = gateway.client.post(path, content=b"{}")
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"


def test_who_broke_and_is_not_replaced_in_time_is_not_called_unavailable() -> None:
    async def end(exchange: Exchange) -> None:
        await exchange.worker.stop()

    with running(wake=Waker(), hold_timeout_s=0.05) as gateway:
        gateway.serve(end)
        answer = gateway.client.post(PATHS[0], content=b"{}")
        assert answer.status_code == 424, "SDKs do not repeat it: the model may have run"


def test_all_holds_of_a_request_are_one_deadline() -> None:
    """It is held, called, and held again, as the one that came is dead too."""
    with running(wake=Waker(), hold_timeout_s=0.5) as gateway, ThreadPoolExecutor(1) as pool:
        gateway.put(route(variant("AllTraffic", [gone(gateway).url])))
        asking = pool.submit(gateway.client.post, PATHS[0], content=b"x")
        for _ in range(200):
            if asking.done():
                break
            gateway.put(route(variant("AllTraffic", [gone(gateway).url])))
        assert asking.result(WAIT_S).status_code == 503


def test_a_worker_that_comes_back_where_it_was_is_found(patient: Running) -> None:
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


def test_who_is_known_to_be_silent_is_asked_no_more(patient: Running) -> None:
    dead, alive = gone(patient), patient.worker(named("alive"))
    patient.put(route(variant("AllTraffic", [dead.url, alive.url])))
    began_s = time.monotonic()
    for _ in range(30):
        assert patient.client.post(PATHS[0], content=b"x").content == b"alive"
    num_found = patient.log.getvalue().count("worker.silent")
    assert num_found <= 2 + (time.monotonic() - began_s), "at first, and once a second"


def test_somebody_is_told_to_look_once_for_each_that_is_silent(patient: Running) -> None:
    told: list[None] = []
    patient.gateway.on_quarantine(lambda: told.append(None))
    dead = [gone(patient), gone(patient)]
    patient.put(route(variant("AllTraffic", [one.url for one in dead])))
    with ThreadPoolExecutor(6) as pool:
        asking = [pool.submit(patient.client.post, PATHS[0], content=b"x") for _ in range(6)]
        patient.until(lambda: patient.gateway.held == {"ep": 6}, "all are held")
        assert len(told) == 2
        patient.put(route(variant("AllTraffic", [patient.worker().url])))
        assert {one.result(WAIT_S).status_code for one in asking} == {200}


def test_whose_session_it_was_is_not_waited_for(patient: Running) -> None:
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


def test_a_killed_worker_under_load_loses_no_request_that_had_no_byte(patient: Running) -> None:
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
        for one in clients:
            one.result(WAIT_S)
    assert set(outcomes) == {200}


U, V = (Replica(worker=name, url="http://same") for name in "uv")


def test_a_quarantine_doubles_each_time_and_is_forgotten_when_it_is_lifted_or_the_replica_is_gone() -> None:
    ended: list[float] = []

    async def scene() -> list[float]:
        loop = asyncio.get_running_loop()
        quarantine = Quarantine(on_end=lambda: ended.append(loop.time()))
        waits = []
        for _ in range(7):
            quarantine.add(U)
            quarantine.add(U)
            assert U in quarantine
            end = quarantine._entries[U].end
            assert end is not None
            waits.append(end.when() - loop.time())
            end.cancel()
            quarantine._ended(quarantine._entries[U])
            assert U not in quarantine
        quarantine.add(U)
        quarantine.lift(U)
        assert U not in quarantine
        quarantine.add(U)
        quarantine.add(V)
        quarantine.retain({V})
        assert (U in quarantine, V in quarantine) == (False, True)
        quarantine.retain(())
        assert not quarantine
        return waits

    waits = asyncio.run(scene())
    assert waits == pytest.approx([FIRST_S, 2.0, 4.0, 8.0, 16.0, LONGEST_S, LONGEST_S], abs=0.1)
    assert len(ended) == 8
