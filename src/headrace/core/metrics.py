"""Counters and histograms of one server. `core.exposition` names them for Prometheus."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from headrace.core.engine_stats import EngineStats
from headrace.core.generation import FinishReason, ModelInfo
from headrace.core.telemetry import RequestRecord

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
SHORT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_TGI_FAILURES = {"busy": "overloaded", "aborted": "incomplete", "engine_failed": "generation"}
"""TGI's labels of failures; others are failures of generation or of validation, by their status."""


class Distribution:
    """A histogram without labels or locks, written by one thread: cheap enough for one observation per token."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def count(self) -> int:
        """Number of values observed."""
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Return cumulative counts by upper bound, in the form that Prometheus expects."""
        total, cumulative = 0, []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            cumulative.append((bound, float(total)))
        return cumulative

    @property
    def sum(self) -> float:
        """Sum of the values."""
        return self._sum


@dataclass(slots=True, eq=False)
class AdapterTotals:
    """The answered requests of one adapter."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


class BatchMetrics:
    """Batches of requests in this process."""

    def __init__(self) -> None:
        self.num_active = 0
        """Batches that run."""
        self.lines: dict[str, int] = {"completed": 0, "failed": 0, "expired": 0, "cancelled": 0}
        """Outcome → requests since the start of the process."""

    def count(self, outcome: str, num_lines: int) -> None:
        """Count requests that have an outcome."""
        self.lines[outcome] += num_lines


def no_adapters() -> frozenset[str]:
    """Return no names, as a server without slots for adapters does."""
    return frozenset()


@dataclass(slots=True, eq=False)
class Metrics:
    """
    All metrics of one server.

    The engine's statistics are read at each scrape; requests are counted as they end.
    """

    stats: Callable[[], EngineStats]
    info: Callable[[], ModelInfo | None]
    in_flight: Callable[[], int]
    """Number of requests in flight."""
    adapters: Callable[[], Collection[str]] = no_adapters
    """Names of the loaded adapters."""
    by_status: dict[tuple[str, str], int] = field(default_factory=dict)
    """(dialect, HTTP status) → requests."""
    by_finish: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    """TGI's failure label → requests."""
    by_adapter: dict[str, AdapterTotals] = field(default_factory=dict)
    """Loaded adapters only, so that clients who load and unload many do not fill it."""
    batches: BatchMetrics = field(default_factory=BatchMetrics)
    ttft_s: Distribution = field(default_factory=lambda: Distribution(SECONDS))
    itl_s: Distribution = field(default_factory=lambda: Distribution(SHORT_SECONDS))
    mean_itl_s: Distribution = field(default_factory=lambda: Distribution(SHORT_SECONDS))
    total_s: Distribution = field(default_factory=lambda: Distribution(SECONDS))
    generation_s: Distribution = field(default_factory=lambda: Distribution(SECONDS))
    queue_s: Distribution = field(default_factory=lambda: Distribution(SECONDS))
    """Written by the engine's thread, as `step_s` is."""
    step_s: Distribution = field(default_factory=lambda: Distribution(SHORT_SECONDS))
    prompt_tokens: Distribution = field(default_factory=lambda: Distribution(TOKENS))
    output_tokens: Distribution = field(default_factory=lambda: Distribution(TOKENS))
    max_new_tokens: Distribution = field(default_factory=lambda: Distribution(TOKENS))

    def count(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        key = (record.dialect, str(record.status))
        self.by_status[key] = self.by_status.get(key, 0) + 1
        self.total_s.observe(record.total_s)
        failure = None
        if record.finish == "disconnected":
            failure = "dropped"
        elif record.error is not None:
            failure = _TGI_FAILURES.get(record.error, "generation" if record.status >= 500 else "validation")
        if failure is not None:
            self.failures[failure] = self.failures.get(failure, 0) + 1
        if record.finish is not None:
            self.by_finish[record.finish] = self.by_finish.get(record.finish, 0) + 1
        if record.ttft_s is None or record.first_s is None:
            return
        if record.finish == FinishReason.POOLED:  # it has neither a first token nor an answer
            self.prompt_tokens.observe(record.prompt_tokens)
            return
        if record.max_new_tokens is not None:
            # Only for admitted requests: a refused one may have asked for more than a float can hold.
            self.max_new_tokens.observe(record.max_new_tokens)
        self.ttft_s.observe(record.ttft_s)
        self.prompt_tokens.observe(record.prompt_tokens)
        self.output_tokens.observe(record.output_tokens)
        self.generation_s.observe(record.last_s - record.first_s)
        if record.output_tokens > 1:
            self.mean_itl_s.observe((record.last_s - record.first_s) / (record.output_tokens - 1))

    def count_adapter(self, name: str, *, requests: int, prompt_tokens: int, output_tokens: int) -> None:
        """Add to the totals of an adapter; without effect if it has been unloaded."""
        loaded = self.adapters()
        for known in self.by_adapter.keys() - loaded:
            del self.by_adapter[known]
        if name in loaded:
            totals = self.by_adapter.setdefault(name, AdapterTotals())
            totals.requests += requests
            totals.prompt_tokens += prompt_tokens
            totals.output_tokens += output_tokens
