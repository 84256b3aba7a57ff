"""
One number of a point: `Average`, `Sum`, `p99`, `tm90`, `TM(10%:90%)`, `PR(:300)` and so on. Pure.

Source: CloudWatch user guide, "CloudWatch statistics definitions".
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.cloudwatch.metrics.metric import Point

BASIC = ("SampleCount", "Average", "Sum", "Minimum", "Maximum")

_SHORT = re.compile(r"(?P<kind>p|tm|wm|tc|ts)(?P<upper>\d{1,3}(?:\.\d{1,10})?)", re.ASCII)
_NUMBER = r"-?\d+(?:\.\d+)?"
_LONG = re.compile(
    rf"(?P<kind>TM|WM|TC|TS|PR)\((?P<lower>{_NUMBER})?(?P<lower_percent>%)?:(?P<upper>{_NUMBER})?(?P<upper_percent>%)?\)",
    re.ASCII,
)

_Values = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A statistic of the values between two bounds."""

    kind: str
    lower: float | None
    upper: float | None
    is_share: bool
    """The bounds are percent of the measurements, not values."""


def is_statistic(name: str) -> bool:
    """Whether `statistic` knows the name."""
    return name in BASIC or _asked(name) is not None


def statistic(point: Point, name: str) -> float | None:
    """
    One number of a point.

    Args:
        point: with at least one measurement.
        name: `Average`, `Sum`, `Minimum`, `Maximum`, `SampleCount`, `p0` to `p100`, `tm90`, `TM(5%:95%)`, `IQM`, ...

    Returns:
        None if the values that it needs were not kept, or none lies between its bounds.

    Raises:
        ValueError: there is no such statistic.
    """
    basic = _BASIC.get(name)
    if basic is not None:
        return basic(point)
    asked = _asked(name)
    if asked is None:
        known = f"{', '.join(BASIC)}, p0 to p100, tm, wm, tc, ts with a percentage, TM(a:b), WM, TC, TS, PR(a:b), IQM"
        raise ValueError(f"The statistic {name!r} is not known. Use one of {known}.")
    if not point.values or point.minimum < 0:
        return None  # as CloudWatch: no percentiles of negative numbers
    return _of_values(point.values, asked)


def _average(point: Point) -> float | None:
    return point.total / point.count if point.count else None


_BASIC: dict[str, Callable[[Point], float | None]] = {
    "SampleCount": lambda point: point.count,
    "Average": _average,
    "Sum": lambda point: point.total,
    "Minimum": lambda point: point.minimum,
    "Maximum": lambda point: point.maximum,
}


def _asked(name: str) -> _Asked | None:
    if name == "IQM":
        return _Asked(kind="tm", lower=25.0, upper=75.0, is_share=True)
    if match := _SHORT.fullmatch(name):
        asked = _Asked(kind=match["kind"], lower=0.0, upper=float(match["upper"]), is_share=True)
    elif match := _LONG.fullmatch(name):
        bounds = [match["lower"], match["upper"]]
        percents = [match["lower_percent"], match["upper_percent"]]
        given = [percent is not None for bound, percent in zip(bounds, percents, strict=True) if bound is not None]
        has_stray_percent = any(b is None and p is not None for b, p in zip(bounds, percents, strict=True))
        if not given or has_stray_percent or len(set(given)) > 1:
            return None
        lower, upper = (None if bound is None else float(bound) for bound in bounds)
        asked = _Asked(kind=match["kind"].lower(), lower=lower, upper=upper, is_share=given[0])
    else:
        return None
    return asked if _is_sane(asked) else None


def _is_sane(asked: _Asked) -> bool:
    bounds = [bound for bound in (asked.lower, asked.upper) if bound is not None]
    if asked.is_share and (asked.kind == "pr" or any(not 0 <= bound <= 100 for bound in bounds)):
        return False
    return len(bounds) < 2 or bounds[0] < bounds[1] or asked.kind == "p"


def _of_values(values: _Values, asked: _Asked) -> float | None:
    if asked.kind == "p":
        return _percentile(values, asked.upper or 0.0)
    kept = _between_shares(values, asked) if asked.is_share else _between_values(values, asked)
    num, total = sum(count for _, count in kept), sum(value * count for value, count in kept)
    num_all = sum(count for _, count in values)
    if asked.kind == "tc":
        return num
    if asked.kind == "ts":
        return total
    if asked.kind == "pr":
        return 100.0 * num / num_all
    if asked.kind == "wm":
        return _winsorized(values, asked)
    return total / num if num else None


def _percentile(values: _Values, percent: float) -> float:
    """The smallest value that at least so many percent of all do not exceed."""
    wanted = percent / 100 * sum(count for _, count in values)
    seen = 0.0
    for value, count in values:
        seen += count
        if seen >= wanted - 1e-9:
            return value
    return values[-1][0]


def _between_values(values: _Values, asked: _Asked) -> list[tuple[float, float]]:
    """The lower bound itself is left out, the upper one is not."""
    return [
        (value, count)
        for value, count in values
        if (asked.lower is None or value > asked.lower) and (asked.upper is None or value <= asked.upper)
    ]


def _between_shares(values: _Values, asked: _Asked) -> list[tuple[float, float]]:
    num = sum(count for _, count in values)
    first = (0.0 if asked.lower is None else asked.lower / 100) * num
    last = (1.0 if asked.upper is None else asked.upper / 100) * num
    kept, seen = [], 0.0
    for value, count in values:
        inside = min(seen + count, last) - max(seen, first)
        if inside > 0:
            kept.append((value, inside))
        seen += count
    return kept


def _winsorized(values: _Values, asked: _Asked) -> float | None:
    """The mean, with what lies outside the bounds counted as if it lay on them."""
    lower, upper = asked.lower, asked.upper
    if asked.is_share:
        kept = _between_shares(values, asked)
        if not kept:
            return None
        lower, upper = kept[0][0], kept[-1][0]
    clamped = [
        (min(max(value, value if lower is None else lower), value if upper is None else upper), count)
        for value, count in values
    ]
    return sum(value * count for value, count in clamped) / sum(count for _, count in clamped)
