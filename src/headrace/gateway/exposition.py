"""The gateway's metrics in Prometheus' text format."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from headrace.gateway.metrics import GatewayMetrics, InvocationLabels
from headrace.http.prometheus import merge_families, metrics_page

_LABELS = InvocationLabels._fields


def families(metrics: GatewayMetrics) -> Iterator[Metric]:
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
    return metrics_page(families(metrics))


def merge(pages: Sequence[bytes]) -> bytes:
    """Return one page for the pages of several gateways: the sum of each series, of gauges too."""
    collected = (family for page in pages for family in text_string_to_metric_families(page.decode()))
    return metrics_page(merge_families(collected))


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
            distribution = getattr(counters, attribute)
            family.add_metric(labels, distribution.buckets(), sum_value=distribution.sum)
        yield family
