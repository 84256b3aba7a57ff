"""Prometheus metrics of a server for models' own code, and TorchServe's metrics API on an address of its own."""

import socket
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.serving.handlers.pool import HandlerPool
from headrace.serving.handlers.torchserve_models import Registered, TorchServeModels
from headrace.serving.http.prometheus import merge_families, metrics_page
from headrace.serving.server.base_service import ServerPhase
from headrace.serving.server.handlers.service import CodeService

_OWN: Final = ("headrace_", "process_")


def handler_metrics(service: CodeService) -> Response:
    """Answer with the metrics of all children and of this process."""
    is_serving = service.phase in {ServerPhase.READY, ServerPhase.TERMINATING}
    of_pools = _families_of(service.pools if is_serving else ())
    page = metrics_page(chain(of_pools, ProcessCollector(registry=None).collect()))
    return Response(page, media_type=CONTENT_TYPE_PLAIN_0_0_4)


def pool_metrics(pool: HandlerPool) -> bytes:
    """Return the metrics of children beside an engine as text."""
    return metrics_page(_families_of([pool]))


def _families_of(pools: Sequence[HandlerPool]) -> Iterable[Metric]:
    others = (family for family in reported(pools) if not family.name.startswith(_OWN))
    return merge_families(chain(*map(families, pools), others))


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


def metrics_app(models: TorchServeModels, layers: Sequence[Middleware] = ()) -> Starlette:
    """Create the application of TorchServe's metrics API; `layers` guard it."""

    async def metrics(request: Request) -> Response:
        page = render_torchserve(models.all(), request.query_params.getlist("name[]"))
        return Response(page, media_type=CONTENT_TYPE_LATEST)

    return Starlette(routes=[Route("/metrics", metrics, methods=["GET"])], middleware=layers)


def render_torchserve(models: Sequence[Registered], names: Sequence[str] = ()) -> bytes:
    """Return what TorchServe keeps of its models, and what handlers report; if `names` has some, only these."""
    found = merge_families([*torchserve_families(models), *reported(model.pool for model in models)])
    for family in found:
        family.samples = [s for s in family.samples if not names or s.name in names or family.name in names]
    return metrics_page(family for family in found if family.samples)


def torchserve_families(models: Sequence[Registered]) -> Iterator[Metric]:
    labels = ["model_name", "model_version", "hostname"]
    total = CounterMetricFamily("ts_inference_requests", "Requests that workers took.", labels=labels)
    running = CounterMetricFamily("ts_inference_latency_microseconds", "Time of calls of handlers.", labels=labels)
    waiting = CounterMetricFamily("ts_queue_latency_microseconds", "Time of requests in the queue.", labels=labels)
    for model in models:
        values, counts = [model.name, model.version, socket.gethostname()], model.pool.counts
        total.add_metric(values, counts.queue_s.count)
        running.add_metric(values, counts.call_s.sum * 1e6)
        waiting.add_metric(values, counts.queue_s.sum * 1e6)
    yield from (total, running, waiting)
