"""
CloudWatch's statistics of a datapoint: `Average`, `Sum`, `p99`, `tm90`, `TM(10%:90%)`, `PR(:300)` and so on. Pure.

Source: CloudWatch user guide, "CloudWatch statistics definitions".
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.platform.cloudwatch.metrics.metric import Point

BASIC = ("SampleCount", "Average", "Sum", "Minimum", "Maximum")

_SHORT = re.compile(r"(?P<kind>p|tm|wm|tc|ts)(?P<upper>\d{1,3}(?:\.\d{1,10})?)", re.ASCII)
_NUMBER = r"-?\d+(?:\.\d+)?"
_LONG = re.compile(
    rf"(?P<kind>TM|WM|TC|TS|PR)\((?P<lower>{_NUMBER})?(?P<lower_percent>%)?:(?P<upper>{_NUMBER})?(?P<upper_percent>%)?\)",
    re.ASCII,
)

_Values = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounded:
    """A statistic of the values between two bounds."""

    kind: str
    lower: float | None
    upper: float | None
    is_percent: bool
    """True if the bounds are percentages of the measurements, not values."""


def is_statistic(name: str) -> bool:
    return name in BASIC or _parse(name) is not None


def statistic(point: Point, name: str) -> float | None:
    """
    Return a statistic of a point: `Average`, `p0` to `p100`, `tm90`, `TM(5%:95%)`, `IQM`, ...

    None if the values that it needs are no longer kept, or none lies between its bounds.

    Raises `ValueError`: there is no such statistic.
    """
    basic = _BASIC.get(name)
    if basic is not None:
        return basic(point)
    bounded = _parse(name)
    if bounded is None:
        known = f"{', '.join(BASIC)}, p0 to p100, tm, wm, tc, ts with a percentage, TM(a:b), WM, TC, TS, PR(a:b), IQM"
        raise ValueError(f"The statistic is {name!r}; expected one of {known}.")
    if not point.values or point.minimum < 0:
        return None  # as CloudWatch: no percentiles of negative numbers
    return _evaluate(point.values, bounded)


_BASIC: dict[str, Callable[[Point], float | None]] = {
    "SampleCount": lambda point: point.count,
    "Average": lambda point: point.total / point.count if point.count else None,
    "Sum": lambda point: point.total,
    "Minimum": lambda point: point.minimum,
    "Maximum": lambda point: point.maximum,
}


def _parse(name: str) -> _Bounded | None:
    if name == "IQM":
        return _Bounded(kind="tm", lower=25.0, upper=75.0, is_percent=True)
    if match := _SHORT.fullmatch(name):
        bounded = _Bounded(kind=match["kind"], lower=0.0, upper=float(match["upper"]), is_percent=True)
    elif match := _LONG.fullmatch(name):
        bounds = [match["lower"], match["upper"]]
        percents = [match["lower_percent"], match["upper_percent"]]
        given = [percent is not None for bound, percent in zip(bounds, percents, strict=True) if bound is not None]
        has_stray_percent = any(b is None and p is not None for b, p in zip(bounds, percents, strict=True))
        if not given or has_stray_percent or len(set(given)) > 1:
            return None
        lower, upper = (None if bound is None else float(bound) for bound in bounds)
        bounded = _Bounded(kind=match["kind"].lower(), lower=lower, upper=upper, is_percent=given[0])
    else:
        return None
    return bounded if _is_sane(bounded) else None


def _is_sane(bounded: _Bounded) -> bool:
    bounds = [bound for bound in (bounded.lower, bounded.upper) if bound is not None]
    if bounded.is_percent and (bounded.kind == "pr" or any(not 0 <= bound <= 100 for bound in bounds)):
        return False
    return len(bounds) < 2 or bounds[0] < bounds[1] or bounded.kind == "p"


def _evaluate(values: _Values, bounded: _Bounded) -> float | None:
    if bounded.kind == "p":
        return _percentile(values, bounded.upper or 0.0)
    kept = _between_percentiles(values, bounded) if bounded.is_percent else _between_values(values, bounded)
    num, total = sum(count for _, count in kept), sum(value * count for value, count in kept)
    num_all = sum(count for _, count in values)
    if bounded.kind == "tc":
        return num
    if bounded.kind == "ts":
        return total
    if bounded.kind == "pr":
        return 100.0 * num / num_all
    if bounded.kind == "wm":
        return _winsorized(values, bounded)
    return total / num if num else None


def _percentile(values: _Values, percent: float) -> float:
    """Return the smallest value that at least `percent` of the measurements do not exceed."""
    rank = percent / 100 * sum(count for _, count in values)
    seen = 0.0
    for value, count in values:
        seen += count
        if seen >= rank - 1e-9:
            return value
    return values[-1][0]


def _between_values(values: _Values, bounded: _Bounded) -> list[tuple[float, float]]:
    """Select by value; the lower bound is exclusive, the upper one inclusive."""
    return [
        (value, count)
        for value, count in values
        if (bounded.lower is None or value > bounded.lower) and (bounded.upper is None or value <= bounded.upper)
    ]


def _between_percentiles(values: _Values, bounded: _Bounded) -> list[tuple[float, float]]:
    num = sum(count for _, count in values)
    first = (0.0 if bounded.lower is None else bounded.lower / 100) * num
    last = (1.0 if bounded.upper is None else bounded.upper / 100) * num
    kept, seen = [], 0.0
    for value, count in values:
        inside = min(seen + count, last) - max(seen, first)
        if inside > 0:
            kept.append((value, inside))
        seen += count
    return kept


def _winsorized(values: _Values, bounded: _Bounded) -> float | None:
    """Return the mean with values outside the bounds replaced by the bounds."""
    lower, upper = bounded.lower, bounded.upper
    if bounded.is_percent:
        kept = _between_percentiles(values, bounded)
        if not kept:
            return None
        lower, upper = kept[0][0], kept[-1][0]
    clamped = [
        (min(max(value, value if lower is None else lower), value if upper is None else upper), count)
        for value, count in values
    ]
    return sum(value * count for value, count in clamped) / sum(count for _, count in clamped)
