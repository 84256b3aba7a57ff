"""The gateway's metrics in Prometheus' text format."""

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from headrace.gateway.metrics import GatewayMetrics, InvocationLabels, VariantMetrics

_LABELS = InvocationLabels._fields


def families(metrics: GatewayMetrics) -> Iterator[Metric]:
    """Yield all metric families."""
    yield GaugeMetricFamily("headrace_gateway_requests_in_flight", "Requests in the gateway now.", metrics.in_flight)
    yield GaugeMetricFamily(
        "headrace_gateway_requests_held", "Requests that wait for a replica now.", metrics.num_held()
    )
    yield from _counters(metrics)
    yield from _histograms(metrics)
    refused = CounterMetricFamily(
        "headrace_gateway_refused", "Requests that reached no worker, by the error they got.", labels=["error"]
    )
    for error, count in metrics.refused.items():
        refused.add_metric([error], count)
    yield refused
    held = HistogramMetricFamily(
        "headrace_gateway_held_seconds", "Time that requests were held for a replica that started or woke from zero."
    )
    held.add_metric([], metrics.held_s.buckets(), sum_value=metrics.held_s.sum)
    yield held
    num_stored, num_bytes = metrics.stored_responses()
    yield GaugeMetricFamily("headrace_gateway_stored_responses", "Stored responses (Responses API).", num_stored)
    yield GaugeMetricFamily("headrace_gateway_stored_responses_bytes", "Memory of stored responses, bytes.", num_bytes)
    yield GaugeMetricFamily(
        "headrace_gateway_async_waiting", "Asynchronous invocations that wait for a worker.", metrics.async_waiting
    )
    ended = CounterMetricFamily(
        "headrace_gateway_async_ended", "Asynchronous invocations by how they ended.", labels=["outcome"]
    )
    ended.add_metric(["done"], metrics.async_done)
    ended.add_metric(["failed"], metrics.async_failed)
    ended.add_metric(["expired"], metrics.async_expired)
    yield ended


def render(metrics: GatewayMetrics) -> bytes:
    """Render the metrics in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(metrics))
    return generate_latest(registry)


def merge(pages: Sequence[bytes]) -> bytes:
    """Return one page for the pages of several gateways: the sum of each series, of gauges too."""
    merged: dict[str, Metric] = {}
    sums: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for page in pages:
        for family in text_string_to_metric_families(page.decode()):
            merged.setdefault(family.name, family)
            values = sums.setdefault(family.name, {})
            for sample in family.samples:
                key = sample.name, tuple(sample.labels.items())
                values[key] = values.get(key, 0.0) + sample.value
    for name, family in merged.items():
        family.samples = [Sample(sample, dict(labels), value) for (sample, labels), value in sums[name].items()]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Merged(list(merged.values())))
    return generate_latest(registry)


class _Merged(Collector):
    """A `prometheus_client` collector of given families."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


class _Families(Collector):
    """A `prometheus_client` collector over the gateway's metrics."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return families(self._metrics)


def _counters(metrics: GatewayMetrics) -> Iterator[Metric]:
    rows = (
        ("invocations", "Requests for which a worker was chosen."),
        ("errors_4xx", "Requests that were answered 4xx."),
        ("errors_5xx", "Requests that were answered 5xx."),
        ("model_errors", "Requests that failed in the worker (ModelError)."),
        ("streams_broken", "Streams that ended with an error after their first byte."),
        ("clients_gone", "Requests whose client disconnected."),
        ("retries", "Requests that were sent to another replica because the first did not answer."),
    )
    for name, help_text in rows:
        family = CounterMetricFamily(f"headrace_gateway_{name}", help_text, labels=_LABELS)
        for labels, counters in metrics.counters():
            family.add_metric(labels, getattr(counters, name))
        yield family


def _histograms(metrics: GatewayMetrics) -> Iterator[Metric]:
    rows = (
        ("model_s", "model_seconds", "Time from the request to the worker to the end of its answer."),
        ("overhead_s", "overhead_seconds", "Time from the client's request head to the request to the worker."),
        ("first_part_s", "first_part_seconds", "Time from the request's head to the first part of the answer."),
    )
    for attribute, name, help_text in rows:
        family = HistogramMetricFamily(f"headrace_gateway_{name}", help_text, labels=_LABELS)
        for labels, counters in metrics.counters():
            _add(family, labels, counters, attribute)
        yield family


def _add(family: HistogramMetricFamily, labels: InvocationLabels, counters: VariantMetrics, attribute: str) -> None:
    distribution = getattr(counters, attribute)
    family.add_metric(labels, distribution.buckets(), sum_value=distribution.sum)
