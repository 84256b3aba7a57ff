"""InvokeEndpointAsync: what is accepted is done, once, with its outcome where the client was told."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.tracing import TraceContext
from headrace.gateway.async_files import PendingFolder, PendingInvocation
from headrace.gateway.async_queue import AsyncQueue, capacity_of
from headrace.gateway.objects import ObjectFailed
from headrace.state.routes import AsyncOutput

from .conftest import Running, running
from .routes import component, route, variant
from .workers import Exchange

OUTPUT = AsyncOutput(output_path="s3://out/results/", failure_path="s3://out/failures", max_concurrent_per_replica=2)


IDLE = route(variant("AllTraffic", []), async_output=OUTPUT)
"""An endpoint whose replicas are all starting."""


class MemoryObjects:
    """Objects in a dictionary."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.puts: list[str] = []
        self.failure: str | None = None

    async def get(self, uri: str, *, max_bytes: int) -> bytes:
        if uri not in self.objects:
            raise ObjectFailed(f"{uri} cannot be read: no such key")
        return self.objects[uri][0]

    async def put(self, uri: str, body: bytes, *, content_type: str) -> None:
        if self.failure is not None:
            raise ObjectFailed(self.failure)
        self.puts.append(uri)
        self.objects[uri] = (body, content_type)


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@contextmanager
def accepting(folder: Path, objects: MemoryObjects, **limits: Any) -> Iterator[Running]:
    with running(objects=objects, async_folder=folder, **limits) as made:
        yield made


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
    gateway.until(lambda: not list(tmp_path.iterdir()), "nothing is kept")
    assert gateway.gateway.metrics.async_done == 1


def test_the_input_is_read_from_object_storage(gateway, objects):
    objects.objects["s3://in/a b.json"] = (b"input", "application/json")
    worker = gateway.serve(async_output=OUTPUT)
    answer = gateway.boto.invoke_endpoint_async(
        EndpointName="ep", InputLocation="s3://in/a b.json", S3OutputPathExtension="team/a", Filename="x.json"
    )
    assert answer["OutputLocation"] == "s3://out/results/team/a/x.json"
    assert answer["FailureLocation"] == "s3://out/failures/x-error.out"
    gateway.until(lambda: objects.puts, "the outcome")
    assert objects.objects["s3://out/results/team/a/x.json"][0] == b"input"
    assert not any("input" in name for name in worker.asked[0].headers)


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


def test_an_endpoint_that_is_not_asynchronous_says_so(gateway):
    gateway.serve()
    with pytest.raises(ClientError, match="does not take asynchronous invocations"):
        gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x")
    with running() as bare:
        bare.serve(async_output=OUTPUT)
        response = bare.client.post("/endpoints/ep/async-invocations", content=b"x")
        assert response.status_code == 503
        assert "object storage" in response.text


def test_an_endpoint_of_components_takes_none_as_none_can_be_named(gateway, objects):
    gateway.put(route(variant(), components=[component("c", ["http://127.0.0.1:1"])], async_output=OUTPUT))
    with pytest.raises(ClientError, match="its models are inference components"):
        gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x")
    assert not objects.puts


def test_a_failure_is_told_where_the_client_looks_for_it(gateway, objects):
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
    assert gateway.gateway.metrics.async_failed == 2


def test_a_worker_that_is_full_is_asked_again_later(gateway, objects, monkeypatch):
    monkeypatch.setattr("headrace.gateway.async_invocations.BUSY_PAUSE_S", 0.01)

    async def full_at_first(exchange: Exchange) -> None:
        is_full = len(exchange.worker.asked) < 3
        exchange.whole(b"done", status="429 Too Many Requests" if is_full else "200 OK")

    worker = gateway.serve(full_at_first, async_output=OUTPUT)
    answer = gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x")
    gateway.until(lambda: objects.puts, "the outcome")
    assert objects.puts == [answer["OutputLocation"]]
    assert len(worker.asked) == 3


def test_no_more_run_at_once_than_the_endpoint_allows_and_all_are_done(gateway, objects):
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


def test_what_was_accepted_is_done_after_a_restart(tmp_path, objects):
    release = threading.Event()

    async def hang(exchange: Exchange) -> None:
        await exchange.until_gone()

    with accepting(tmp_path, objects) as first:
        worker = first.serve(hang, async_output=OUTPUT)
        accepted = [first.boto.invoke_endpoint_async(EndpointName="ep", Body=b"%d" % n) for n in range(5)]
        first.until(lambda: len(worker.asked) == 2, "two have begun")
        release.set()
    assert not objects.puts
    assert len(list(tmp_path.iterdir())) == 5

    with accepting(tmp_path, objects, routes=[IDLE]) as second:
        second.serve(async_output=OUTPUT)
        second.until(lambda: len(objects.puts) == 5, "all outcomes")
        found = {uri: body for uri, (body, _) in objects.objects.items()}
        assert found == {answer["OutputLocation"]: b"%d" % n for n, answer in enumerate(accepted)}
        second.until(lambda: not list(tmp_path.iterdir()), "nothing is kept")


