"""Prometheus metrics of a server for a model's own code."""

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from starlette.responses import Response

from headrace.handlers.pool import HandlerPool
from headrace.server.handlers.service import HandlerService
from headrace.server.service import ServerPhase

_OWN: Final = ("headrace_", "process_")


def handler_metrics(service: HandlerService) -> Response:
    """Return the metrics as text."""
    pool = service.pool if service.phase in {ServerPhase.READY, ServerPhase.TERMINATING} else None
    registry = CollectorRegistry()
    registry.register(_Families(pool))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def pool_metrics(pool: HandlerPool) -> bytes:
    """Return the metrics of children beside an engine as text."""
    registry = CollectorRegistry()
    registry.register(_Pool(pool))
    return generate_latest(registry)


class _Pool(Collector):
    def __init__(self, pool: HandlerPool) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        yield from families(self._pool)
        yield from _reported(self._pool)


class _Families(Collector):
    def __init__(self, pool: HandlerPool | None) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        if self._pool is not None:
            yield from _Pool(self._pool).collect()
        yield from ProcessCollector(registry=None).collect()


def _reported(pool: HandlerPool) -> Iterator[Metric]:
    """Yield what the code reports on lines of its output; names of the server's own metrics are left out."""
    return (family for family in pool.code_metrics.families() if not family.name.startswith(_OWN))


def families(pool: HandlerPool) -> Iterator[Metric]:
    """Yield the metrics of the children of one model."""
    label, counts = [pool.spec.model_name], pool.counts
    for name, text, value in (
        ("headrace_handler_queued_requests", "Requests that wait for a child.", pool.num_queued),
        ("headrace_handler_running_requests", "Requests that children run.", pool.num_running),
        ("headrace_handler_ready_workers", "Children that have loaded the code.", pool.num_ready),
    ):
        gauge = GaugeMetricFamily(name, text, labels=["model"])
        gauge.add_metric(label, value)
        yield gauge
    for name, text, value in (
        ("headrace_handler_restarts", "Children that were started in place of one that failed.", counts.restarts),
        ("headrace_handler_late_calls", "Calls that passed a limit of time.", counts.late_calls),
    ):
        counter = CounterMetricFamily(name, text, labels=["model"])
        counter.add_metric(label, value)
        yield counter
    for name, text, distribution in (
        ("headrace_handler_call_duration_seconds", "Time of calls of user code.", counts.call_s),
        ("headrace_handler_queue_duration_seconds", "Time of requests in the queue.", counts.queue_s),
    ):
        histogram = HistogramMetricFamily(name, text, labels=["model"])
        histogram.add_metric(label, distribution.buckets(), distribution.sum)
        yield histogram
