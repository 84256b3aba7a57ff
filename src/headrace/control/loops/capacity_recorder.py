"""
Publishes the current and desired capacity of endpoints and components, as a history that survives restarts.

AWS's CloudWatch has no such metrics: their names are members of the Describe operations. The recorder publishes every
ten seconds while there are endpoints, and otherwise sleeps until the next write to the store.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.cloudwatch.metrics.metric import Dimensions, Metric, MetricSink
from headrace.control.loops.store_access import run_periodically
from headrace.control.model.component import INFERENCE_COMPONENT, ComponentRecord, current_copies
from headrace.control.model.endpoint import ENDPOINT, EndpointRecord, variant_counts
from headrace.control.model.workload import serving_revision
from headrace.state.records import Unreadable
from headrace.state.store import Store

PERIOD_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityMetric:
    """A measurement of a current or desired capacity."""

    metric: Metric
    value: float


class CapacityRecorder:
    """A task that publishes capacities; `run` until cancelled."""

    def __init__(self, *, store: Store, sink: MetricSink, clock: Callable[[], float] = time.time) -> None:
        """
        Create the recorder.

        Args:
            store: The records of endpoints and components.
            sink: Takes the measurements.
            clock: Returns the time, seconds since 1970.
        """
        self._store = store
        self._sink = sink
        self._clock = clock

    async def run(self) -> None:
        """Publish until cancelled."""
        await run_periodically(
            self._pass, store=self._store, period_s=PERIOD_S, clock=self._clock, failure="capacities.failed"
        )

    async def _pass(self) -> int:
        return await asyncio.to_thread(self.pass_once)

    def pass_once(self) -> int:
        """Publish the current capacities; return the number of measurements."""
        now_s = self._clock()
        capacities = [
            *(capacity for record in self._store.list(ENDPOINT) for capacity in of_endpoint(record)),
            *(capacity for record in self._store.list(INFERENCE_COMPONENT) for capacity in of_component(record)),
        ]
        for capacity in capacities:
            self._sink.put(capacity.metric, capacity.value, now_s=now_s, unit="Count")
        return len(capacities)


def of_endpoint(record: EndpointRecord | Unreadable) -> Iterator[CapacityMetric]:
    """Yield the instance counts of each variant; nothing for an endpoint that is being deleted or cannot be read."""
    if isinstance(record, Unreadable) or record.deleting_s is not None:
        return
    revision = serving_revision(record)
    for workload in revision.workloads:
        if "ServerlessConfig" in revision.variant_config(workload.variant):
            continue
        dimensions = (("EndpointName", record.name), ("VariantName", workload.variant))
        counts = variant_counts(record, revision, workload)
        yield from _pair("/aws/sagemaker/Endpoints", "InstanceCount", dimensions, *counts)


def of_component(record: ComponentRecord | Unreadable) -> Iterator[CapacityMetric]:
    """Yield the copy counts of a component; nothing for an adapter, or if it is being deleted or cannot be read."""
    if isinstance(record, Unreadable) or record.deleting_s is not None or record.spec.revision.base:
        return
    dimensions = (("InferenceComponentName", record.name),)
    counts = current_copies(record), record.spec.revision.copies
    yield from _pair("/aws/sagemaker/InferenceComponents", "CopyCount", dimensions, *counts)


def _pair(namespace: str, word: str, dimensions: Dimensions, current: int, desired: int) -> Iterator[CapacityMetric]:
    for name, value in ((f"Current{word}", current), (f"Desired{word}", desired)):
        yield CapacityMetric(metric=Metric(namespace=namespace, name=name, dimensions=dimensions), value=float(value))
