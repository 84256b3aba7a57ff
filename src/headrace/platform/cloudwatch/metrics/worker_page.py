"""
CloudWatch metrics from a worker's Prometheus page (`/metrics`), and from the difference of two pages. Pure.

Pages of Headrace and of vLLM are supported: both use vLLM's names for tokens, latencies, queue and KV cache.
"""

import math
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.platform.cloudwatch.metrics.metric import Point

_TTFT = "vllm:time_to_first_token_seconds"
_ITL = "vllm:inter_token_latency_seconds"
_OUTPUT = "vllm:generation_tokens_total"
_WAITING = "vllm:num_requests_waiting"
_KV = "vllm:kv_cache_usage_perc"
_CPU = "process_cpu_seconds_total"
_LOADED = "headrace_loaded_models"
_MEMORY = "process_resident_memory_bytes"

CONTAINER_PREFIX = "headrace_container_"
"""Before the names of the series of one container, on the page of a worker that has several."""
CONTAINER_LABEL = "container"
MAX_CONTAINERS = 15
"""Source: botocore 1.44 sagemaker/2017-07-24 CreateModel."""
_CONTAINER = re.compile(rf'(?:^|,){CONTAINER_LABEL}="([^"]*)"')

_MAX_VALUE = 1e15
_LINE = re.compile(r"(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)(?: -?\d+)?", re.ASCII)
_BOUND = re.compile(r'(?:^|,)le="([^"]*)"')
_SINGLE = frozenset({_OUTPUT, _WAITING, _KV, _CPU, _MEMORY, _LOADED})
_SUMS = {f"{name}_sum": name for name in (_TTFT, _ITL)}
_BUCKETS = {f"{name}_bucket": name for name in (_TTFT, _ITL)}


@dataclass(frozen=True, slots=True)
class Page:
    """The numbers read from one page; those of several engines are added up."""

    at_s: float
    numbers: dict[str, float] = field(default_factory=dict)
    buckets: dict[str, dict[float, float]] = field(default_factory=dict)
    """Histogram → upper bound → cumulative count."""
    containers: "dict[str, Page]" = field(default_factory=dict)
    """Container → what it uses of the instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReading:
    """The newest numbers of one worker; None: its page does not have them."""

    output_tokens_per_s: float | None = None
    num_waiting: float | None = None
    """Requests that wait in its queue."""
    kv_cache_share: float | None = None
    """Used share of its KV cache, 0 to 1."""
    cpu_cores: float | None = None
    """Cores that it keeps busy."""
    memory_bytes: float | None = None


class WorkerMetric(NamedTuple):
    """A datapoint of one worker under its CloudWatch name."""

    name: str
    point: Point


def read_page(text: str, *, at_s: float) -> Page:
    """Parse a page in Prometheus' text format; unknown lines are skipped."""
    page = Page(at_s=at_s)
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        name, value = match["name"], _number(match["value"])
        if value is None:
            continue
        container = _CONTAINER.search(match["labels"] or "") if name.startswith(CONTAINER_PREFIX) else None
        if container is not None and (container[1] in page.containers or len(page.containers) < MAX_CONTAINERS):
            own = page.containers.setdefault(container[1], Page(at_s=at_s)).numbers
            own[name.removeprefix(CONTAINER_PREFIX)] = value
        elif name in _SINGLE or name in _SUMS:
            page.numbers[name] = page.numbers.get(name, 0.0) + value
        elif name in _BUCKETS:
            bound = _BOUND.search(match["labels"] or "")
            upper = _number(bound[1]) if bound else None
            if upper is not None:
                counts = page.buckets.setdefault(_BUCKETS[name], {})
                counts[upper] = counts.get(upper, 0.0) + value
    return page


def reading_between(before: Page | None, now: Page) -> WorkerReading:
    """Return the newest numbers of a worker; rates need the previous page of the same process."""
    return WorkerReading(
        output_tokens_per_s=_rate(before, now, _OUTPUT),
        num_waiting=now.numbers.get(_WAITING),
        kv_cache_share=now.numbers.get(_KV),
        cpu_cores=_rate(before, now, _CPU),
        memory_bytes=now.numbers.get(_MEMORY),
    )


def metrics_between(before: Page | None, now: Page, *, memory_bytes: int) -> list[WorkerMetric]:
    """Return a worker's metrics, by two pages of the same process; `memory_bytes` of its host are 0 if unknown."""
    found = [
        *_gauge("QueueDepth", "Count", now, _WAITING, 1.0),
        *_gauge("LoadedModelCount", "None", now, _LOADED, 1.0),
        *_gauge("KVCacheUtilization", "Percent", now, _KV, 100.0),
        *(_gauge("MemoryUtilization", "Percent", now, _MEMORY, 100.0 / memory_bytes) if memory_bytes else ()),
    ]
    if before is None or now.at_s <= before.at_s:
        return found
    for name, unit, counter, factor in (
        ("OutputTokensPerSecond", "Count/Second", _OUTPUT, 1.0),
        ("CPUUtilization", "Percent", _CPU, 100.0),
    ):
        rate = _rate(before, now, counter)
        if rate is not None:
            found.append(_single(name, unit, now.at_s, rate * factor))
    for name, histogram in (("TimeToFirstToken", _TTFT), ("InterTokenLatency", _ITL)):
        point = _measured(before, now, histogram)
        if point is not None:
            found.append(WorkerMetric(name, point))
    return found


def _rate(before: Page | None, now: Page, counter: str) -> float | None:
    """Return the growth of a counter per second; None if it was reset, or if there is nothing to compare."""
    if before is None or now.at_s <= before.at_s:
        return None
    grown = now.numbers.get(counter, 0.0) - before.numbers.get(counter, math.inf)
    return grown / (now.at_s - before.at_s) if grown >= 0 else None


def _gauge(name: str, unit: str, page: Page, source: str, factor: float) -> list[WorkerMetric]:
    return [_single(name, unit, page.at_s, page.numbers[source] * factor)] if source in page.numbers else []


def _single(name: str, unit: str, at_s: float, value: float) -> WorkerMetric:
    values = ((value, 1.0),)
    point = Point(start_s=at_s, count=1.0, total=value, minimum=value, maximum=value, values=values, unit=unit)
    return WorkerMetric(name, point)


def _measured(before: Page, now: Page, histogram: str) -> Point | None:
    """Return what a histogram counted between two pages, in microseconds; values are the centres of its buckets."""
    old, new = before.buckets.get(histogram, {}), now.buckets.get(histogram, {})
    values: list[tuple[float, float]] = []
    lower, num_below = 0.0, 0.0
    for upper in sorted(new):
        cumulative = new[upper] - old.get(upper, 0.0)
        num = cumulative - num_below
        if num < 0:
            return None  # the counters were reset: another process
        if num:
            values.append(((lower + upper) / 2 * 1e6 if math.isfinite(upper) else lower * 1e6, num))
        lower, num_below = upper if math.isfinite(upper) else lower, cumulative
    total_s = now.numbers.get(f"{histogram}_sum", 0.0) - before.numbers.get(f"{histogram}_sum", 0.0)
    if not values or total_s < 0:
        return None
    return Point(
        start_s=now.at_s,
        count=num_below,
        total=total_s * 1e6,
        minimum=values[0][0],
        maximum=values[-1][0],
        values=tuple(values),
        unit="Microseconds",
    )


def _number(text: str) -> float | None:
    """Parse a value or a bound; None for what no measurement is, whose sums and products may be infinite."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= _MAX_VALUE else None  # nor is NaN
