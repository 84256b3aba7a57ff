"""
Publishes the current and desired capacity of endpoints and components, as a history that survives restarts.

AWS's CloudWatch has no such metrics: their names are members of the Describe operations. The recorder publishes every
ten seconds while there are endpoints, and otherwise sleeps until the next write to the store.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from headrace.cloudwatch.metrics.metric import Dimensions, Metric, MetricSink
from headrace.control.loops.store_access import run_periodically
from headrace.control.model.component import INFERENCE_COMPONENT, ComponentRecord, current_copies
from headrace.control.model.endpoint import ENDPOINT, EndpointRecord, variant_counts
from headrace.control.model.workload import serving_revision
from headrace.state.records import Unreadable
from headrace.state.store import Store

PERIOD_S = 10.0
CapacityMetric = tuple[Metric, float]
"""A measurement of a current or desired capacity."""


@dataclass(slots=True, kw_only=True)
class CapacityRecorder:
    """A task that publishes capacities; `run` until cancelled."""

    store: Store
    sink: MetricSink
    clock: Callable[[], float] = time.time

    async def run(self) -> None:
        """Publish until cancelled."""
        await run_periodically(
            partial(asyncio.to_thread, self.pass_once),
            store=self.store,
            period_s=PERIOD_S,
            clock=self.clock,
            failure="capacities.failed",
        )

    def pass_once(self) -> int:
        """Publish the current capacities; return the number of measurements."""
        now_s = self.clock()
        capacities = [
            *(capacity for record in self.store.list(ENDPOINT) for capacity in of_endpoint(record)),
            *(capacity for record in self.store.list(INFERENCE_COMPONENT) for capacity in of_component(record)),
        ]
        for metric, value in capacities:
            self.sink.put(metric, value, now_s=now_s, unit="Count")
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
        yield Metric(namespace=namespace, name=name, dimensions=dimensions), float(value)
