"""Counters of invocations by endpoint, variant and inference component, and their page for Prometheus.

Source: SageMaker developer guide, "Endpoint invocation metrics".
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from headrace.core.exposition import batch_families
from headrace.core.metrics import SECONDS, SHORT_SECONDS, BatchMetrics, Distribution
from headrace.core.tracing import ANTHROPIC_REQUEST_ID
from headrace.platform.cluster.container_header import HEADER, read_answered
from headrace.platform.cluster.model_host.protocol import ModelTiming
from headrace.platform.state.routes import Route
from headrace.serving.http.prometheus import merge_families, metrics_page
from headrace.serving.wire.key_limits import INVOKE, KeyLimits

PRIMARY_CONTAINER = "primary"
"""SageMaker's name for the only container of a model."""

MODEL_ERRORS = frozenset({"ModelError", "engine_failed"})
"""Codes of model errors: of the runtime API, of the OpenAI API."""

OVERHEAD_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class CaptureEvent:
    """The event of a request and of its copies, which their captured lines share."""

    id: str
    point: float
    """A random number, 0 <= x < 1: all of them are captured if it is below the percentage, or none."""


@dataclass(frozen=True, slots=True)
class Caller:
    """An access key with limits."""

    key: str
    limits: KeyLimits


@dataclass(slots=True, kw_only=True)
class InvocationRecord:
    """The measurements of one request, logged and counted at its end. Times are seconds of a monotonic clock."""

    request_id: str
    api: str
    endpoint: str
    started_s: float
    caller: Caller | None = None
    """The key of the request; None: it has no limits."""
    action: str = INVOKE
    """IAM's name for what is asked for."""
    is_anthropic: bool = False
    """The client speaks Anthropic's API, whose headers have other names."""
    generates: bool = True
    """False for a request that is logged only: it asks for no work of the model, and must not look like load."""
    wakes: bool = True
    """False for a request that is answered at once, whatever is asleep."""
    variant: str = ""
    """Empty until a variant has been chosen."""
    component: str = ""
    """The inference component that the request names; empty if it names none."""
    worker: str = ""
    config: str = ""
    """Name of the endpoint configuration by which the worker was started; empty for a component's copy."""
    is_serverless: bool = False
    containers: tuple[str, ...] = ()
    """
    The containers that the request goes through, of a replica that has several; empty if it has one.

    Once the response has begun, the last one is the container that sent it.
    """
    earlier_s: tuple[float, ...] = ()
    """Response times of the containers before the last one."""
    is_direct: bool = False
    """The request named its container."""
    inference_id: str = ""
    attempt: str = ""
    """The SDK's own retry information (`amz-sdk-request`)."""
    num_tries: int = 0
    """Replicas that the request was sent to."""
    status: int = 0
    """Status of the response; 499 if the client disconnected before it."""
    model_status: int = 0
    """Status of the worker's response."""
    error: str | None = None
    """Code of the error that the client got, as a response or inside the stream."""
    asked_s: float | None = None
    """When the replica that was tried last was chosen."""
    head_s: float | None = None
    """When the replica's response began."""
    first_s: float | None = None
    """When the first part of the response arrived."""
    ended_s: float = 0.0
    held_s: float = 0.0
    """Time for which the request was held."""
    is_without_capacity: bool = False
    """The request failed because no replica could answer."""
    num_parts: int = 0
    num_bytes: int = 0
    is_gone: bool = False
    """The client disconnected before the end."""
    num_tokens: int | None = None
    """Tokens of prompt and answer, as the model has told them; counted only for a caller with limits."""
    num_read_bytes: int = 0
    """Bytes of a response that was read as a whole."""
    usage_part: bytes = b""
    """The last part of the response that may tell the tokens in its body."""
    limit_headers: tuple[tuple[str, str], ...] = ()
    """Headers for the client: what is left of its key's limits."""
    target_timing: ModelTiming | None = None
    """Set for a request to a target model: how long it waited for the model."""
    event: CaptureEvent | None = None
    """None: it has not been decided yet whether the request is captured."""

    @property
    def counts_tokens(self) -> bool:
        return self.caller is not None and self.caller.limits.tokens_per_minute is not None

    def of_copy(self, started_s: float) -> "InvocationRecord":
        """Return the record of a copy of the request for a shadow variant."""
        return InvocationRecord(
            request_id=self.request_id,
            api=self.api,
            endpoint=self.endpoint,
            inference_id=self.inference_id,
            started_s=started_s,
            event=self.event,
        )

    def id_headers(self) -> tuple[tuple[str, str], ...]:
        """
        Return the response headers with the request's id, and those about the limits of its key.

        The names are those of AWS's and Anthropic's SDKs, and the common one.
        """
        names = ("x-amzn-RequestId", "x-request-id", *((ANTHROPIC_REQUEST_ID,) if self.api == "OpenAI" else ()))
        return (*((name, self.request_id) for name in names), *self.limit_headers)

    def set_containers(self, containers: tuple[str, ...], *, target: str | None) -> None:
        """Note the containers of the chosen replica, or the one that the request names."""
        self.is_direct = target is not None
        self.containers = containers if target is None else (target,)

    def read_containers(self, headers: Mapping[str, str]) -> None:
        """Note the containers that have answered."""
        if answered := read_answered(headers.get(HEADER)):
            self.containers = tuple(name for name, _ in answered)
            self.earlier_s = tuple(seconds for _, seconds in answered[:-1])

    @property
    def container(self) -> str:
        """The container that sent the response, for errors; all that may not have answered in time before it."""
        if not self.containers:
            return PRIMARY_CONTAINER
        return " or ".join(self.containers) if self.head_s is None else self.containers[-1]

    def container_latencies(self) -> Iterator[tuple[str, float]]:
        """Yield the name and the response time of each container that has answered."""
        if self.containers and self.head_s is not None and self.asked_s is not None:
            last_s = max(0.0, self.ended_s - self.asked_s - sum(self.earlier_s))
            yield from zip(self.containers, (*self.earlier_s, last_s), strict=True)

    @property
    def total_s(self) -> float:
        """Time from the head of the request to the last byte of the response."""
        return self.ended_s - self.started_s

    @property
    def model_s(self) -> float | None:
        """Time from choosing the replica of the last try to the end of its response. None: no replica was chosen."""
        return None if self.asked_s is None else self.ended_s - self.asked_s

    @property
    def overhead_s(self) -> float | None:
        """Time before the last try, those that failed included, without the time for which the request was held."""
        return None if self.asked_s is None else max(0.0, self.asked_s - self.started_s - self.held_s)


