"""Metrics read from the `/metrics` pages of workers, and those of current and desired capacity."""

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from headrace.core.engine_stats import EngineStats
from headrace.core.exposition import render
from headrace.core.metrics import Metrics
from headrace.platform.cloudwatch.metrics.metric import Metric
from headrace.platform.cloudwatch.metrics.worker_page import (
    WorkerMetric,
    WorkerReading,
    metrics_between,
    read_page,
    reading_between,
)
from headrace.platform.cloudwatch.series.memory import MemorySeries
from headrace.platform.cluster.launcher import Handle, WorkerPhase
from headrace.platform.control.loops.scraper import (
    MAX_PAGE_BYTES,
    CapacityRecorder,
    Scraper,
    fetch,
    of_component,
    series_of,
)
from headrace.platform.control.model.component import INFERENCE_COMPONENT
from headrace.platform.control.model.worker import WORKER, CopySpec, ReplicaSpec, ReplicaStatus
from headrace.platform.state.store import open_store
from tests.platform.control.broken_records import insert_record
from tests.platform.control.calls import component, host, model, until
from tests.platform.control.support import Platform


def page(**more: float) -> str:
    numbers = {"tokens": 100, "cpu": 5, "first": 0, "second": 0, "sum": 0} | more
    return f"""
# HELP vllm:generation_tokens_total Tokens.
vllm:generation_tokens_total{{model_name="a b, c",engine="0"}} {numbers["tokens"]}
vllm:generation_tokens_total{{model_name="a b, c",engine="1"}} 1
vllm:num_requests_waiting{{model_name="m"}} 3.0
vllm:kv_cache_usage_perc{{model_name="m"}} 0.25
process_cpu_seconds_total {numbers["cpu"]}
process_resident_memory_bytes 2.5e+08
vllm:time_to_first_token_seconds_bucket{{le="0.1",model_name="m"}} {numbers["first"]}
vllm:time_to_first_token_seconds_bucket{{model_name="m",le="0.3"}} {numbers["second"]}
vllm:time_to_first_token_seconds_bucket{{model_name="m",le="+Inf"}} {numbers["second"]}
vllm:time_to_first_token_seconds_sum{{model_name="m"}} {numbers["sum"]}
broken line without end {{
nan_value NaN
headrace_container_process_cpu_seconds_total{{container="pre"}} {numbers["cpu"]}
headrace_container_process_resident_memory_bytes{{container="pre"}} 1e+08
"""


def by_name(seen: list[WorkerMetric]) -> dict[str, WorkerMetric]:
    return {metric.name: metric for metric in seen}


def test_the_first_page_yields_gauges() -> None:
    seen = by_name(metrics_between(None, read_page(page(), at_s=100), memory_bytes=1_000_000_000))
    assert {name: (metric.point.total, metric.point.unit) for name, metric in seen.items()} == {
        "QueueDepth": (3, "Count"),
        "KVCacheUtilization": (25, "Percent"),
        "MemoryUtilization": (25, "Percent"),
    }


def test_two_pages_yield_rates_and_latencies() -> None:
    before, now = read_page(page(), at_s=100), read_page(page(tokens=200, cpu=20, first=3, second=4, sum=0.4), at_s=110)
    seen = by_name(metrics_between(before, now, memory_bytes=1))
    assert seen["OutputTokensPerSecond"].point.total == 10
    assert seen["CPUUtilization"].point.total == 150
    ttft = seen["TimeToFirstToken"].point
    assert [ttft.count, ttft.total] == pytest.approx([4, 400_000])
    assert [value for value, _ in ttft.values] == pytest.approx([50_000, 200_000])
    assert [count for _, count in ttft.values] == [3, 1]
    assert "InterTokenLatency" not in seen


def test_counters_that_were_reset_yield_no_rates() -> None:
    before, now = read_page(page(tokens=500, cpu=50, first=9, second=9, sum=2), at_s=100), read_page(page(), at_s=110)
    assert set(by_name(metrics_between(before, now, memory_bytes=1))) == {
        "QueueDepth",
        "KVCacheUtilization",
        "MemoryUtilization",
    }


def test_unknown_host_memory_yields_no_memory_utilization() -> None:
    assert "MemoryUtilization" not in by_name(metrics_between(None, read_page(page(), at_s=100), memory_bytes=0))


def test_the_page_of_a_headrace_worker_is_parsed() -> None:
    def text(seconds: float) -> str:
        metrics = Metrics(stats=EngineStats, info=lambda: None, in_flight=lambda: 0)
        for _ in range(int(seconds)):
            metrics.ttft_s.observe(0.2)
            metrics.itl_s.observe(0.02)
        return render(metrics).decode()

    seen = by_name(metrics_between(read_page(text(1), at_s=0), read_page(text(3), at_s=10), memory_bytes=10**9))
    assert set(seen) == {
        "QueueDepth",
        "KVCacheUtilization",
        "MemoryUtilization",
        "OutputTokensPerSecond",
        "CPUUtilization",
        "TimeToFirstToken",
        "InterTokenLatency",
    }
    assert seen["TimeToFirstToken"].point.count == 2


