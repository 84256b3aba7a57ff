"""
CloudWatch metrics of each endpoint configuration, by which a deployment's new and old fleet are compared.

The measurements of a second are published together: a measurement by itself would cost as much again as those of the
variant. Source: SageMaker developer guide, "Auto-Rollback Configuration and Monitoring", dimension EndpointConfigName.
"""

from collections.abc import Iterator

from headrace.cloudwatch.metrics.buckets import Bucket
from headrace.cloudwatch.metrics.metric import Metric, Point
from headrace.gateway.metrics import MODEL_ERRORS, InvocationRecord

_LATENCIES = frozenset({"ModelLatency", "OverheadLatency"})
_Key = tuple[str, str, str]
"""Endpoint, variant and configuration."""


class ConfigSeries:
    """The measurements since they were last taken. Used by one thread, the event loop's."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._buckets: dict[_Key, dict[str, Bucket]] = {}

    def add(self, record: InvocationRecord) -> None:
        """Add a request that has ended."""
        found = self._buckets.setdefault((record.endpoint, record.variant, record.config), {})
        for name, value in _measured(record):
            bucket = found.get(name)
            if bucket is None:
                bucket = found[name] = Bucket()
            bucket.add(value, 1.0)

    def take(self, *, at_s: float) -> Iterator[tuple[Metric, Point]]:
        """Yield the measurements, and forget them."""
        taken, self._buckets = self._buckets, {}
        for (endpoint, variant, config), buckets in taken.items():
            dimensions = (("EndpointConfigName", config), ("EndpointName", endpoint), ("VariantName", variant))
            for name, bucket in buckets.items():
                unit = "Microseconds" if name in _LATENCIES else "None"
                metric = Metric(namespace=self._namespace, name=name, dimensions=dimensions)
                yield metric, bucket.point(at_s, unit)


def _measured(record: InvocationRecord) -> Iterator[tuple[str, float]]:
    yield "Invocations", 1.0
    yield "Invocation4XXErrors", float(400 <= record.status < 500 and not record.is_gone)
    yield "Invocation5XXErrors", float(record.status >= 500)
    yield "InvocationModelErrors", float(record.model_status >= 400 or record.error in MODEL_ERRORS)
    if record.model_s is not None and record.overhead_s is not None:
        yield "ModelLatency", record.model_s * 1e6
        yield "OverheadLatency", record.overhead_s * 1e6
