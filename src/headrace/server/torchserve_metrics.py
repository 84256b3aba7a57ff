"""TorchServe's metrics API, an application on a port of its own: what handlers report, and their queues."""

import socket
from collections.abc import Iterator, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.handlers.torchserve_models import Registered, TorchServeModels
from headrace.server.handlers.metrics import merge_families, reported


def metrics_app(models: TorchServeModels, layers: Sequence[Middleware] = ()) -> Starlette:
    """Create the application; `layers` guard it."""

    async def metrics(request: Request) -> Response:
        return Response(render(models.all(), request.query_params.getlist("name[]")), media_type=CONTENT_TYPE_LATEST)

    return Starlette(routes=[Route("/metrics", metrics, methods=["GET"])], middleware=layers)


def render(models: Sequence[Registered], names: Sequence[str] = ()) -> bytes:
    """
    Return the metrics of models in Prometheus' text format.

    Args:
        models: the models.
        names: metrics or samples to return; none: all.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(models, names))
    return generate_latest(registry)


def server_families(models: Sequence[Registered]) -> Iterator[Metric]:
    """Yield the metrics that TorchServe itself keeps of its models."""
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


class _Families(Collector):
    def __init__(self, models: Sequence[Registered], names: Sequence[str]) -> None:
        self._models = models
        self._names = frozenset(names)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, with only the samples of the requested names."""
        others = reported(model.pool for model in self._models)
        for family in merge_families([*server_families(self._models), *others]):
            family.samples = [s for s in family.samples if not self._names or {s.name, family.name} & self._names]
            if family.samples:
                yield family
