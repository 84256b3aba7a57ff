"""The CloudWatch metrics of invocations."""

from dataclasses import replace

import pytest

from headrace.platform.cloudwatch.metrics.metric import Metric, Point
from headrace.platform.cloudwatch.series.memory import MemorySeries
from headrace.platform.cluster.model_host.protocol import ModelTiming
from headrace.platform.gateway.metrics import InvocationRecord
from headrace.platform.gateway.publishing import NAMESPACE, Publisher, Sampler
from headrace.platform.state.routes import AsyncOutput, ComponentRoute, Route

from .routes import route, variant

T0 = 1_700_000_000.0 // 60 * 60
VARIANT = (("EndpointName", "ep"), ("VariantName", "v"))
COMPONENT = (("InferenceComponentName", "ic"),)


def record(**more: object) -> InvocationRecord:
    made = InvocationRecord(request_id="r", api="InvokeEndpoint", endpoint="ep", started_s=10.0)
    facts = {"variant": "v", "status": 200, "asked_s": 10.002, "ended_s": 10.5, "model_status": 200} | more
    for name, value in facts.items():
        setattr(made, name, value)
    return made


def two() -> Route:
    """A variant with two replicas, and a component with three copies."""
    copies = ComponentRoute(name="ic", variant="host", route=variant("v", ["c", "d", "e"]))
    return replace(route(variant("v", ["a", "b"])), components=(copies,))


def hosted(instances: int = 2) -> Route:
    """Two components on a variant's instances: one with three copies, one at zero."""
    awake = ComponentRoute(name="ic", variant="v", route=variant("v", ["c", "d", "e"]))
    asleep = ComponentRoute(name="idle", variant="v", route=variant("v", []))
    return replace(route(replace(variant("v"), instances=instances)), components=(awake, asleep))


def published(
    *records: InvocationRecord, to: Route | None = None, is_strict: bool = False
) -> dict[tuple[str, str], Point]:
    """Return the published points by name and first dimension value."""
    series = MemorySeries()
    publisher = Publisher(series, is_strict=is_strict, clock=lambda: T0)
    for record in records:
        publisher.publish(record, to or two())
    return points(series)


def points(series: MemorySeries) -> dict[tuple[str, str], Point]:
    return {
        (metric.name, metric.dimensions[0][1]): series.read(metric, start_s=T0, end_s=T0 + 60, period_s=60)[0]
        for metric in series.list(namespace=NAMESPACE)
    }


def test_containers_have_latencies_and_one_that_is_named_has_its_requests() -> None:
    pipeline = record(containers=("pre", "model"), earlier_s=(0.1,), head_s=10.3, asked_s=10.1)
    named = record(containers=("other",), is_direct=True, head_s=10.3, status=424, model_status=400)
    unanswered = record(containers=("pre", "model"), status=424)
    found = published(pipeline, named, unanswered)
    latencies = {name: found["ContainerLatency", name].maximum for name in ("pre", "model", "other")}
    assert latencies == pytest.approx({"pre": 100_000, "model": 300_000, "other": 498_000})
    assert {name for name, container in found if container == "other"} == {
        *("ContainerLatency", "OverheadLatency", "Invocations", "Invocation4XXErrors", "Invocation5XXErrors")
    }
    assert {name for name, container in found if container == "pre"} == {"ContainerLatency"}
    assert (found["Invocations", "ep"].total, found["Invocations", "other"].total) == (3, 1)
    assert (pipeline.container, unanswered.container, record().container) == ("model", "pre or model", "primary")


def test_a_request_is_counted_for_its_variant() -> None:
    found = published(record(), record(ended_s=11.0))
    assert found["Invocations", "ep"].total == 2
    assert found["InvocationsPerInstance", "ep"].total == 1.0
    latency = found["ModelLatency", "ep"]
    assert [latency.minimum, latency.maximum] == pytest.approx([498_000, 998_000])
    assert latency.unit == "Microseconds"
    assert found["OverheadLatency", "ep"].maximum == pytest.approx(2000)
    for name in ("Invocation4XXErrors", "Invocation5XXErrors", "InvocationModelErrors"):
        assert (found[name, "ep"].total, found[name, "ep"].count) == (0, 2)
    assert ("HeldRequests", "ep") not in found


def test_a_request_to_a_component_is_counted_for_the_component_and_for_the_instances_that_host_it() -> None:
    found = published(record(component="ic"), record(component="ic", status=424, model_status=500), to=hosted())
    assert found["InvocationsPerCopy", "ic"].total == pytest.approx(2 / 3)
    assert found["Invocations", "ep"].total == 2
    assert found["InvocationsPerInstance", "ep"].total == 1.0, "each is half a request by instance"
    assert {name for name, where in found if where == "ep"} - {name for name, where in found if where == "ic"} == {
        "InvocationsPerInstance"
    }
    assert found["InvocationModelErrors", "ep"].total == 1


