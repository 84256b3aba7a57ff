"""Current and desired capacity, recorded as metrics."""

import asyncio
from dataclasses import replace
from typing import Any

from headrace.cloudwatch.metrics.metric import Metric
from headrace.cloudwatch.series.memory import MemorySeries
from headrace.control.loops.capacity_recorder import CapacityRecorder, of_component
from headrace.control.model.component import INFERENCE_COMPONENT
from headrace.state.store import open_store
from tests.control.broken_records import insert_record
from tests.control.calls import component, host, model, until
from tests.control.support import Platform

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