def test_the_dimensions_of_a_worker_name_its_variant_or_component() -> None:
    own = ReplicaSpec(endpoint="e", endpoint_uid="u", variant="v", revision=1, log_group="g", log_stream="s")
    variant = series_of(own)
    assert variant == ("/aws/sagemaker/Endpoints", (("EndpointName", "e"), ("VariantName", "v")))
    copy = CopySpec(component="c", component_uid="u", instance="i", requirements={})
    component = series_of(msgspec.structs.replace(own, copy=copy))
    assert component == ("/aws/sagemaker/InferenceComponents", (("InferenceComponentName", "c"),))


async def _fetched(answer: bytes) -> tuple[str | None, bytes]:
    asked = b""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked = await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        return await fetch(f"http://127.0.0.1:{port}", token="secret"), asked


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (b"HTTP/1.0 200 OK\r\nA: b\r\n\r\na 1\n", "a 1\n"),
        (b"HTTP/1.0 404 Not Found\r\n\r\nno", None),
        (b"", None),
        (b"garbage", None),
        (b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * (MAX_PAGE_BYTES + 1), None),
    ],
)
def test_a_page_is_fetched_with_the_token_and_within_bounds(answer: bytes, wanted: str | None) -> None:
    found, asked = asyncio.run(_fetched(answer))
    assert found == wanted
    assert b"Authorization: Bearer secret\r\n" in asked


def test_an_unreachable_worker_has_no_page() -> None:
    assert asyncio.run(fetch("http://127.0.0.1:1")) is None


async def _two_passes(series: MemorySeries, *, memory_bytes: int | None = None) -> tuple[int, int]:
    """A ready worker, one that does not answer, and one that is not ready; two passes ten seconds apart."""
    pages, now = [page(), page(tokens=200, cpu=20, first=3, second=4, sum=0.4)], [100.0]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + pages.pop(0).encode())
        writer.close()

    with contextlib.closing(open_store("sqlite://")) as store:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            for name, phase, where in (
                ("a", WorkerPhase.READY, url),
                ("b", WorkerPhase.READY, "http://127.0.0.1:1"),
                ("c", WorkerPhase.STARTING, url),
            ):
                handle = Handle(launcher="fake", url=where, facts={}, memory_bytes=memory_bytes)
                spec = ReplicaSpec(
                    endpoint="e", endpoint_uid="u", variant="v", revision=1, log_group="g", log_stream="s"
                )
                store.create(WORKER, name, spec=spec, status=ReplicaStatus(phase=phase, handle=handle))
            scraper = Scraper(store=store, sink=series, memory_bytes=10**9, clock=lambda: now[0])
            first = await scraper.pass_once()
            assert scraper.readings["a"].num_waiting == 3.0
            assert "c" not in scraper.readings
            now[0] += 10
            second = await scraper.pass_once()
            assert scraper.readings["a"].cpu_cores == 1.5
            return first, second


def test_ready_workers_are_scraped_and_a_silent_one_does_not_delay_others() -> None:
    series = MemorySeries()
    assert asyncio.run(_two_passes(series)) == (2, 2)
    dimensions = (("EndpointName", "e"), ("VariantName", "v"))
    found = {}
    for name in ("QueueDepth", "TimeToFirstToken", "OutputTokensPerSecond"):
        metric = Metric(namespace="/aws/sagemaker/Endpoints", name=name, dimensions=dimensions)
        found[name] = [point.total for point in series.read(metric, start_s=0, end_s=200, period_s=10)]
    assert found["QueueDepth"] == [3, 3]
    assert found["TimeToFirstToken"] == pytest.approx([400_000])
    assert found["OutputTokensPerSecond"] == [10]
    named = {"EndpointName": "e", "VariantName": "v", "ContainerName": "pre"}
    for name, wanted in (("CPUUtilization", [150]), ("MemoryUtilization", [10, 10])):
        metric = Metric(namespace="/aws/sagemaker/Endpoints", name=name, dimensions=tuple(sorted(named.items())))
        assert [point.total for point in series.read(metric, start_s=0, end_s=200, period_s=10)] == wanted


@pytest.mark.parametrize(("memory_bytes", "percent"), [(None, [25, 25]), (5 * 10**9, [5, 5]), (0, [])])
def test_memory_utilization_is_relative_to_the_host_of_the_worker(
    memory_bytes: int | None, percent: list[float]
) -> None:
    series = MemorySeries()
    asyncio.run(_two_passes(series, memory_bytes=memory_bytes))
    dimensions = (("EndpointName", "e"), ("VariantName", "v"))
    metric = Metric(namespace="/aws/sagemaker/Endpoints", name="MemoryUtilization", dimensions=dimensions)
    points = series.read(metric, start_s=0, end_s=200, period_s=10)
    assert [point.total for point in points] == pytest.approx(percent)


