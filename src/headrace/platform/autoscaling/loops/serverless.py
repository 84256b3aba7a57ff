"""
Scaling of serverless variants: one worker while there are requests, none after an idle time.

The waker starts the worker again when a request arrives. With `ProvisionedConcurrency` the worker always runs.
"""

from collections.abc import Iterator
from contextlib import suppress

from headrace.core.telemetry import get_logger
from headrace.platform.autoscaling.planning.targets import TargetKey
from headrace.platform.autoscaling.records.capacity import Capacity, read_capacity, write_capacity
from headrace.platform.cloudwatch.metrics.metric import Metric, SeriesReader
from headrace.platform.control.model.endpoint import ENDPOINT
from headrace.platform.control.model.workload import serving_revision
from headrace.platform.state.records import Record
from headrace.platform.state.store import Store
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.scope import AwsScope

_FINE_S, _COARSE_S = 10, 60
_FINE_UP_TO_S = 3600.0
"""Longest idle time that is read in points of ten seconds, which are kept for three hours."""


def scale_idle_to_zero(
    store: Store, series: SeriesReader, aws_scope: AwsScope, idle_s: float, *, now_s: float, awake_since_s: float
) -> bool:
    """
    Stop the workers of serverless variants that were idle for `idle_s`, if it is not 0; return whether others run.

    Raises `Conflict`.
    """
    is_any = False
    for key, capacity in _running(store) if idle_s else ():
        is_any = True
        is_due = now_s - max(capacity.since_s, awake_since_s) >= idle_s
        if capacity.is_scalable and is_due and not _is_used(series, key, since_s=now_s - idle_s, now_s=now_s):
            with suppress(AwsError, LookupError):  # an update has begun, or it was deleted
                write_capacity(store, aws_scope, key, 0)
            get_logger().info("serverless.idle", target=key.resource_id, idle_s=idle_s)
    return is_any


def _running(store: Store) -> Iterator[tuple[TargetKey, Capacity]]:
    """Yield the serverless variants that have a worker and no provisioned concurrency."""
    for record in store.list(ENDPOINT):
        if not isinstance(record, Record) or record.deleting_s is not None:
            continue
        for workload in serving_revision(record).workloads:
            if workload.serverless is None or workload.serverless.provisioned_concurrency:
                continue
            key = TargetKey.of_variant(record.name, workload.variant)
            capacity = read_capacity(store, key)
            if capacity is not None and capacity.desired > 0:
                yield key, capacity


def _is_used(series: SeriesReader, key: TargetKey, *, since_s: float, now_s: float) -> bool:
    """Return whether requests were in flight or ended: a long request ends late, and a short one is not sampled."""
    dimensions = (("EndpointName", key.endpoint), ("VariantName", key.variant))
    period_s = _FINE_S if now_s - since_s <= _FINE_UP_TO_S else _COARSE_S
    for name in ("Invocations", "ConcurrentRequestsPerModel"):
        metric = Metric(namespace="AWS/SageMaker", name=name, dimensions=dimensions)
        points = series.read(metric, start_s=since_s - period_s, end_s=now_s + period_s, period_s=period_s)
        if any(point.total > 0 for point in points):
            return True
    return False