def test_in_strict_mode_a_request_to_a_component_is_counted_for_the_component_only() -> None:
    found = published(record(component="ic"), to=hosted(), is_strict=True)
    assert found["InvocationsPerCopy", "ic"].total == pytest.approx(1 / 3)
    assert {dimension for _, dimension in found} == {"ic"}


def test_a_component_without_copies_counts_as_a_failure_of_its_host_too() -> None:
    failed = record(variant="", component="idle", asked_s=None, is_without_capacity=True, status=400)
    names = {("NoCapacityInvocationFailures", "ep"), ("NoCapacityInvocationFailures", "idle")}
    assert set(published(failed, to=hosted())) == names
    assert set(published(failed, to=hosted(), is_strict=True)) == names - {("NoCapacityInvocationFailures", "ep")}


@pytest.mark.parametrize(
    ("facts", "errors"),
    [
        ({"status": 424, "error": "ModelError", "model_status": 500}, (1, 0, 1)),
        ({"status": 400, "model_status": 400}, (1, 0, 1)),
        ({"status": 503, "error": "ServiceUnavailable", "model_status": 0}, (0, 1, 0)),
        ({"status": 499, "is_gone": True}, (0, 0, 0)),
    ],
)
def test_errors_are_counted_by_kind(facts: dict[str, object], errors: tuple[int, int, int]) -> None:
    found = published(record(**facts))
    names = ("Invocation4XXErrors", "Invocation5XXErrors", "InvocationModelErrors")
    assert tuple(found[name, "ep"].total for name in names) == errors


def test_a_stream_publishes_its_first_chunk_latency_and_whether_it_broke() -> None:
    found = published(record(first_s=10.1), record(first_s=10.1, error="ModelStreamError"))
    assert found["FirstChunkLatency", "ep"].maximum == pytest.approx(100_000)
    assert found["MidStreamErrors", "ep"].total == 1


def test_a_held_request_publishes_its_hold_time() -> None:
    found = published(record(held_s=0.25))
    assert found["HeldRequests", "ep"].total == 1
    assert found["HoldTime", "ep"].total == pytest.approx(250_000)
    assert ("ModelSetupTime", "ep") not in found
    serverless = route(replace(variant("v", ["a"]), max_concurrency=2))
    setup = published(record(held_s=0.25), record(), to=serverless)["ModelSetupTime", "ep"]
    assert (setup.count, setup.unit) == (1, "Microseconds")
    assert setup.total == pytest.approx(250_000)


def test_a_request_without_capacity_counts_as_a_failure_of_its_target() -> None:
    without_variant = record(variant="", asked_s=None, is_without_capacity=True, status=400)
    component = record(variant="", component="ic", asked_s=None, is_without_capacity=True, status=400)
    found = published(without_variant, component, to=route(variant("v"), variant("w", ["a"])))
    assert {key: point.total for key, point in found.items()} == {
        ("NoCapacityInvocationFailures", "ep"): 1,
        ("NoCapacityInvocationFailures", "ic"): 1,
    }


def test_concurrency_is_the_mean_per_replica_over_ten_seconds() -> None:
    series, now = MemorySeries(), [T0]
    publisher = Publisher(series, clock=lambda: now[0])
    loads: dict[str, int] = {}
    held: dict[str, int] = {}
    sampler = Sampler(
        publisher=publisher,
        sink=series,
        routes=lambda: {"ep": two()},
        loads=lambda: loads,
        held=lambda: held,
        clock=lambda: now[0],
    )
    for second in range(21):
        now[0] = T0 + second
        loads = {"a": 4, "c": 3, "d": 3} if second < 5 else {}
        sampler.sample()
    metric = Metric(namespace=NAMESPACE, name="ConcurrentRequestsPerModel", dimensions=VARIANT)
    found = series.read(metric, start_s=T0, end_s=T0 + 20, period_s=10)
    assert [(point.start_s - T0, point.total, point.count) for point in found] == [(0, 1.0, 1), (10, 0.0, 1)]
    metric = Metric(namespace=NAMESPACE, name="ConcurrentRequestsPerCopy", dimensions=COMPONENT)
    assert [point.total for point in series.read(metric, start_s=T0, end_s=T0 + 20, period_s=10)] == [1.0, 0.0]


def test_concurrency_of_a_host_is_the_mean_per_instance_over_all_components() -> None:
    series, now = MemorySeries(), [T0]
    sampler = Sampler(
        publisher=Publisher(series, clock=lambda: now[0]),
        sink=series,
        routes=lambda: {"ep": hosted()},
        loads=lambda: {"c": 3, "e": 2},
        held=dict,
        clock=lambda: now[0],
    )
    for now[0] in (T0, T0 + 10):
        sampler.sample()
    found = points(series)
    assert found["ConcurrentRequestsPerModel", "ep"].total == 2.5
    assert found["ConcurrentRequestsPerCopy", "ic"].total == pytest.approx(5 / 3)


