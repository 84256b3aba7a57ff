"""
Values of metric math: numbers, time series and lists of them, and the operations on them. Pure.

A result that is not a number (a division by zero) yields no point. Two series are combined at the times both have.
Source: CloudWatch user guide, "Using math expressions with CloudWatch metrics".
"""

import math
import operator
import statistics
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from headrace.platform.cloudwatch.math.syntax import BadExpression


class EmptySeries(BadExpression):
    """An aggregate that is not a number, as of a series without values: not an error, its result has no values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSeries:
    """A labelled series of values, one for each period that has one."""

    label: str
    period_s: int
    points: tuple[tuple[float, float], ...]
    """(Start of the period, value), oldest first."""


Value = float | TimeSeries | tuple[TimeSeries, ...] | str

_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "^": operator.pow,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "&&": lambda a, b: bool(a) and bool(b),
    "||": lambda a, b: bool(a) or bool(b),
}


def _standard_deviation(values: Sequence[float]) -> float:
    """Return the deviation of a population; `statistics.pstdev` computes with fractions, ten times as slowly."""
    mean = statistics.fmean(values)
    return math.hypot(*(value - mean for value in values)) / math.sqrt(len(values))


_OVER: dict[str, Callable[[Sequence[float]], float]] = {
    "SUM": math.fsum,
    "AVG": statistics.fmean,
    "MIN": min,
    "MAX": max,
    "STDDEV": _standard_deviation,
}
_EACH: dict[str, Callable[[float], float]] = {
    "ABS": abs,
    "CEIL": math.ceil,
    "FLOOR": math.floor,
    "LOG": math.log,
    "LOG10": math.log10,
}
AGGREGATES, MAPPED = tuple(_OVER), tuple(_EACH)


def num_visited(operands: Sequence[Value]) -> int:
    """Return the points that an operation visits: those of a single series are visited for each series of a list."""
    lists = [operand for operand in operands if isinstance(operand, tuple)]
    num_series = max((len(series_list) for series_list in lists), default=1)
    num_single = sum(len(operand.points) for operand in operands if isinstance(operand, TimeSeries))
    return num_series * (1 + num_single) + sum(len(series.points) for series_list in lists for series in series_list)


def num_filled(value: Value, *, start_s: float, end_s: float) -> int:
    """Return the values that FILL produces of a series or a list of them."""
    series_list = value if isinstance(value, tuple) else (value,)
    return sum(
        len(_times(series, start_s=start_s, end_s=end_s)) for series in series_list if isinstance(series, TimeSeries)
    )


def operate(sign: str, left: Value, right: Value) -> Value:
    """Apply a binary operator. Raises `BadExpression`: it does not take such operands."""
    apply = _ARITHMETIC[sign]
    match left, right:
        case (tuple(), tuple()):
            raise BadExpression(f"Two lists of time series cannot be operands of {sign}. Name the series.")
        case (tuple() as series_list, other) | (other, tuple() as series_list) if not isinstance(other, str):
            is_left = series_list is left
            return _each(
                series_list, lambda series: operate(sign, series, other) if is_left else operate(sign, other, series)
            )
        case (TimeSeries(), TimeSeries()):
            others = dict(right.points)
            pairs = [(at_s, value, others[at_s]) for at_s, value in left.points if at_s in others]
            return _series(
                left.label, max(left.period_s, right.period_s), [(t, _number(apply, a, b)) for t, a, b in pairs]
            )
        case (TimeSeries(), float()):
            return _series(left.label, left.period_s, [(t, _number(apply, value, right)) for t, value in left.points])
        case (float(), TimeSeries()):
            return _series(right.label, right.period_s, [(t, _number(apply, left, value)) for t, value in right.points])
        case (float(), float()):
            number = _number(apply, left, right)
            if number is None:
                raise BadExpression(f"{left:g} {sign} {right:g} is not a number.")
            return number
    raise BadExpression(f"A text cannot be an operand of {sign}.")


def aggregate(function: str, value: Value) -> Value:
    """Apply SUM, AVG, ...: a series becomes a number, a list of series one series over the values at each time."""
    over = _OVER[function]
    if isinstance(value, TimeSeries):
        if not value.points:
            raise EmptySeries(f"{function} of a time series without values is not a number.")
        total = _number(over, [number for _, number in value.points])
        if total is None:
            raise EmptySeries(f"{function} of the time series is too large for a number.")
        return total
    if not isinstance(value, tuple):
        raise BadExpression(f"{function} takes a time series or a list of them.")
    at: dict[float, list[float]] = {}
    for series in value:
        for at_s, number in series.points:
            at.setdefault(at_s, []).append(number)
    period_s = max((series.period_s for series in value), default=60)
    return _series(function, period_s, [(at_s, _number(over, at[at_s])) for at_s in sorted(at)])


def mapped(function: str, value: Value) -> Value:
    """Apply ABS, CEIL, ... to each value."""
    apply = _EACH[function]
    if isinstance(value, tuple):
        return _each(value, partial(mapped, function))
    if isinstance(value, TimeSeries):
        return _series(value.label, value.period_s, [(t, _number(apply, v)) for t, v in value.points])
    if isinstance(value, float):
        number = _number(apply, value)
        if number is not None:
            return number
    raise BadExpression(f"{function} takes numbers.")


def change(value: Value, *, is_rate: bool) -> Value:
    """Apply DIFF, or RATE (DIFF per second), to consecutive values."""
    if isinstance(value, tuple):
        return _each(value, partial(change, is_rate=is_rate))
    if not isinstance(value, TimeSeries):
        raise BadExpression("RATE and DIFF take a time series or a list of them.")
    changes = [(t, (b - a) / (t - s) if is_rate else b - a) for (s, a), (t, b) in pairwise(value.points)]
    return _series(value.label, value.period_s, changes)


def choose(condition: Value, yes: Value, no: Value | None) -> Value:
    """Apply IF: `yes` where the condition is not 0, elsewhere `no`, or nothing without a `no`."""
    if any(isinstance(value, tuple | str) for value in (condition, yes, no)):
        raise BadExpression("IF takes numbers and single time series.")
    if isinstance(condition, float):
        chosen = yes if condition else no
        return chosen if chosen is not None else TimeSeries(label="IF", period_s=60, points=())
    assert isinstance(condition, TimeSeries)
    sides = [dict(side.points) if isinstance(side, TimeSeries) else side for side in (yes, no)]
    points = []
    for at_s, holds in condition.points:
        side = sides[0] if holds else sides[1]
        points.append((at_s, side.get(at_s) if isinstance(side, dict) else side))
    series_list = [value for value in (condition, yes, no) if isinstance(value, TimeSeries)]
    kept = [(t, float(v)) for t, v in points if isinstance(v, int | float)]
    return _series(condition.label, max(series.period_s for series in series_list), kept)


def fill(value: Value, *, filling: Value, start_s: float, end_s: float) -> Value:
    """Apply FILL: give each period without a value one from a number, another series, `REPEAT` or `LINEAR`."""
    if isinstance(value, tuple):
        return _each(value, partial(fill, filling=filling, start_s=start_s, end_s=end_s))
    if not isinstance(value, TimeSeries) or isinstance(filling, tuple):
        raise BadExpression("FILL takes a time series, and a number, a time series, REPEAT or LINEAR.")
    known, period_s = dict(value.points), value.period_s
    times = [float(at_s) for at_s in _times(value, start_s=start_s, end_s=end_s)]
    fillings = _fillings(value, filling, times)
    return _series(value.label, period_s, [(t, known.get(t, f)) for t, f in zip(times, fillings, strict=True)])


def _times(series: TimeSeries, *, start_s: float, end_s: float) -> range:
    first = int(start_s // series.period_s) * series.period_s
    return range(first, math.ceil(end_s), series.period_s)


def _fillings(series: TimeSeries, filling: float | TimeSeries | str, times: Sequence[float]) -> list[float | None]:
    """Return a value to fill with, or None, for each time."""
    if isinstance(filling, float):
        return [filling for _ in times]
    if isinstance(filling, TimeSeries):
        others = dict(filling.points)
        return [others.get(t) for t in times]
    known = dict(series.points)
    match filling.upper():
        case "REPEAT":
            last: float | None = None
            return [last := known.get(t, last) for t in times]
        case "LINEAR":
            starts = [at_s for at_s, _ in series.points]
            return [_interpolated(series.points, bisect_right(starts, t), t) for t in times]
    raise BadExpression(f"FILL fills with {filling!r}; expected a number, a time series, REPEAT or LINEAR.")


def _interpolated(points: Sequence[tuple[float, float]], num_before: int, at_s: float) -> float | None:
    """Interpolate linearly between the last of the `num_before` points up to a time and the next one."""
    if num_before == 0 or num_before == len(points):
        return None
    (before_s, before), (after_s, after) = points[num_before - 1], points[num_before]
    return before + (after - before) * (at_s - before_s) / (after_s - before_s)


def _each(series_list: Sequence[TimeSeries], apply: Callable[[TimeSeries], Value]) -> tuple[TimeSeries, ...]:
    return tuple(result for result in map(apply, series_list) if isinstance(result, TimeSeries))


def _number(apply: Callable[..., float], *operands: Any) -> float | None:
    try:
        number = apply(*operands)
    except (ArithmeticError, ValueError):
        return None
    return float(number) if not isinstance(number, complex) and math.isfinite(number) else None


def _series(label: str, period_s: int, points: Sequence[tuple[float, float | None]]) -> TimeSeries:
    kept = tuple((t, v) for t, v in points if v is not None and math.isfinite(v))
    return TimeSeries(label=label, period_s=period_s, points=kept)
