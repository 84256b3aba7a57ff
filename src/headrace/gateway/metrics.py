"""
What is counted of invocations, by endpoint, variant and inference component, under CloudWatch's names.

`gateway.exposition` says by which names Prometheus sees it. Source: SageMaker developer guide, "Endpoint invocation
metrics".
"""

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.core.metrics import SECONDS, SHORT_SECONDS, Distribution

MODEL_ERRORS = frozenset({"ModelError", "engine_failed"})
"""What clients are told: the runtime's, OpenAI's."""

OVERHEAD_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0)


@dataclass(slots=True, kw_only=True)
class InvocationRecord:
    """One request, as it is logged and counted at its end. Times are seconds of a monotonic clock."""

    request_id: str
    api: str
    endpoint: str
    started_s: float
    variant: str = ""
    """Empty until one was chosen."""
    component: str = ""
    """The inference component that was asked for, if one was."""
    worker: str = ""
    inference_id: str = ""
    attempt: str = ""
    """What an SDK says about its own tries (`amz-sdk-request`)."""
    num_tries: int = 0
    """Replicas that were asked."""
    status: int = 0
    """That was answered; 499 when the client went away before."""
    model_status: int = 0
    """The worker's own."""
    error: str | None = None
    """Code of the error that was answered or sent inside the stream."""
    asked_s: float | None = None
    """When a replica was chosen."""
    head_s: float | None = None
    """When its answer began."""
    first_s: float | None = None
    """When its first part came."""
    ended_s: float = 0.0
    held_s: float = 0.0
    """How long it waited for a replica to come."""
    is_without_capacity: bool = False
    """It failed because nobody could answer."""
    num_parts: int = 0
    num_bytes: int = 0
    is_gone: bool = False
    """The client hung up before the end."""

    def id_headers(self) -> tuple[tuple[str, str], ...]:
        """The request's id, as SDKs of AWS and as all others look for it."""
        return (("x-amzn-RequestId", self.request_id), ("x-request-id", self.request_id))

    @property
    def total_s(self) -> float:
        """From the request's head to its last byte."""
        return self.ended_s - self.started_s

    @property
    def model_s(self) -> float | None:
        """Time between asking the worker and the end of its answer."""
        return None if self.asked_s is None else self.ended_s - self.asked_s

    @property
    def overhead_s(self) -> float | None:
        """Our own time before the worker was asked, without that in which there was no worker."""
        return None if self.asked_s is None else max(0.0, self.asked_s - self.started_s - self.held_s)


@dataclass(slots=True, eq=False)
class VariantMetrics:
    """Counters of one variant, or of one inference component; they only grow."""

    invocations: int = 0
    errors_4xx: int = 0
    errors_5xx: int = 0
    model_errors: int = 0
    """The worker answered 4xx or 5xx, or gave no whole answer in time."""
    streams_broken: int = 0
    """Ended by an error after their first byte."""
    clients_gone: int = 0
    retries: int = 0
    model_s: Distribution = field(default_factory=lambda: Distribution(SECONDS))
    overhead_s: Distribution = field(default_factory=lambda: Distribution(OVERHEAD_SECONDS))
    first_part_s: Distribution = field(default_factory=lambda: Distribution(SHORT_SECONDS))
    """Time to the first part of an answer, from the request's head."""

    def count(self, record: InvocationRecord) -> None:
        """Take a request that has ended."""
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

    def cloudwatch(self) -> dict[str, float]:
        """The counters by CloudWatch's names; a latency is a sum (microseconds), `...Count` how many it has."""
        return {
            "Invocations": self.invocations,
            "Invocation4XXErrors": self.errors_4xx,
            "Invocation5XXErrors": self.errors_5xx,
            "InvocationModelErrors": self.model_errors,
            "ModelLatency": self.model_s.sum * 1e6,
            "ModelLatencyCount": self.model_s.count,
            "OverheadLatency": self.overhead_s.sum * 1e6,
            "OverheadLatencyCount": self.overhead_s.count,
            "FirstChunkLatency": self.first_part_s.sum * 1e6,
            "FirstChunkLatencyCount": self.first_part_s.count,
        }


class InvocationLabels(NamedTuple):
    """What requests are counted for."""

    endpoint: str
    variant: str
    component: str
    """An inference component on the variant's instances; empty: the variant itself."""


class GatewayMetrics:
    """Everything that is counted."""

    def __init__(self) -> None:
        self._counters: dict[InvocationLabels, VariantMetrics] = {}
        self.in_flight = 0
        """Requests in the gateway now."""
        self.refused: dict[str, int] = {}
        """Code of an error → requests that got no further than the gateway."""
        self.num_held: Callable[[], int] = lambda: 0
        """Requests that wait for a replica now."""
        self.held_s = Distribution(SECONDS)
        """Of requests that were held: how long."""
        self.async_waiting = 0
        """Asynchronous invocations that were accepted and have not begun."""
        self.async_done = 0
        self.async_failed = 0
        self.async_expired = 0

    def count(self, record: InvocationRecord) -> None:
        """Take a request that has ended. Names of endpoints are only kept where one was reached."""
        if record.held_s:
            self.held_s.observe(record.held_s)
        if record.variant:
            key = InvocationLabels(record.endpoint, record.variant, record.component)
            metrics = self._counters.get(key)
            if metrics is None:
                metrics = self._counters[key] = VariantMetrics()
            metrics.count(record)
        elif record.error is not None:
            self.refused[record.error] = self.refused.get(record.error, 0) + 1

    def counters(self) -> Iterator[tuple[InvocationLabels, VariantMetrics]]:
        """What was counted for whom."""
        yield from sorted(self._counters.items(), key=lambda entry: entry[0])

    def keep(self, kept: Container[InvocationLabels]) -> None:
        """Drop the counters of what is gone: keep these only, so that there are never more than there are routes."""
        for key in [key for key in self._counters if key not in kept]:
            del self._counters[key]