def test_invocations_of_an_endpoint_that_is_deleted_or_made_anew_fail(gateway, objects):
    gateway.put(route(variant("AllTraffic", []), async_output=OUTPUT))
    answers = [gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x") for _ in range(2)]
    gateway.put(route(variant("AllTraffic", [gateway.worker().url]), uid="another", async_output=OUTPUT))
    gateway.until(lambda: len(objects.puts) == 2, "both outcomes")
    assert set(objects.puts) == {answer["FailureLocation"] for answer in answers}
    assert objects.objects[objects.puts[0]][0] == b"Endpoint ep was deleted."


def test_too_many_are_not_accepted(tmp_path, objects):
    with accepting(tmp_path, objects, max_async_waiting=2) as gateway:
        gateway.put(route(variant("AllTraffic", []), async_output=OUTPUT))
        for _ in range(2):
            gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x")
        response = gateway.client.post("/endpoints/ep/async-invocations", content=b"x")
        assert response.status_code == 429
        assert response.headers["x-amzn-errortype"] == "ThrottlingException"


def test_an_outcome_that_cannot_be_written_is_tried_again_after_a_restart(tmp_path, objects):
    objects.failure = "the disk is full"
    with accepting(tmp_path, objects) as first:
        first.serve(async_output=OUTPUT)
        first.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x")
        first.until(lambda: "async.outcome_lost" in first.log.getvalue(), "the failure is told")
    objects.failure = None
    with accepting(tmp_path, objects, routes=[IDLE]) as second:
        second.serve(async_output=OUTPUT)
        second.until(lambda: objects.puts, "the outcome")
    assert objects.puts[0].startswith("s3://out/results/")


def pending(number: int, *, endpoint: str = "ep", expires_s: float = 100.0) -> PendingInvocation:
    return PendingInvocation(
        id=f"{number:05d}",
        endpoint=endpoint,
        endpoint_uid="uid-1",
        inference_id="i",
        body=b"\x00\xff",
        output_uri="s3://b/k",
        accepted_s=0,
        expires_s=expires_s,
        timeout_s=1,
        trace=TraceContext(request_id=f"request-{number}", inference_id="i"),
    )


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.sampled_from("ab"), st.integers(1, 50)),
            st.tuples(st.just("look"), st.just(""), st.integers(0, 60)),
            st.tuples(st.just("end"), st.just(""), st.integers(0, 9)),
        ),
        max_size=40,
    ),
    st.integers(0, 3),
)
def test_each_begins_or_expires_once_in_order_and_never_too_many_at_once(steps, num_replicas):
    replicas = [f"http://w{number}" for number in range(num_replicas)]
    routes = {name: route(variant("v", replicas), endpoint=name, async_output=OUTPUT) for name in "ab"}
    queue, running_now, waiting, now_s = AsyncQueue(), [], {}, 0.0
    for number, (step, endpoint, value) in enumerate(steps):
        if step == "add":
            waiting[f"{number:05d}"] = made = pending(number, endpoint=endpoint, expires_s=now_s + value)
            queue.add(made)
        elif step == "end" and running_now:
            queue.ended(running_now.pop(value % len(running_now)))
        else:
            now_s = max(now_s, float(value))
            due = queue.due(routes, now_s)
            assert not due.orphaned
            for gone in due.expired:
                assert waiting.pop(gone.id).expires_s <= now_s
            for begun in due.begin:
                assert not any(other < begun.id and one.endpoint == begun.endpoint for other, one in waiting.items())
                running_now.append(waiting.pop(begun.id))
            assert due.next_s == min((one.expires_s for one in waiting.values()), default=None)
        assert len(queue) == len(waiting)
        for name in "ab":
            assert sum(one.endpoint == name for one in running_now) <= capacity_of(routes[name])


def test_files_survive_and_unreadable_ones_are_put_aside(tmp_path):
    folder = PendingFolder(tmp_path / "new")
    assert list(folder.load()) == []
    folder.save(pending(2))
    folder.save(pending(1))
    (tmp_path / "new" / "00000.json").write_bytes(b'{"id": ')
    (tmp_path / "new" / "00003.partial").write_bytes(b"half")
    assert list(folder.load()) == [pending(1), pending(2)]
    assert (tmp_path / "new" / "00000.unreadable").exists()
    folder.remove("00001")
    folder.remove("00001")
    assert list(folder.load()) == [pending(2)]
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0