def test_held_requests_count_for_an_endpoint_without_replicas() -> None:
    series, now = MemorySeries(), [T0]
    sampler = Sampler(
        publisher=Publisher(series, clock=lambda: now[0]),
        sink=series,
        routes=lambda: {"ep": route(variant("v")), "idle": route(variant("v"), endpoint="idle")},
        loads=dict,
        held=lambda: {"ep": 7},
        clock=lambda: now[0],
    )
    for now[0] in (T0, T0 + 10):
        sampler.sample()
    assert {key: point.total for key, point in points(series).items()} == {("ConcurrentRequestsPerModel", "ep"): 7}


def sampled(
    routes: Route, asked: list[InvocationRecord], *, held: int = 0, is_strict: bool = False
) -> dict[tuple[str, str], Point]:
    """Return the metrics of one window of ten seconds in which these requests end."""
    series, now = MemorySeries(), [T0]
    publisher = Publisher(series, is_strict=is_strict, clock=lambda: now[0])
    sampler = Sampler(
        publisher=publisher,
        sink=series,
        routes=lambda: {"ep": routes},
        loads=dict,
        held=lambda: {"ep": held} if held else {},
        clock=lambda: now[0],
    )
    sampler.sample()
    for record in asked:
        publisher.publish(record, routes)
    now[0] = T0 + 10
    sampler.sample()
    return points(series)


def test_an_idle_endpoint_publishes_zero_so_that_it_can_be_scaled_in() -> None:
    found = sampled(two(), [record(component="ic")])
    assert found["InvocationsPerInstance", "ep"].total == 0
    assert found["Invocations", "ep"].total == 0
    assert found["InvocationsPerCopy", "ic"].count == 1, "it was asked: that is all there is to say"
    assert found["InvocationsPerCopy", "ic"].total == pytest.approx(1 / 3)
    assert "ModelLatency" not in {name for name, where in found if where == "ep"}


def test_idle_hosts_publish_zero_while_all_components_are_at_zero() -> None:
    asleep = replace(hosted(), components=(ComponentRoute(name="idle", variant="v", route=variant("v", [])),))
    assert sampled(asleep, [])["InvocationsPerInstance", "ep"].total == 0
    assert ("InvocationsPerInstance", "ep") not in sampled(asleep, [], is_strict=True)
    asked = sampled(hosted(), [record(component="ic")])
    assert (asked["InvocationsPerInstance", "ep"].total, asked["InvocationsPerInstance", "ep"].count) == (0.5, 1)


def test_an_endpoint_that_does_not_serve_publishes_nothing() -> None:
    assert ("Invocations", "ep") not in sampled(route(variant("v")), [], held=1)
    asynchronous = route(variant("v", ["a"]), async_output=AsyncOutput(output_path="s3://b"))
    assert ("Invocations", "ep") not in sampled(asynchronous, [])


def test_requests_are_measured_for_the_configuration_of_their_worker_too() -> None:
    series = MemorySeries()
    publisher = Publisher(series, clock=lambda: T0)
    for latency_s, config, status in ((0.1, "old", 200), (0.3, "old", 500), (0.2, "new", 200), (0.2, "", 200)):
        publisher.publish(record(ended_s=10.002 + latency_s, config=config, status=status), two())
    publisher.publish_configs()
    publisher.publish_configs()

    def point(name: str, config: str) -> Point:
        dimensions = (("EndpointConfigName", config), *VARIANT)
        metric = Metric(namespace=NAMESPACE, name=name, dimensions=dimensions)
        (found,) = series.read(metric, start_s=T0, end_s=T0 + 60, period_s=60)
        return found

    assert (point("Invocations", "old").total, point("Invocations", "new").total) == (2.0, 1.0)
    assert (point("Invocation5XXErrors", "old").total, point("Invocation5XXErrors", "new").total) == (1.0, 0.0)
    old = point("ModelLatency", "old")
    assert (old.unit, old.count, round(old.minimum), round(old.maximum)) == ("Microseconds", 2.0, 100_000, 300_000)
    configs = {
        metric.dimensions[0][1]
        for metric in series.list(namespace=NAMESPACE)
        if metric.dimensions[0][0] == "EndpointConfigName"
    }
    assert configs == {"old", "new"}


def test_requests_for_a_model_count_hits_waits_and_loads() -> None:
    hit, loaded = ModelTiming(wait=0), ModelTiming(wait=5000, download=1000, load=3900, unload=(70, 80))
    found = published(record(), *(record(target_timing=timing) for timing in (hit, hit, loaded)))
    hits = found["ModelCacheHit", "ep"]
    assert (hits.count, hits.total) == (3, 2)
    names = ("ModelLoadingWaitTime", "ModelDownloadingTime", "ModelLoadingTime", "ModelUnloadingTime")
    assert [(found[name, "ep"].count, found[name, "ep"].total) for name in names] == [
        (1, 5000),
        (1, 1000),
        (1, 3900),
        (2, 150),
    ]
    assert found["ModelUnloadingTime", "ep"].unit == "Microseconds"