def test_a_reading_has_the_newest_numbers_of_a_worker() -> None:
    before, now = read_page(page(), at_s=100), read_page(page(tokens=200, cpu=20), at_s=110)
    assert reading_between(before, now) == WorkerReading(
        output_tokens_per_s=10.0, num_waiting=3.0, kv_cache_share=0.25, cpu_cores=1.5, memory_bytes=2.5e8
    )
    first = reading_between(None, now)
    assert (first.output_tokens_per_s, first.cpu_cores, first.num_waiting) == (None, None, 3.0)
    assert reading_between(before, read_page("", at_s=110)) == WorkerReading()


NOW_S = 1_800_000_000.0


def values(series: MemorySeries, namespace: str, name: str, **dimensions: str) -> list[float]:
    metric = Metric(namespace=namespace, name=name, dimensions=tuple(sorted(dimensions.items())))
    return [point.total for point in series.read(metric, start_s=NOW_S, end_s=NOW_S + 100, period_s=10)]


def plain(client: Any) -> None:
    production = {"VariantName": "v", "ModelName": "m", "InstanceType": "ml.m5.large", "InitialInstanceCount": 2}
    client.create_endpoint_config(EndpointConfigName="plain", ProductionVariants=[production])
    client.create_endpoint(EndpointName="plain", EndpointConfigName="plain")


def test_instances_of_variants_and_copies_of_components_are_published(platform: Platform) -> None:
    client, series = platform.client("sagemaker"), MemorySeries()
    recorder = CapacityRecorder(store=platform.store, sink=series, clock=lambda: NOW_S)
    assert recorder.pass_once() == 0
    model(client, "m")
    host(client)
    plain(client)
    for name in ("ep", "plain"):
        platform.wait_for(client, name, "InService")
    component(client, "c", copies=3)
    until(client, "c", "InService", copies=3)
    assert recorder.pass_once() == 6
    of_variant = {"EndpointName": "plain", "VariantName": "v"}
    assert values(series, "/aws/sagemaker/Endpoints", "CurrentInstanceCount", **of_variant) == [2]
    assert values(series, "/aws/sagemaker/Endpoints", "DesiredInstanceCount", **of_variant) == [2]
    of_host = {"EndpointName": "ep", "VariantName": "AllTraffic"}
    assert values(series, "/aws/sagemaker/Endpoints", "CurrentInstanceCount", **of_host) == [1]
    copies = {"InferenceComponentName": "c"}
    assert values(series, "/aws/sagemaker/InferenceComponents", "CurrentCopyCount", **copies) == [3]
    assert values(series, "/aws/sagemaker/InferenceComponents", "DesiredCopyCount", **copies) == [3]


def test_zero_is_published_and_a_resource_in_deletion_is_not(platform: Platform) -> None:
    client, series = platform.client("sagemaker"), MemorySeries()
    model(client, "m")
    host(client)
    platform.wait_for(client, "ep", "InService")
    component(client, "c", copies=0)
    until(client, "c", "InService", copies=0)
    recorder = CapacityRecorder(store=platform.store, sink=series, clock=lambda: NOW_S)
    assert recorder.pass_once() == 4
    copies = {"InferenceComponentName": "c"}
    assert values(series, "/aws/sagemaker/InferenceComponents", "CurrentCopyCount", **copies) == [0]
    record = platform.store.get(INFERENCE_COMPONENT, "c")
    assert record is not None
    assert len(list(of_component(record))) == 2
    assert list(of_component(replace(record, deleting_s=NOW_S))) == []


def test_a_malformed_record_does_not_affect_others(platform: Platform) -> None:
    client, series = platform.client("sagemaker"), MemorySeries()
    model(client, "m")
    plain(client)
    platform.wait_for(client, "plain", "InService")
    insert_record(platform.store, INFERENCE_COMPONENT, "odd", {"endpoint_uid": "x", "revision": 7})
    recorder = CapacityRecorder(store=platform.store, sink=series, clock=lambda: NOW_S)
    assert recorder.pass_once() == 2


def test_an_idle_recorder_sleeps_until_a_write_and_can_be_cancelled() -> None:
    looked = []

    def clock() -> float:
        looked.append(1)
        return NOW_S

    async def live() -> None:
        store = open_store("sqlite://")
        try:
            task = asyncio.create_task(CapacityRecorder(store=store, sink=MemorySeries(), clock=clock).run())
            while not looked:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.05)
            task.cancel()
            assert [type(result) for result in await asyncio.gather(task, return_exceptions=True)] == [
                asyncio.CancelledError
            ]
        finally:
            store.close()

    asyncio.run(live())
    assert len(looked) == 1
