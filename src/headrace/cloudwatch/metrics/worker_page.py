"""
What a worker's `/metrics` page says, and what has happened between two of its pages. Pure.

Ours and vLLM's pages are understood: both have the names of vLLM for tokens, latencies, queue and KV cache.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.cloudwatch.metrics.metric import Point

_TTFT = "vllm:time_to_first_token_seconds"
_ITL = "vllm:inter_token_latency_seconds"
_OUTPUT = "vllm:generation_tokens_total"
_WAITING = "vllm:num_requests_waiting"
_KV = "vllm:kv_cache_usage_perc"
_CPU = "process_cpu_seconds_total"
_MEMORY = "process_resident_memory_bytes"

_LINE = re.compile(r"(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)(?: -?\d+)?", re.ASCII)
_BOUND = re.compile(r'(?:^|,)le="([^"]*)"')
_SINGLE = frozenset({_OUTPUT, _WAITING, _KV, _CPU, _MEMORY})
_SUMS = {f"{name}_sum": name for name in (_TTFT, _ITL)}
_BUCKETS = {f"{name}_bucket": name for name in (_TTFT, _ITL)}


@dataclass(frozen=True, slots=True)
class Page:
    """The numbers of one page that we use; those of several engines are added up."""

    at_s: float
    numbers: dict[str, float] = field(default_factory=dict)
    buckets: dict[str, dict[float, float]] = field(default_factory=dict)
    """Name of a histogram → upper bound → how many up to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One metric of a worker, between two pages; `CloudWatch` name, unit, and what was measured."""

    name: str
    unit: str
    point: Point


def read_page(text: str, *, at_s: float) -> Page:
    """Read a page in Prometheus' text format; lines that are not understood are passed over."""
    page = Page(at_s=at_s)
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        name, value = match["name"], _number(match["value"])
        if value is None:
            continue
        if name in _SINGLE or name in _SUMS:
            page.numbers[name] = page.numbers.get(name, 0.0) + value
        elif name in _BUCKETS:
            bound = _BOUND.search(match["labels"] or "")
            upper = _number(bound[1]) if bound else None
            if upper is not None:
                counts = page.buckets.setdefault(_BUCKETS[name], {})
                counts[upper] = counts.get(upper, 0.0) + value
    return page


def seen_between(before: Page | None, now: Page, *, memory_bytes: int) -> list[Seen]:
    """
    What there is to tell of a worker.

    Args:
        before: the page of the same process before; None for its first one.
        now: the newest page.
        memory_bytes: of its host, all workers together; 0: nobody knows.
    """
    seen = [
        *_gauge("QueueDepth", "Count", now, _WAITING, 1.0),
        *_gauge("KVCacheUtilization", "Percent", now, _KV, 100.0),
        *(_gauge("MemoryUtilization", "Percent", now, _MEMORY, 100.0 / memory_bytes) if memory_bytes else ()),
    ]
    if before is None or now.at_s <= before.at_s:
        return seen
    elapsed_s = now.at_s - before.at_s
    for name, unit, counter, factor in (
        ("OutputTokensPerSecond", "Count/Second", _OUTPUT, 1.0),
        ("CPUUtilization", "Percent", _CPU, 100.0),
    ):
        grown = now.numbers.get(counter, 0.0) - before.numbers.get(counter, math.inf)
        if grown >= 0:
            seen.append(_one(name, unit, now.at_s, grown / elapsed_s * factor))
    for name, histogram in (("TimeToFirstToken", _TTFT), ("InterTokenLatency", _ITL)):
        point = _measured(before, now, histogram)
        if point is not None:
            seen.append(Seen(name=name, unit="Microseconds", point=point))
    return seen


def _gauge(name: str, unit: str, page: Page, source: str, factor: float) -> list[Seen]:
    return [_one(name, unit, page.at_s, page.numbers[source] * factor)] if source in page.numbers else []


def _one(name: str, unit: str, at_s: float, value: float) -> Seen:
    point = Point(start_s=at_s, count=1.0, total=value, minimum=value, maximum=value, values=((value, 1.0),), unit=unit)
    return Seen(name=name, unit=unit, point=point)


def _measured(before: Page, now: Page, histogram: str) -> Point | None:
    """What a histogram has counted between two pages, microseconds; values are the middles of its buckets."""
    old, new = before.buckets.get(histogram, {}), now.buckets.get(histogram, {})
    values: list[tuple[float, float]] = []
    lower, below = 0.0, 0.0
    for upper in sorted(new):
        up_to = new[upper] - old.get(upper, 0.0)
        num = up_to - below
        if num < 0:
            return None  # another process counts from the beginning
        if num:
            values.append(((lower + upper) / 2 * 1e6 if math.isfinite(upper) else lower * 1e6, num))
        lower, below = upper if math.isfinite(upper) else lower, up_to
    total_s = now.numbers.get(f"{histogram}_sum", 0.0) - before.numbers.get(f"{histogram}_sum", 0.0)
    if not values or total_s < 0:
        return None
    return Point(
        start_s=now.at_s,
        count=below,
        total=total_s * 1e6,
        minimum=values[0][0],
        maximum=values[-1][0],
        values=tuple(values),
        unit="Microseconds",
    )


def labels_of(spec: Mapping[str, object]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Namespace and dimensions of what is told of a worker, by its record."""
    component = spec.get("component")
    if component:
        return "/aws/sagemaker/InferenceComponents", (("InferenceComponentName", str(component)),)
    dimensions = (("EndpointName", str(spec["endpoint"])), ("VariantName", str(spec["variant"])))
    return "/aws/sagemaker/Endpoints", dimensions


def _number(text: str) -> float | None:
    try:
        return float(text) if not math.isnan(float(text)) else None
    except ValueError:
        return None