@dataclass(slots=True, eq=False)
class VariantMetrics:
    """Counters of one variant or inference component; they only grow."""

    invocations: int = 0
    errors_4xx: int = 0
    errors_5xx: int = 0
    model_errors: int = 0
    """Requests that the worker answered with 4xx or 5xx, or did not answer completely in time."""
    streams_broken: int = 0
    """Streams that ended with an error after their first byte."""
    clients_gone: int = 0
    retries: int = 0
    copies_dropped: int = 0
    """Copies of requests that were not sent to a shadow variant."""
    model_s: Distribution = field(default_factory=lambda: Distribution(SECONDS))
    overhead_s: Distribution = field(default_factory=lambda: Distribution(OVERHEAD_SECONDS))
    first_part_s: Distribution = field(default_factory=lambda: Distribution(SHORT_SECONDS))
    """Time from the head of the request to the first part of the response."""

    def count(self, record: InvocationRecord) -> None:
        self.invocations += 1
        self.errors_4xx += 400 <= record.status < 500 and not record.is_gone
        self.errors_5xx += record.status >= 500
        self.model_errors += record.model_status >= 400 or record.error in MODEL_ERRORS
        self.streams_broken += record.status == 200 and record.error is not None
        self.clients_gone += record.is_gone
        self.retries += max(0, record.num_tries - 1)
        if record.model_s is not None and record.overhead_s is not None:
            self.model_s.observe(record.model_s)
            self.overhead_s.observe(record.overhead_s)
        if record.first_s is not None:
            self.first_part_s.observe(record.first_s - record.started_s)


class InvocationLabels(NamedTuple):
    """The labels of the invocation metrics: the variant or inference component that requests are counted for."""

    endpoint: str
    variant: str
    component: str
    """An inference component on the variant's instances; empty for the variant itself."""


def labels_of(route: Route) -> Iterator[InvocationLabels]:
    for variant in route.all_variants:
        yield InvocationLabels(route.endpoint, variant.name, "")
    for component in route.components:
        yield InvocationLabels(route.endpoint, component.route.name, component.name)


