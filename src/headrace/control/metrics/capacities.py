"""
Publishes the current and desired capacity of endpoints and components, as a history that survives restarts.

On AWS CloudWatch has no such metrics: the names are members of the Describe operations. It publishes every ten seconds
while there are endpoints, and otherwise sleeps until the next write to the store.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from headrace.cloudwatch.metrics.metric import Dimensions, Metric, MetricSink
from headrace.control.api.describe_endpoint import capacities_of
from headrace.control.loops.store_access import changes
from headrace.control.model.component_reading import is_readable as is_readable_component
from headrace.control.model.component_runtime import current_copies, desired_copies
from headrace.control.model.kinds import ENDPOINT, INFERENCE_COMPONENT
from headrace.control.model.reading import is_readable
from headrace.core.telemetry import get_logger
from headrace.state.records import RawRecord
from headrace.state.store import Store

PERIOD_S = 10.0
_BROKEN = (LookupError, TypeError, ValueError, AttributeError, msgspec.ValidationError)
"""Raised when JSON of another form is read."""


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
        with changes(self._store) as changed:
            while True:
                changed.clear()
                is_idle = False
                try:
                    is_idle = not await asyncio.to_thread(self.pass_once)
                except Exception:  # noqa: BLE001 -- an edge: logged and retried
                    get_logger().exception("capacities.failed")
                if is_idle:
                    await changed.wait()
                await asyncio.sleep(PERIOD_S - self._clock() % PERIOD_S)

    def pass_once(self) -> int:
        """Publish the present capacities; return the number of measurements."""
        now_s = self._clock()
        found: list[CapacityMetric] = []
        for kind, measure in ((ENDPOINT, of_endpoint), (INFERENCE_COMPONENT, of_component)):
            for record in self._store.list(kind):
                found += _readable(measure, record)
        for capacity in found:
            self._sink.put(capacity.metric, capacity.value, now_s=now_s, unit="Count")
        return len(found)


def _readable(read: Callable[[RawRecord], Iterable[CapacityMetric]], record: RawRecord) -> Sequence[CapacityMetric]:
    """Measure a record; nothing if it cannot be read, which its Describe operation reports."""
    try:
        return list(read(record))
    except _BROKEN:
        return []


def of_endpoint(record: RawRecord) -> Iterator[CapacityMetric]:
    """Yield the instances of each variant with instances, unless the endpoint is being deleted or cannot be read."""
    if record.deleting_s is not None or not is_readable(record):
        return
    for variant, (current, desired) in capacities_of(record).items():
        dimensions = (("EndpointName", record.name), ("VariantName", variant))
        yield from _pair("/aws/sagemaker/Endpoints", "InstanceCount", dimensions, current, desired)


def of_component(record: RawRecord) -> Iterator[CapacityMetric]:
    """Yield the copies of a component, unless it is being deleted or cannot be read."""
    if record.deleting_s is None and is_readable_component(record):
        dimensions = (("InferenceComponentName", record.name),)
        current, desired = current_copies(record), desired_copies(record)
        yield from _pair("/aws/sagemaker/InferenceComponents", "CopyCount", dimensions, current, desired)


def _pair(namespace: str, word: str, dimensions: Dimensions, current: int, desired: int) -> Iterator[CapacityMetric]:
    for name, value in ((f"Current{word}", current), (f"Desired{word}", desired)):
        yield CapacityMetric(metric=Metric(namespace=namespace, name=name, dimensions=dimensions), value=float(value))
