"""Prometheus metrics of a server for models' own code."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from starlette.responses import Response

from headrace.handlers.pool import HandlerPool
from headrace.server.base_service import ServerPhase
from headrace.server.handlers.service import CodeService

_OWN: Final = ("headrace_", "process_")


def handler_metrics(service: CodeService) -> Response:
    """Return the metrics as text."""
    is_serving = service.phase in {ServerPhase.READY, ServerPhase.TERMINATING}
    registry = CollectorRegistry()
    registry.register(_Families(service.pools if is_serving else ()))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def pool_metrics(pool: HandlerPool) -> bytes:
    """Return the metrics of children beside an engine as text."""
    registry = CollectorRegistry()
    registry.register(_Families([pool], has_process=False))
    return generate_latest(registry)


class _Families(Collector):
    def __init__(self, pools: Sequence[HandlerPool], *, has_process: bool = True) -> None:
        self._pools = pools
        self._has_process = has_process

    def collect(self) -> Iterator[Metric]:
        own = chain.from_iterable(map(families, self._pools))
        others = (family for family in reported(self._pools) if not family.name.startswith(_OWN))
        yield from merge_families([*own, *others])
        if self._has_process:
            yield from ProcessCollector(registry=None).collect()


def merge_families(collected: Iterable[Metric]) -> Iterator[Metric]:
    """
    Yield each metric once, with the samples of all models: Prometheus refuses one that is declared twice.

    Samples with the same labels, which versions of one model have, are added up.
    """
    by_name: dict[str, Metric] = {}
    for family in collected:
        known = by_name.setdefault(family.name, family)
        if known is not family and known.type == family.type:
            known.samples = _sums([*known.samples, *family.samples])
    yield from by_name.values()


def _sums(samples: Iterable[Sample]) -> list[Sample]:
    sums: dict[tuple[str, frozenset[tuple[str, str]]], Sample] = {}
    for sample in samples:
        key = (sample.name, frozenset(sample.labels.items()))
        known = sums.get(key)
        sums[key] = sample if known is None else known._replace(value=known.value + sample.value)
    return list(sums.values())


def reported(pools: Iterable[HandlerPool]) -> Iterator[Metric]:
    """Yield the metrics that code prints; versions of one model report to the same metrics."""
    for metrics in {id(pool.code_metrics): pool.code_metrics for pool in pools}.values():
        yield from metrics.families()


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
        ("headrace_handler_late_calls", "Calls that exceeded a time limit.", counts.late_calls),
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
