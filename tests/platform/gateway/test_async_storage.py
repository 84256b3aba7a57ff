"""The bodies of asynchronous invocations: they wait for the object storage and for room, and long ones are on disk."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from headrace.platform.gateway import async_files, async_invocations
from headrace.platform.gateway.objects import ObjectsUnavailable
from headrace.serving.http.body import FREE_BYTES

from .async_parts import IDLE, OUTPUT, out_of_reach
from .conftest import Running, accepting
from .routes import route, variant
from .workers import Exchange


@pytest.fixture
def gateway(tmp_path, objects) -> Iterator[Running]:
    with accepting(tmp_path, objects) as made:
        yield made


def test_an_outcome_waits_for_the_object_storage_and_the_model_runs_once(gateway, objects, soon):
    objects.failure = ObjectsUnavailable("connection refused")
    worker = gateway.serve(async_output=OUTPUT)
    accepted = [gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"%d" % n) for n in range(3)]
    gateway.until(lambda: gateway.log.getvalue().count("async.storage_unavailable") > 5, "retries")
    assert len(worker.asked) == 2, "an invocation that waits for the storage holds its place"
    objects.failure = None
    gateway.until(lambda: len(objects.puts) == 3, "all outcomes")
    found = {uri: body for uri, (body, _) in objects.objects.items()}
    assert found == {answer["OutputLocation"]: b"%d" % n for n, answer in enumerate(accepted)}
    assert len(worker.asked) == 3


def test_the_reason_of_a_failure_waits_for_the_object_storage(gateway, objects, soon):
    async def refuse(exchange: Exchange) -> None:
        objects.failure = ObjectsUnavailable("connection refused")
        exchange.whole(b"bad prompt", status="400 Bad Request")

    gateway.serve(refuse, async_output=OUTPUT)
    answer = gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x")
    gateway.until(lambda: gateway.log.getvalue().count("async.storage_unavailable") > 1, "retries")
    objects.failure = None
    gateway.until(lambda: objects.puts, "the outcome")
    assert objects.puts == [answer["FailureLocation"]]


def test_an_input_waits_for_the_object_storage(gateway, objects, soon):
    objects.read_failure = ObjectsUnavailable("connection refused")
    objects.objects["s3://in/key"] = (b"input", "text/plain")
    worker = gateway.serve(async_output=OUTPUT)
    gateway.boto.invoke_endpoint_async(EndpointName="ep", InputLocation="s3://in/key")
    gateway.until(lambda: gateway.log.getvalue().count("async.storage_unavailable") > 1, "retries")
    objects.read_failure = None
    gateway.until(lambda: objects.puts, "the outcome")
    assert [request.body for request in worker.asked] == [b"input"]


def test_an_invocation_whose_input_cannot_be_read_until_it_expires_fails(gateway, objects, soon, monkeypatch):
    monkeypatch.setattr(async_files, "DEFAULT_TTL_S", 3.0)
    objects.read_failure = ObjectsUnavailable("connection refused")
    gateway.serve(async_output=OUTPUT)
    answer = gateway.boto.invoke_endpoint_async(EndpointName="ep", InputLocation="s3://in/key")
    gateway.until(lambda: objects.puts, "the outcome")
    assert objects.objects[answer["FailureLocation"]][0] == b"connection refused"


def test_inputs_wait_for_room_in_the_budget_of_all_bodies(tmp_path, objects):
    num_bytes = FREE_BYTES + 1000
    held: list[int] = []
    with accepting(tmp_path, objects, max_buffered_bytes=6000) as gateway:

        async def note(exchange: Exchange) -> None:
            held.append(gateway.gateway.budget.held_bytes)
            exchange.whole(exchange.asked.body)

        gateway.serve(note, async_output=replace(OUTPUT, max_concurrent_per_replica=20))
        for number in range(20):
            objects.objects[f"s3://in/{number}"] = (b"%d" % (number % 10) * num_bytes, "text/plain")
            gateway.boto.invoke_endpoint_async(EndpointName="ep", InputLocation=f"s3://in/{number}")
        gateway.until(lambda: len(objects.puts) == 20, "all outcomes")
        assert set(held) <= {1000, 2000, 3000}, "at most half of the budget"
        gateway.until(lambda: gateway.gateway.budget.held_bytes == 0, "all room is given back")
        gateway.until(lambda: not gateway.pending.ids(), "nothing is kept")


def test_inputs_of_an_endpoint_without_capacity_give_up_their_room(tmp_path, objects, monkeypatch):
    monkeypatch.setattr(async_invocations, "BUSY_PAUSE_S", 0.01)

    async def full(exchange: Exchange) -> None:
        exchange.whole(b"full", status="429 Too Many Requests")

    with accepting(tmp_path, objects, max_buffered_bytes=1) as gateway:
        stuck, good = gateway.worker(full), gateway.worker()
        gateway.put(
            route(variant("AllTraffic", [stuck.url]), endpoint="stuck", async_output=OUTPUT),
            route(variant("AllTraffic", [good.url]), async_output=OUTPUT),
        )
        objects.objects["s3://in/large"] = (b"x" * (FREE_BYTES + 1), "text/plain")
        gateway.boto.invoke_endpoint_async(EndpointName="stuck", InputLocation="s3://in/large")
        gateway.until(lambda: len(stuck.asked) > 3, "retries")
        answer = gateway.boto.invoke_endpoint_async(EndpointName="ep", InputLocation="s3://in/large")
        gateway.until(lambda: objects.puts, "the outcome")
        assert objects.puts == [answer["OutputLocation"]]
        asked = len(stuck.asked)
        gateway.until(lambda: len(stuck.asked) > asked, "the other one is still tried")


def test_a_long_response_is_stored_as_it_was_received(gateway, objects):
    content = bytes(range(256)) * 5000

    async def answer(exchange: Exchange) -> None:
        exchange.start(content_type="image/png")
        for start in range(0, len(content), 10_000):
            exchange.chunk(content[start : start + 10_000])
            await exchange.flush()
        exchange.end()

    gateway.serve(answer, async_output=OUTPUT)
    accepted = gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x")
    gateway.until(lambda: objects.puts, "the outcome")
    assert objects.objects[accepted["OutputLocation"]] == (content, "image/png")
    gateway.until(lambda: not gateway.pending.ids(), "nothing is kept")


def test_a_response_above_the_limit_is_a_failure(tmp_path, objects):
    with accepting(tmp_path, objects, max_async_response_bytes=10) as gateway:
        gateway.serve(async_output=OUTPUT)
        answer = gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x" * 11)
        gateway.until(lambda: objects.puts, "the outcome")
        assert objects.puts == [answer["FailureLocation"]]


def test_the_body_of_a_waiting_invocation_is_not_in_memory(gateway, objects):
    gateway.put(IDLE)
    gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"before")
    _, [stored] = gateway.pending.unknown(frozenset())
    gateway.pending.save(replace(stored, body=b"after"))
    gateway.serve(async_output=OUTPUT)
    gateway.until(lambda: objects.puts, "the outcome")
    assert objects.objects[objects.puts[0]][0] == b"after"


def test_an_invocation_that_another_process_has_ended_does_not_run(gateway, objects):
    gateway.put(IDLE)
    gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"ended")
    gateway.pending.remove(*gateway.pending.ids())
    answer = gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"waiting")
    worker = gateway.serve(async_output=OUTPUT)
    gateway.until(lambda: objects.puts, "the outcome")
    gateway.until(lambda: not gateway.pending.ids(), "nothing is kept")
    assert objects.puts == [answer["OutputLocation"]]
    assert [request.body for request in worker.asked] == [b"waiting"]


def test_a_body_that_cannot_be_read_is_read_again(gateway, objects, soon):
    gateway.put(IDLE)
    gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x")
    with out_of_reach(gateway.pending):
        gateway.serve(async_output=OUTPUT)
        gateway.until(lambda: "async.storage_unavailable" in gateway.log.getvalue(), "a retry")
    gateway.until(lambda: objects.puts, "the outcome")
    assert objects.objects[objects.puts[0]][0] == b"x"
