"""The queue of asynchronous invocations: order, limits, expiry and backlogs, and their CloudWatch metrics."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.cloudwatch.metrics.metric import Point
from headrace.platform.cloudwatch.series.memory import MemorySeries
from headrace.platform.gateway.async_queue import AsyncOutcome, AsyncPublisher, AsyncQueue, Backlog, capacity_of
from headrace.platform.gateway.objects import ObjectFailed
from headrace.platform.gateway.publishing import NAMESPACE, Publisher, Sampler
from headrace.platform.state.routes import Route

from .async_parts import OUTPUT, MemoryObjects, pending
from .conftest import Running, running
from .routes import asleep, route, variant
from .workers import Exchange


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=20), st.integers(0, 3))
def test_a_backlog_counts_waiting_and_running_invocations(steps: list[tuple[str, bool]], num_replicas: int) -> None:
    replicas = [f"http://w{number}" for number in range(num_replicas)]
    routes = {name: route(variant("v", replicas), endpoint=name, async_output=OUTPUT) for name in "ab"}
    queue, expected, begun = AsyncQueue(), dict.fromkeys("ab", 0), []
    for number, (endpoint, ends) in enumerate(steps):
        queue.add(pending(number, endpoint=endpoint))
        expected[endpoint] += 1
        begun += queue.due(routes, 0.0).begin
        if ends and begun:
            expected[begun[0].endpoint] -= 1
            queue.ended(begun.pop(0))
        found = queue.backlogs()
        assert {name: found[name].size if name in found else 0 for name in "ab"} == expected


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
def test_each_invocation_starts_or_expires_once_in_order_and_within_the_limit(steps, num_replicas):
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
                assert not any(other < begun.id and held.endpoint == begun.endpoint for other, held in waiting.items())
                running_now.append(waiting.pop(begun.id))
            assert due.next_s == min((held.expires_s for held in waiting.values()), default=None)
        assert len(queue) == len(waiting)
        for name in "ab":
            assert sum(begun.endpoint == name for begun in running_now) <= capacity_of(routes[name])


def test_started_invocations_leave_the_heap_of_expiries():
    waiting = route(variant("v", []), endpoint="a", async_output=OUTPUT)
    serving = route(variant("v", ["http://w"]), endpoint="b", async_output=OUTPUT)
    routes, queue = {"a": waiting, "b": serving}, AsyncQueue()
    queue.add(pending(0, endpoint="a", expires_s=1.0))
    for number in range(1, 5000):
        queue.add(pending(number, endpoint="b"))
        due = queue.due(routes, 0.0)
        assert [begun.id for begun in due.begin] == [f"{number:05d}"]
        assert due.next_s == 1.0
        queue.ended(due.begin[0])
        assert len(queue._expiries) < 1010


T0 = 1_700_000_000.0 // 60 * 60


def points(series: MemorySeries, *, start_s: float = T0, period_s: int = 86_400) -> dict[tuple[str, ...], Point]:
    """Sum up the published values by name and dimension values."""
    start_s = start_s // period_s * period_s
    return {
        (metric.name, *(value for _, value in metric.dimensions)): series.read(
            metric, start_s=start_s, end_s=start_s + 2 * period_s, period_s=period_s
        )[0]
        for metric in series.list(namespace=NAMESPACE)
    }


def backlogs_of(endpoint: Route, backlog: Backlog | None) -> dict[str, float]:
    """Return the metrics by name, published sixty seconds after `T0`."""
    series = MemorySeries()
    backlogs = {} if backlog is None else {endpoint.endpoint: backlog}
    AsyncPublisher(series, clock=lambda: T0 + 60).publish_backlogs({endpoint.endpoint: endpoint}, backlogs)
    found = points(series)
    assert {tuple(where) for _, *where in found} <= {("ep",)}
    return {name: point.total for (name, *_), point in found.items()}


def test_a_backlog_without_capacity_has_no_metric_per_instance() -> None:
    sleeping = route(asleep(), async_output=OUTPUT)
    assert backlogs_of(sleeping, Backlog(size=3, oldest_s=T0 + 10)) == {
        "ApproximateBacklogSize": 3,
        "ApproximateAgeOfOldestRequest": 50,
        "HasBacklogWithoutCapacity": 1,
    }
    assert backlogs_of(sleeping, None) == {
        "ApproximateBacklogSize": 0,
        "ApproximateAgeOfOldestRequest": 0,
        "HasBacklogWithoutCapacity": 0,
    }


def test_the_backlog_per_instance_counts_the_instances_that_serve() -> None:
    serving = route(variant("AllTraffic", ["a", "b"], ["c"], shares=[1.0, 0.0]), async_output=OUTPUT)
    assert backlogs_of(serving, Backlog(size=3, oldest_s=T0 + 60)) == {
        "ApproximateBacklogSize": 3,
        "ApproximateBacklogSizePerInstance": 1.5,
        "ApproximateAgeOfOldestRequest": 0,
        "HasBacklogWithoutCapacity": 0,
    }
    assert backlogs_of(serving, None)["ApproximateBacklogSizePerInstance"] == 0
    assert backlogs_of(route(variant("AllTraffic", ["a"])), None) == {}, "it is not an asynchronous one"


def test_an_outcome_is_published_for_its_variant() -> None:
    series = MemorySeries()
    publisher = AsyncPublisher(series, clock=lambda: T0)
    of = route(variant("v", ["a"]), async_output=OUTPUT)
    times = {"accepted_s": T0 - 10, "began_s": T0 - 4, "ended_s": T0}
    publisher.publish(
        AsyncOutcome(endpoint="ep", variant="v", model_s=2.5, model_status=200, upload_s=0.5, **times), of
    )
    publisher.publish(AsyncOutcome(endpoint="ep", is_failed=True, is_download_failed=True, **times), of)
    publisher.publish_expired(of)
    found = points(series)
    assert {tuple(where) for _, *where in found} == {("ep", "v")}
    totals = {name: (point.total, point.count, point.unit) for (name, *_), point in found.items()}
    assert totals == {
        "InvocationsProcessed": (2, 2, "Count"),
        "InvocationFailures": (1, 2, "Count"),
        "RequestDownloadFailures": (1, 2, "Count"),
        "ResponseUploadFailures": (0, 2, "Count"),
        "ExpiredRequests": (1, 1, "Count"),
        "Invocation4XXErrors": (0, 1, "None"),
        "Invocation5XXErrors": (0, 1, "None"),
        "TimeInBacklog": (12e6, 2, "Microseconds"),
        "ResponseUploadLatency": (0.5e6, 1, "Microseconds"),
        "ModelLatency": (2.5e6, 1, "Microseconds"),
        "TotalProcessingTime": (20e3, 2, "Milliseconds"),
    }


def test_the_sampler_publishes_the_backlog_once_in_each_window() -> None:
    now, looks = [T0], []
    series = MemorySeries()
    sampler = Sampler(
        publisher=Publisher(series, clock=lambda: now[0]),
        sink=series,
        routes=lambda: {"ep": route(variant("v", ["a"]))},
        loads=dict,
        held=dict,
        each_window=lambda: looks.append(now[0]),
        clock=lambda: now[0],
    )
    for second in range(25):
        now[0] = T0 + second
        sampler.sample()
    assert looks == [T0, T0 + 10, T0 + 20]


@contextmanager
def told(folder: Path, objects: MemoryObjects, series: MemorySeries, **limits: Any) -> Iterator[Running]:
    with running(objects=objects, async_folder=folder, async_publisher=AsyncPublisher(series), **limits) as made:
        yield made


def look(gateway: Running) -> None:
    async def publish() -> None:
        gateway.gateway.publish_backlogs()

    gateway.run(publish())


def latest(series: MemorySeries) -> dict[str, Point]:
    """Sum up the recently published values by name."""
    found = {}
    for metric in series.list(namespace=NAMESPACE):
        points = series.read(metric, start_s=0.0, end_s=4e9, period_s=60)
        found[metric.name] = points[-1]
    return found


def test_the_backlog_at_zero_instances_and_the_finished_invocations_are_published(tmp_path: Path) -> None:
    objects, series = MemoryObjects(), MemorySeries()
    with told(tmp_path, objects, series) as gateway:
        gateway.put(route(asleep(), async_output=OUTPUT))
        for number in range(3):
            gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"%d" % number)
        look(gateway)
        found = latest(series)
        assert found["ApproximateBacklogSize"].maximum == 3
        assert found["HasBacklogWithoutCapacity"].maximum == 1
        assert found["ApproximateAgeOfOldestRequest"].maximum > 0
        assert "InvocationsProcessed" not in found
        gateway.put(route(variant("AllTraffic", [gateway.worker().url]), async_output=OUTPUT))
        gateway.until(lambda: len(objects.puts) == 3, "all are done")
        gateway.until(lambda: gateway.gateway.metrics.async_done == 3, "and counted")
        look(gateway)
        found = latest(series)
        assert found["InvocationsProcessed"].total == 3
        assert found["InvocationFailures"].total == 0
        assert found["TimeInBacklog"].count == 3
        assert found["ModelLatency"].count == 3
        assert found["ApproximateBacklogSizePerInstance"].minimum == 0
        assert "Invocations" not in found, "AWS does not publish it for asynchronous endpoints"


@pytest.mark.parametrize(
    ("parameters", "failure"),
    [({"InputLocation": "s3://in/none"}, "RequestDownloadFailures"), ({"Body": b"x"}, "Invocation4XXErrors")],
)
def test_a_failure_is_published_by_its_kind(tmp_path: Path, parameters: dict[str, Any], failure: str) -> None:
    async def refuse(exchange: Exchange) -> None:
        exchange.whole(b"bad prompt", status="400 Bad Request")

    objects, series = MemoryObjects(), MemorySeries()
    with told(tmp_path, objects, series) as gateway:
        gateway.serve(refuse, async_output=OUTPUT)
        gateway.boto.invoke_endpoint_async(EndpointName="ep", **parameters)
        gateway.until(lambda: objects.puts, "the outcome")
    found = latest(series)
    assert found["InvocationFailures"].total == 1
    assert found[failure].total == 1


def test_an_output_that_cannot_be_stored_is_published_as_a_failure(tmp_path: Path) -> None:
    objects, series = MemoryObjects(), MemorySeries()
    objects.failure = ObjectFailed("access is denied")
    with told(tmp_path, objects, series) as gateway:
        gateway.serve(async_output=OUTPUT)
        gateway.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x")
        gateway.until(lambda: "async.outcome_lost" in gateway.log.getvalue(), "the failure is told")
    assert latest(series)["ResponseUploadFailures"].total == 1


def test_invocations_accepted_before_a_restart_are_in_the_backlog(tmp_path: Path) -> None:
    objects, series = MemoryObjects(), MemorySeries()
    sleeping = route(asleep(), async_output=OUTPUT)
    with told(tmp_path, objects, series) as first:
        first.put(sleeping)
        first.boto.invoke_endpoint_async(EndpointName="ep", Body=b"x")
    with told(tmp_path, objects, series, routes=[sleeping]) as second:
        second.until(lambda: second.gateway.metrics.async_waiting == 1, "it is read from the folder")
        look(second)
    assert latest(series)["ApproximateBacklogSize"].maximum == 1
