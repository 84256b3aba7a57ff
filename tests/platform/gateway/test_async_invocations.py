"""InvokeEndpointAsync: an accepted invocation runs once, and its outcome is at the announced location."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pytest
from botocore.exceptions import ClientError

from headrace.core.errors import Unavailable
from headrace.platform.gateway import async_invocations, table
from headrace.platform.gateway.async_files import PendingInvocation, PendingStore
from headrace.platform.gateway.objects import ObjectFailed
from headrace.platform.state.routes import AsyncOutput
from tests.waiting import WAIT_S

from .async_parts import IDLE, OUTPUT, MemoryObjects, open_pending, out_of_reach, pending
from .conftest import Running, accepting, running
from .routes import component, route, variant
from .workers import Exchange


@pytest.fixture
def gateway(tmp_path, objects) -> Iterator[Running]:
    with accepting(tmp_path, objects) as made:
        yield made


def test_an_inline_body_is_answered_into_object_storage(gateway, objects, tmp_path):
    worker = gateway.serve(async_output=OUTPUT)
    answer = gateway.boto.invoke_endpoint_async(
        EndpointName="ep", Body=b'{"inputs": 1}', ContentType="application/json", Accept="text/x", InferenceId="my-id"
    )
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 202
    assert answer["InferenceId"] == "my-id"
    assert answer["OutputLocation"] == "s3://out/results/my-id.out"
    assert answer["FailureLocation"] == "s3://out/failures/my-id-error.out"
    gateway.until(lambda: objects.objects, "the outcome")
    assert objects.objects == {"s3://out/results/my-id.out": (b'{"inputs": 1}', "application/json")}
    (asked,) = worker.asked
    assert asked.headers["accept"] == "text/x"
    assert asked.headers["x-amzn-sagemaker-inference-id"] == "my-id"
    gateway.until(lambda: not gateway.pending.ids(), "nothing is kept")
    gateway.until(lambda: gateway.gateway.metrics.async_done == 1, "it is counted")


@pytest.mark.parametrize(
    ("stored", "asked", "content_type"),
    [("text/libsvm", {}, "text/libsvm"), ("text/csv", {"ContentType": "a/b"}, "a/b"), ("", {}, None)],
)
def test_the_input_and_its_type_are_read_from_object_storage(gateway, objects, stored, asked, content_type):
    objects.objects["s3://in/a b.json"] = (b"input", stored)
    worker = gateway.serve(async_output=OUTPUT)
    answer = gateway.boto.invoke_endpoint_async(
        EndpointName="ep", InputLocation="s3://in/a b.json", S3OutputPathExtension="team/a", Filename="x.json", **asked
    )
    assert answer["OutputLocation"] == "s3://out/results/team/a/x.json"
    assert answer["FailureLocation"] == "s3://out/failures/x-error.out"
    gateway.until(lambda: objects.puts, "the outcome")
    assert objects.objects["s3://out/results/team/a/x.json"][0] == b"input"
    assert worker.asked[0].headers.get("content-type") == content_type
    assert not any("input" in name for name in worker.asked[0].headers)


@pytest.mark.parametrize("folder", ["a b", "caf\u00e9 100%", "\u6f22\u5b57 100%", "new\rline"])
def test_a_location_of_any_characters_can_be_read_from_the_response(gateway, objects, folder):
    output = AsyncOutput(output_path=f"s3://out/{folder}", failure_path=f"s3://out/{folder}/failed")
    gateway.serve(async_output=output)
    answer = gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x", InferenceId="my-id")
    gateway.until(lambda: objects.puts, "the outcome")
    assert objects.puts == [f"s3://out/{folder}/my-id.out"]
    is_latin = folder.isprintable() and max(folder) <= "\xff"
    read = str if is_latin else unquote
    assert read(answer["OutputLocation"]) == objects.puts[0]
    assert read(answer["FailureLocation"]) == f"s3://out/{folder}/failed/my-id-error.out"


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({}, "exactly one of Body and InputLocation"),
        ({"Body": b"x", "InputLocation": "s3://b/k"}, "exactly one of Body and InputLocation"),
        ({"Body": b"x", "RequestTTLSeconds": 21_601}, "less than or equal to 21600"),
        ({"Body": b"x", "InvocationTimeoutSeconds": 3601}, "less than or equal to 3600"),
        ({"InputLocation": "ftp://b/k"}, "inputLocation"),
        ({"Body": b"x" * 128_001}, "HTTP content length exceeded 128000 bytes"),
    ],
)
def test_requests_are_checked_before_they_are_accepted(gateway, objects, parameters, text):
    gateway.serve(async_output=OUTPUT)
    with pytest.raises(ClientError, match=text):
        gateway.boto.invoke_endpoint_async(EndpointName="ep", **parameters)
    assert not objects.puts


def test_an_endpoint_that_is_not_asynchronous_refuses_the_invocation(gateway):
    gateway.serve()
    with pytest.raises(ClientError, match="does not take asynchronous invocations"):
        gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x")
    with running() as bare:
        bare.serve(async_output=OUTPUT)
        response = bare.client.post("/endpoints/ep/async-invocations", content=b"x")
        assert response.status_code == 503
        assert "object storage" in response.text


def test_an_endpoint_of_components_refuses_asynchronous_invocations(gateway, objects):
    gateway.put(route(variant(), components=[component("c", ["http://127.0.0.1:1"])], async_output=OUTPUT))
    with pytest.raises(ClientError, match="its models are inference components"):
        gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x")
    assert not objects.puts


def test_the_reason_of_a_failure_is_stored_at_the_failure_location(gateway, objects):
    async def refuse(exchange: Exchange) -> None:
        exchange.whole(b"bad prompt", status="400 Bad Request")

    gateway.serve(refuse, async_output=OUTPUT)
    answer = gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x")
    gateway.until(lambda: objects.puts, "the outcome")
    assert objects.puts == [answer["FailureLocation"]]
    assert b'Received client error (400) from primary with message "bad prompt"' in objects.objects[objects.puts[0]][0]
    missing = gateway.boto.invoke_endpoint_async(EndpointName="ep", InputLocation="s3://in/none")
    gateway.until(lambda: len(objects.puts) == 2, "the outcome")
    assert b"s3://in/none cannot be read" in objects.objects[missing["FailureLocation"]][0]
    gateway.until(lambda: gateway.gateway.metrics.async_failed == 2, "both are counted")


def test_an_invocation_is_retried_while_its_worker_is_full(gateway, objects, monkeypatch):
    monkeypatch.setattr("headrace.platform.gateway.async_invocations.BUSY_PAUSE_S", 0.01)

    async def full_at_first(exchange: Exchange) -> None:
        is_full = len(exchange.worker.asked) < 3
        exchange.whole(b"done", status="429 Too Many Requests" if is_full else "200 OK")

    worker = gateway.serve(full_at_first, async_output=OUTPUT)
    answer = gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x")
    gateway.until(lambda: objects.puts, "the outcome")
    assert objects.puts == [answer["OutputLocation"]]
    assert len(worker.asked) == 3


def test_concurrency_is_limited_by_the_endpoint_and_all_invocations_run(gateway, objects):
    now, most = 0, 0

    async def count(exchange: Exchange) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        while most < 2:  # the first one waits for the second, however slow this machine is
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.005)
        now -= 1
        exchange.whole(b"done")

    gateway.serve(count, async_output=OUTPUT)
    for _ in range(20):
        gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x")
    gateway.until(lambda: len(objects.puts) == 20, "all outcomes")
    assert most == 2


def test_an_accepted_invocation_runs_after_a_restart(tmp_path, objects):
    release = threading.Event()

    async def hang(exchange: Exchange) -> None:
        await exchange.until_gone()

    with accepting(tmp_path, objects) as first:
        worker = first.serve(hang, async_output=OUTPUT)
        accepted = [first.boto.invoke_endpoint_async(EndpointName="ep", Body=b"%d" % n) for n in range(5)]
        first.until(lambda: len(worker.asked) == 2, "two have begun")
        release.set()
        assert first.pending.count() == 5
    assert not objects.puts

    with accepting(tmp_path, objects, routes=[IDLE]) as second:
        second.serve(async_output=OUTPUT)
        second.until(lambda: len(objects.puts) == 5, "all outcomes")
        found = {uri: body for uri, (body, _) in objects.objects.items()}
        assert found == {answer["OutputLocation"]: b"%d" % n for n, answer in enumerate(accepted)}
        second.until(lambda: not second.pending.ids(), "nothing is kept")


def test_invocations_that_cannot_be_listed_are_listed_again(gateway, objects, soon):
    gateway.serve(async_output=OUTPUT)
    gateway.pending.save(replace(pending(1, expires_s=time.time() + 600), timeout_s=600))
    with out_of_reach(gateway.pending):
        looking = asyncio.run_coroutine_threadsafe(gateway.gateway.look_for_async(), gateway.loop)
        gateway.until(lambda: "async.storage_unavailable" in gateway.log.getvalue(), "a retry")
    looking.result(WAIT_S)
    gateway.until(lambda: objects.puts, "the outcome")


def test_an_invocation_that_cannot_be_stored_is_refused(gateway):
    gateway.put(IDLE)
    with out_of_reach(gateway.pending):
        response = gateway.client.post("/endpoints/ep/async-invocations", content=b"x")
    assert (response.status_code, response.headers["x-amzn-errortype"]) == (503, "ServiceUnavailable")
    assert "The invocation cannot be stored" in response.text
    assert not gateway.pending.ids()


def test_an_outcome_is_stored_once_if_its_invocation_cannot_be_removed(gateway, objects, soon):
    gateway.put(IDLE)
    gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x")

    async def lose_the_store(exchange: Exchange) -> None:
        broken.enter_context(out_of_reach(gateway.pending))
        exchange.whole(b"answer")

    with ExitStack() as broken:
        worker = gateway.serve(lose_the_store, async_output=OUTPUT)
        gateway.until(lambda: "async.storage_unavailable" in gateway.log.getvalue(), "a retry")
    gateway.until(lambda: not gateway.pending.ids(), "it is removed")
    assert len(objects.puts) == len(worker.asked) == 1


def test_an_invocation_whose_acceptor_was_killed_before_it_told_others_runs(tmp_path, objects, monkeypatch):
    monkeypatch.setattr(async_invocations, "LOOK_S", 0.01)
    with accepting(tmp_path, objects) as gateway, closing((store := open_pending(tmp_path)).blobs):
        gateway.serve(async_output=OUTPUT)
        store.save(replace(pending(1, expires_s=time.time() + 600), timeout_s=600))
        gateway.until(lambda: objects.puts, "the outcome")


def test_an_invocation_that_is_found_while_it_is_being_accepted_runs_once(gateway, objects, monkeypatch):
    saved, release = threading.Event(), threading.Event()
    save = PendingStore.save

    def pause_after(store: PendingStore, pending: PendingInvocation) -> None:
        save(store, pending)
        saved.set()
        assert release.wait(30)

    monkeypatch.setattr(PendingStore, "save", pause_after)
    worker = gateway.serve(async_output=OUTPUT)
    with ThreadPoolExecutor(1) as caller:
        accepted = caller.submit(gateway.boto.invoke_endpoint_async, EndpointName="ep", Body=b"x")
        assert saved.wait(30)
        gateway.run(gateway.gateway.look_for_async())
        gateway.until(lambda: objects.puts, "it has run")
        release.set()
        accepted.result(30)
    gateway.until(lambda: gateway.gateway.metrics.async_waiting == 0, "the queue is empty")
    assert len(worker.asked) == 1


def test_invocations_of_an_endpoint_that_is_deleted_or_recreated_fail(gateway, objects):
    gateway.put(route(variant("AllTraffic", []), async_output=OUTPUT))
    answers = [gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x") for _ in range(2)]
    gateway.put(route(variant("AllTraffic", [gateway.worker().url]), uid="another", async_output=OUTPUT))
    gateway.until(lambda: len(objects.puts) == 2, "both outcomes")
    assert set(objects.puts) == {answer["FailureLocation"] for answer in answers}
    assert objects.objects[objects.puts[0]][0] == b"Endpoint ep was deleted."


def test_a_running_invocation_is_not_sent_again_to_the_namesake_of_its_endpoint(gateway, objects):
    async def never(_exchange) -> None:
        await asyncio.Event().wait()

    lost, other = gateway.serve(never, async_output=OUTPUT), gateway.worker()
    answer = gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x")
    gateway.until(lambda: lost.asked, "it runs")
    gateway.put(route(variant("AllTraffic", [other.url]), uid="another", async_output=OUTPUT))
    gateway.run(lost.stop())
    gateway.until(lambda: objects.puts, "the outcome")
    assert (objects.puts, other.asked) == ([answer["FailureLocation"]], [])


def test_invocations_above_the_limit_are_refused(tmp_path, objects):
    with accepting(tmp_path, objects, max_async_waiting=2) as gateway:
        gateway.put(route(variant("AllTraffic", []), async_output=OUTPUT))
        for _ in range(2):
            gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x")
        response = gateway.client.post("/endpoints/ep/async-invocations", content=b"x")
        assert response.status_code == 429
        assert response.headers["x-amzn-errortype"] == "ThrottlingException"


def test_an_outcome_that_cannot_be_stored_is_retried_after_a_restart(tmp_path, objects):
    objects.failure = ObjectFailed("access is denied")
    with accepting(tmp_path, objects) as first:
        first.serve(async_output=OUTPUT)
        first.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x")
        first.until(lambda: "async.outcome_lost" in first.log.getvalue(), "the failure is told")
    objects.failure = None
    with accepting(tmp_path, objects, routes=[IDLE]) as second:
        second.serve(async_output=OUTPUT)
        second.until(lambda: objects.puts, "the outcome")
    assert objects.puts[0].startswith("s3://out/results/")


def test_few_of_many_failures_are_stored_at_the_same_time(tmp_path):
    class SlowObjects(MemoryObjects):
        now = most = 0

        async def put(self, uri: str, body: Any, **facts: Any) -> None:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0.01)
            self.now -= 1
            await super().put(uri, body, **facts)

    objects = SlowObjects()
    with accepting(tmp_path, objects) as gateway:
        gateway.put(IDLE)
        for _ in range(40):
            gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x")
        gateway.put(route(variant("AllTraffic", []), uid="another", async_output=OUTPUT))
        gateway.until(lambda: len(objects.puts) == 40, "all outcomes")
    assert objects.most == async_invocations.MAX_FAILURES_STORED


def test_a_process_that_no_longer_runs_invocations_has_none_that_wait(tmp_path, objects):
    with accepting(tmp_path, objects) as gateway:
        gateway.put(IDLE)
        gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x")
        gateway.until(lambda: gateway.gateway.metrics.async_waiting == 1, "it waits")
    assert gateway.gateway.metrics.async_waiting == 0


def test_ids_of_ended_invocations_are_forgotten(gateway, objects, monkeypatch):
    monkeypatch.setattr(async_invocations, "FORGET_EVERY", 5)
    gateway.serve(async_output=OUTPUT)
    for _ in range(10):
        gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x")
    runner = gateway.gateway._async
    assert runner is not None
    gateway.until(lambda: gateway.gateway.metrics.async_done == 10, "all outcomes")
    gateway.until(lambda: len(runner._seen) < 5, "their ids are forgotten")


@pytest.mark.parametrize("known", [(), (IDLE,)], ids=["created", "recreated"])
def test_an_invocation_for_an_endpoint_of_which_only_its_acceptor_has_read_runs(tmp_path, objects, known):
    with accepting(tmp_path, objects, routes=known) as gateway:
        worker = gateway.worker()
        uid = "uid-2" if known else "uid-1"
        gateway.store.put_elsewhere(route(variant("v", [worker.url]), uid=uid, async_output=OUTPUT))
        accepted = replace(pending(1, expires_s=time.time() + 600), endpoint_uid=uid, timeout_s=600)
        gateway.pending.save(accepted)
        gateway.run(gateway.gateway.look_for_async())
        gateway.until(lambda: not gateway.pending.ids(), "it has ended")
        assert [request.body for request in worker.asked] == [accepted.body]


def test_an_invocation_found_while_the_store_cannot_be_read_is_not_failed(tmp_path, objects, monkeypatch):
    monkeypatch.setattr(table, "SETTLE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(table, "RETRY_S", 0.01)
    with accepting(tmp_path, objects) as gateway:
        worker = gateway.worker()
        gateway.store.failure = Unavailable("down")
        gateway.store.put_elsewhere(route(variant("v", [worker.url]), async_output=OUTPUT))
        gateway.pending.save(replace(pending(1, expires_s=time.time() + 600), timeout_s=600))
        looking = asyncio.run_coroutine_threadsafe(gateway.gateway.look_for_async(), gateway.loop)
        gateway.until(lambda: gateway.log.getvalue().count("routes.unreadable") > 10, "the store is asked")
        assert not looking.done()
        gateway.store.failure = None
        looking.result(WAIT_S)
        gateway.until(lambda: objects.puts == ["s3://b/k"], "it has run")
