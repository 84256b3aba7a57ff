"""
Publishes how much of everything serves and shall serve, so that there is a history of it that a restart survives.

CloudWatch has no such metrics on AWS: the names are the members that the Describe operations have.
Every ten seconds while there are endpoints; else it sleeps until the store says that something was written.
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
"""What reading JSON of another form raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One number."""

    metric: Metric
    value: float


class CapacityRecorder:
    """One task; `run` until cancelled."""

    def __init__(self, *, store: Store, sink: MetricSink, clock: Callable[[], float] = time.time) -> None:
        """
        Begin.

        Args:
            store: has endpoints and components.
            sink: takes what was seen.
            clock: seconds since 1970.
        """
        self._store = store
        self._sink = sink
        self._clock = clock

    async def run(self) -> None:
        """Look, for ever."""
        with changes(self._store) as changed:
            while True:
                changed.clear()
                is_idle = False
                try:
                    is_idle = not await asyncio.to_thread(self.pass_once)
                except Exception:  # noqa: BLE001 -- an edge: logged, and tried again
                    get_logger().exception("capacities.failed")
                if is_idle:
                    await changed.wait()
                await asyncio.sleep(PERIOD_S - self._clock() % PERIOD_S)

    def pass_once(self) -> int:
        """Publish what there is now; returns how many numbers that were."""
        now_s = self._clock()
        measured = [
            *(one for record in self._store.list(ENDPOINT) for one in _readable(of_endpoint, record)),
            *(one for record in self._store.list(INFERENCE_COMPONENT) for one in _readable(of_component, record)),
        ]
        for one in measured:
            self._sink.put(one.metric, one.value, now_s=now_s, unit="Count")
        return len(measured)


def _readable(read: Callable[[RawRecord], Iterable[Measured]], record: RawRecord) -> Sequence[Measured]:
    """What a record says; nothing of one that another version of Headrace wrote: whoever describes it tells why."""
    try:
        return list(read(record))
    except _BROKEN:
        return []


def of_endpoint(record: RawRecord) -> Iterator[Measured]:
    """Instances of each variant that has some; none of an endpoint that is being deleted, or cannot be read."""
    if record.deleting_s is not None or not is_readable(record):
        return
    for variant, (current, desired) in capacities_of(record).items():
        dimensions = (("EndpointName", record.name), ("VariantName", variant))
        yield from _pair("/aws/sagemaker/Endpoints", "InstanceCount", dimensions, current, desired)


def of_component(record: RawRecord) -> Iterator[Measured]:
    """Copies of a component; none of one that is being deleted, or cannot be read."""
    if record.deleting_s is None and is_readable_component(record):
        dimensions = (("InferenceComponentName", record.name),)
        current, desired = current_copies(record), desired_copies(record)
        yield from _pair("/aws/sagemaker/InferenceComponents", "CopyCount", dimensions, current, desired)


def _pair(namespace: str, word: str, dimensions: Dimensions, current: int, desired: int) -> Iterator[Measured]:
    for name, value in ((f"Current{word}", current), (f"Desired{word}", desired)):
        yield Measured(metric=Metric(namespace=namespace, name=name, dimensions=dimensions), value=float(value))
