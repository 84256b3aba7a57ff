"""
CloudWatch metrics of asynchronous invocations.

The backlog of each endpoint is published every ten seconds, also while the endpoint has no replica, because autoscaling
needs it then; each invocation is published when it ends. Names, units and dimensions are SageMaker's. Source: SageMaker
developer guide, "Monitor asynchronous endpoint" (which misspells `InvocationsProcessed`).
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.cloudwatch.metrics.metric import Dimensions, Metric, MetricSink
from headrace.gateway.async_queue import Backlog, num_endpoint_replicas
from headrace.gateway.publishing import NAMESPACE
from headrace.state.routes import Route

_MICROSECONDS = 1e6
_EMPTY = Backlog()


@dataclass(slots=True, kw_only=True)
class AsyncOutcome:
    """The measurements of one invocation that has ended. Times are seconds since 1970, durations are seconds."""

    endpoint: str
    variant: str = ""
    """The variant that answered; empty if none did."""
    accepted_s: float
    began_s: float
    ended_s: float = 0.0
    download_s: float | None = None
    """Duration of the download of the input. None: it came with the request, or the download failed."""
    upload_s: float | None = None
    """Duration of the upload of the output. None: there is no output."""
    model_s: float | None = None
    """Duration of the model's response. None: the model was not called, or did not answer."""
    model_status: int = 0
    is_download_failed: bool = False
    is_upload_failed: bool = False
    is_failed: bool = False


class AsyncPublisher:
    """Publishes backlogs and outcomes. Used by one thread, the event loop's."""

    def __init__(self, sink: MetricSink, *, clock: Callable[[], float] = time.time) -> None:
        self._sink = sink
        self._clock = clock

    def publish_backlogs(self, routes: Mapping[str, Route], backlogs: Mapping[str, Backlog]) -> None:
        """Publish the backlog of each asynchronous endpoint; the backlog per instance only if it has instances."""
        now_s = self._clock()
        for endpoint, route in routes.items():
            if route.async_output is None:
                continue
            dimensions = (("EndpointName", endpoint),)
            backlog, num_serving = backlogs.get(endpoint, _EMPTY), num_endpoint_replicas(route)
            age_s = max(0.0, now_s - backlog.oldest_s) if backlog.size else 0.0
            self._put("ApproximateBacklogSize", backlog.size, dimensions, unit="Count")
            self._put("ApproximateAgeOfOldestRequest", age_s, dimensions, unit="Seconds")
            self._put(
                "HasBacklogWithoutCapacity", float(backlog.size > 0 and num_serving == 0), dimensions, unit="Count"
            )
            if num_serving:
                self._put("ApproximateBacklogSizePerInstance", backlog.size / num_serving, dimensions, unit="Count")

    def publish_expired(self, route: Route) -> None:
        self._put("ExpiredRequests", 1.0, _dimensions(route, ""), unit="Count")

    def publish(self, outcome: AsyncOutcome, route: Route) -> None:
        dimensions = _dimensions(route, outcome.variant)
        for name, value in (
            ("InvocationsProcessed", 1.0),
            ("InvocationFailures", float(outcome.is_failed)),
            ("RequestDownloadFailures", float(outcome.is_download_failed)),
            ("ResponseUploadFailures", float(outcome.is_upload_failed)),
        ):
            self._put(name, value, dimensions, unit="Count")
        if outcome.model_status:
            self._put("Invocation4XXErrors", float(400 <= outcome.model_status < 500), dimensions)
            self._put("Invocation5XXErrors", float(outcome.model_status >= 500), dimensions)
        for name, seconds in (
            ("TimeInBacklog", outcome.began_s - outcome.accepted_s),
            ("RequestDownloadLatency", outcome.download_s),
            ("ResponseUploadLatency", outcome.upload_s),
            ("ModelLatency", outcome.model_s),
        ):
            if seconds is not None:
                self._put(name, max(0.0, seconds) * _MICROSECONDS, dimensions, unit="Microseconds")
        total_s = max(0.0, outcome.ended_s - outcome.accepted_s)
        self._put("TotalProcessingTime", total_s * 1e3, dimensions, unit="Milliseconds")

    def _put(self, name: str, value: float, dimensions: Dimensions, *, unit: str = "None") -> None:
        metric = Metric(namespace=NAMESPACE, name=name, dimensions=dimensions)
        self._sink.put(metric, value, now_s=self._clock(), unit=unit)


def _dimensions(route: Route, variant: str) -> Dimensions:
    """Return the dimensions of a variant; invocations that none has answered count for the endpoint's only variant."""
    name = variant or (route.variants[0].name if route.variants else "")
    return (("EndpointName", route.endpoint), ("VariantName", name))
