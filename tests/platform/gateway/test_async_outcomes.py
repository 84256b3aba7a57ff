"""A process that takes over runs no invocation again that an earlier one has ended."""

from pathlib import Path

import pytest

from headrace.platform.gateway.async_outcomes import EndedElsewhere, Outcomes

from .async_parts import IDLE, OUTPUT, MemoryObjects, pending
from .conftest import accepting
from .routes import route, variant


def test_an_outcome_that_an_earlier_process_has_stored_is_final(tmp_path: Path, objects: MemoryObjects) -> None:
    """It died before it could remove the invocation; an object of another invocation is no outcome."""
    with accepting(tmp_path, objects) as first:
        first.put(IDLE)
        answers = [first.boto.invoke_endpoint_async(EndpointName="ep", Body=b"%d" % number) for number in range(3)]
        answered, failed, left = first.pending.ids()
    uris = [answers[0]["OutputLocation"], answers[1]["FailureLocation"], answers[2]["OutputLocation"]]
    for uri, id_ in zip(uris, (answered, failed, answered), strict=True):
        objects.objects[uri], objects.all_metadata[uri] = (b"before", "text/x"), {"headrace-invocation": id_}
    ends = []
    with accepting(tmp_path, objects, routes=[IDLE]) as second:
        invocations = second.gateway._async
        assert invocations is not None
        invocations.on_ended = ends.append
        worker = second.serve(async_output=OUTPUT)
        second.until(lambda: len(ends) == 3, "all have ended")
        assert not second.pending.ids()
    assert [asked.body for asked in worker.asked] == [b"2"]
    assert objects.puts == [answers[2]["OutputLocation"]]
    assert {end.pending.id: (end.failure, end.content_type) for end in ends[:2]} == {
        answered: (None, "text/x"),
        failed: ("before", ""),
    }
    assert ends[2].pending.id == left


def test_an_invocation_that_an_earlier_process_removes_late_has_one_outcome(
    tmp_path: Path, objects: MemoryObjects
) -> None:
    with accepting(tmp_path, objects) as first:
        first.put(IDLE)
        first.boto.invoke_endpoint_async(EndpointName="ep", Body=b"ended")
    with accepting(tmp_path, objects, routes=[IDLE]) as second:
        second.until(lambda: second.gateway.metrics.async_waiting == 1, "it is queued")
        second.pending.remove(*second.pending.ids())
        second.put(route(variant("AllTraffic", []), uid="another", async_output=OUTPUT))
        second.until(lambda: second.gateway.metrics.async_failed == 1, "it has lost its endpoint")
        second.serve(async_output=OUTPUT)
        answer = second.boto.invoke_endpoint_async(EndpointName="ep", Body=b"next")
        second.until(lambda: objects.puts, "an outcome")
    assert objects.puts == [answer["OutputLocation"]]


async def test_a_process_without_the_lease_stores_no_outcome(objects: MemoryObjects) -> None:
    """It was stopped for longer than its lease: the next leader has run the invocation, or will."""
    outcomes = Outcomes(objects)  # type: ignore[arg-type]
    outcomes.has_lease = lambda: False
    with pytest.raises(EndedElsewhere):
        await outcomes.store(pending(1), "s3://b/k", b"late", "text/x")
    assert not objects.puts


def test_a_stopped_leader_ends_nothing_when_it_continues(tmp_path: Path, objects: MemoryObjects) -> None:
    """Neither the answer, nor the failure of an endpoint that was deleted; both stay for the next leader."""
    with accepting(tmp_path, objects) as first:
        invocations, held = first.gateway._async, []
        assert invocations is not None
        invocations._outcomes.has_lease = lambda: bool(held.append(1))
        worker = first.serve(async_output=OUTPUT)
        first.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x")
        first.until(lambda: len(held) == 1 and not invocations._queue.backlogs(), "it has run")
        first.put(IDLE)
        first.boto.invoke_endpoint_async(EndpointName="ep", Body=b"y")
        first.put(route(variant("AllTraffic", []), uid="another", async_output=OUTPUT))
        first.until(lambda: len(held) == 2, "it has lost its endpoint")
        assert first.pending.count() == 2
    assert len(worker.asked) == 1
    assert not objects.puts