class GatewayMetrics:
    def __init__(self) -> None:
        self._counters: dict[InvocationLabels, VariantMetrics] = {}
        self.in_flight = 0
        """Requests in the gateway now."""
        self.refused: dict[str, int] = {}
        """Requests that reached no worker, by the code of their error."""
        self.num_held: Callable[[], int] = lambda: 0
        """Returns the number of requests that are held now."""
        self.stored_responses: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Returns the number of stored responses and their bytes."""
        self.held_s = Distribution(SECONDS)
        """Hold times of the requests that were held."""
        self.async_waiting = 0
        """Asynchronous invocations that were accepted and have not started."""
        self.async_done = 0
        self.async_failed = 0
        self.async_expired = 0
        self.batches = BatchMetrics()
        self.captures_written = 0
        self.captures_lost = 0

    def count(self, record: InvocationRecord) -> None:
        """Count a request that has ended; under its endpoint's name only if it reached a replica of that endpoint."""
        if record.held_s:
            self.held_s.observe(record.held_s)
        if record.variant:
            self.counter(InvocationLabels(record.endpoint, record.variant, record.component)).count(record)
        elif record.error is not None:
            self.refused[record.error] = self.refused.get(record.error, 0) + 1

    def counter(self, labels: InvocationLabels) -> VariantMetrics:
        metrics = self._counters.get(labels)
        if metrics is None:
            metrics = self._counters[labels] = VariantMetrics()
        return metrics

    def counters(self) -> Iterator[tuple[InvocationLabels, VariantMetrics]]:
        """Yield the counters of each variant and inference component, sorted."""
        yield from sorted(self._counters.items(), key=lambda entry: entry[0])

    def retain(self, kept: Container[InvocationLabels]) -> None:
        """Drop all counters but those of `kept`, so that deleted endpoints take no memory."""
        for key in [key for key in self._counters if key not in kept]:
            del self._counters[key]


_LABELS = InvocationLabels._fields
_COUNTERS = (
    ("invocations", "Requests for which a worker was chosen."),
    ("errors_4xx", "Requests that were answered 4xx."),
    ("errors_5xx", "Requests that were answered 5xx."),
    ("model_errors", "Requests that failed in the worker (ModelError)."),
    ("streams_broken", "Streams that ended with an error after their first byte."),
    ("clients_gone", "Requests whose client disconnected."),
    ("copies_dropped", "Copies of requests that were not sent to a shadow variant: it has no replica, or is too slow."),
    ("retries", "Requests that were sent to another replica because the first did not answer."),
)
_HISTOGRAMS = (
    ("model_s", "model_seconds", "Time from the request to the worker to the end of its answer."),
    ("overhead_s", "overhead_seconds", "Time from the client's request head to the request to the worker."),
    ("first_part_s", "first_part_seconds", "Time from the request's head to the first part of the answer."),
)


def families(metrics: GatewayMetrics) -> Iterator[Metric]:
    num_stored, num_bytes = metrics.stored_responses()
    for name, help_text, number in (
        ("requests_in_flight", "Requests in the gateway now.", metrics.in_flight),
        ("requests_held", "Requests that wait for a replica now.", metrics.num_held()),
        ("stored_responses", "Stored responses (Responses API).", num_stored),
        ("stored_responses_bytes", "Memory of stored responses, bytes.", num_bytes),
        ("async_waiting", "Asynchronous invocations that wait for a worker.", metrics.async_waiting),
    ):
        yield GaugeMetricFamily(f"headrace_gateway_{name}", help_text, number)
    yield from batch_families(metrics.batches, "headrace_gateway")
    for name, help_text in _COUNTERS:
        counter = CounterMetricFamily(f"headrace_gateway_{name}", help_text, labels=_LABELS)
        for labels, counters in metrics.counters():
            counter.add_metric(labels, getattr(counters, name))
        yield counter
    for attribute, name, help_text in _HISTOGRAMS:
        histogram = HistogramMetricFamily(f"headrace_gateway_{name}", help_text, labels=_LABELS)
        for labels, counters in metrics.counters():
            distribution = getattr(counters, attribute)
            histogram.add_metric(labels, distribution.buckets(), sum_value=distribution.sum)
        yield histogram
    held = HistogramMetricFamily(
        "headrace_gateway_held_seconds", "Time that requests were held for a replica that started or woke from zero."
    )
    held.add_metric([], metrics.held_s.buckets(), sum_value=metrics.held_s.sum)
    yield held
    async_ended = {"done": metrics.async_done, "failed": metrics.async_failed, "expired": metrics.async_expired}
    captures = {"written": metrics.captures_written, "lost": metrics.captures_lost}
    for name, help_text, label, counts in (
        ("refused", "Requests that reached no worker, by the error they got.", "error", metrics.refused),
        ("async_ended", "Asynchronous invocations by how they ended.", "outcome", async_ended),
        ("captures", "Captured invocations that were written, and those that were lost.", "outcome", captures),
    ):
        counter = CounterMetricFamily(f"headrace_gateway_{name}", help_text, labels=[label])
        for value, count in counts.items():
            counter.add_metric([value], count)
        yield counter


def render(metrics: GatewayMetrics) -> bytes:
    return metrics_page(families(metrics))


def merge(pages: Sequence[bytes]) -> bytes:
    """Return one page for the pages of several gateways: the sum of each series, of gauges too."""
    collected = (family for page in pages for family in text_string_to_metric_families(page.decode()))
    return metrics_page(merge_families(collected))
