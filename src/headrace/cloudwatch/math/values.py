"""
What expressions of metric math are made of: numbers, time series and lists of them, and how they go together. Pure.

A result that is no number (a division by zero) has no point. Two series meet at the times that both have.
Source: CloudWatch user guide, "Using math expressions with CloudWatch metrics".
"""

import math
import operator
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace.cloudwatch.math.syntax import BadExpression


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A time series."""

    label: str
    period_s: int
    points: tuple[tuple[float, float], ...]
    """(Start of the period, value), oldest first; periods without a value have none."""


MAX_FILLED = 100_800
"""Source: CloudWatch API reference, GetMetricData, points of one call."""

Value = float | Line | tuple[Line, ...] | str

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
_OVER: dict[str, Callable[[Sequence[float]], float]] = {
    "SUM": math.fsum,
    "AVG": statistics.fmean,
    "MIN": min,
    "MAX": max,
    "STDDEV": statistics.pstdev,
}
_EACH: dict[str, Callable[[float], float]] = {
    "ABS": abs,
    "CEIL": math.ceil,
    "FLOOR": math.floor,
    "LOG": math.log,
    "LOG10": math.log10,
}
AGGREGATES, MAPPED = tuple(_OVER), tuple(_EACH)


def operate(sign: str, left: Value, right: Value) -> Value:
    """
    `left sign right`.

    Raises:
        BadExpression: they do not go together.
    """
    apply = _ARITHMETIC[sign]
    match left, right:
        case (tuple(), tuple()):
            raise BadExpression(f"Two lists of time series cannot be operands of {sign}. Name the series.")
        case (tuple() as lines, other) | (other, tuple() as lines) if not isinstance(other, str):
            is_left = lines is left
            made = [operate(sign, line, other) if is_left else operate(sign, other, line) for line in lines]
            return tuple(line for line in made if isinstance(line, Line))
        case (Line(), Line()):
            others = dict(right.points)
            pairs = [(at_s, value, others[at_s]) for at_s, value in left.points if at_s in others]
            return _line(
                left.label, max(left.period_s, right.period_s), [(t, _number(apply, a, b)) for t, a, b in pairs]
            )
        case (Line(), float()):
            return _line(left.label, left.period_s, [(t, _number(apply, value, right)) for t, value in left.points])
        case (float(), Line()):
            return _line(right.label, right.period_s, [(t, _number(apply, left, value)) for t, value in right.points])
        case (float(), float()):
            number = _number(apply, left, right)
            if number is None:
                raise BadExpression(f"{left:g} {sign} {right:g} is not a number.")
            return number
    raise BadExpression(f"A text cannot be an operand of {sign}.")


def aggregate(function: str, value: Value) -> Value:
    """SUM, AVG, ...: of one series a number, of several a series of what they have at each time."""
    over = _OVER[function]
    if isinstance(value, Line):
        if not value.points:
            raise NothingThere(f"{function} of a time series without values is not a number.")
        return float(over([number for _, number in value.points]))
    if not isinstance(value, tuple):
        raise BadExpression(f"{function} takes a time series or a list of them.")
    at: dict[float, list[float]] = {}
    for line in value:
        for at_s, number in line.points:
            at.setdefault(at_s, []).append(number)
    period_s = max((line.period_s for line in value), default=60)
    return _line(function, period_s, [(at_s, float(over(at[at_s]))) for at_s in sorted(at)])


class NothingThere(BadExpression):
    """A number was asked of a series that has no values: not an error, the result has none either."""


def mapped(function: str, value: Value) -> Value:
    """ABS, CEIL, ...: of each value."""
    apply = _EACH[function]
    if isinstance(value, tuple):
        return tuple(line for line in (mapped(function, one) for one in value) if isinstance(line, Line))
    if isinstance(value, Line):
        return _line(
            value.label, value.period_s, [(t, _number(lambda a, _: apply(a), v, 0.0)) for t, v in value.points]
        )
    if isinstance(value, float):
        number = _number(lambda a, _: apply(a), value, 0.0)
        if number is not None:
            return number
    raise BadExpression(f"{function} takes numbers.")


def change(value: Value, *, is_rate: bool) -> Value:
    """DIFF, and RATE, which is per second: from one value to the next."""
    if isinstance(value, tuple):
        return tuple(line for line in (change(one, is_rate=is_rate) for one in value) if isinstance(line, Line))
    if not isinstance(value, Line):
        raise BadExpression("RATE and DIFF take a time series or a list of them.")
    changes = [(t, (b - a) / (t - s) if is_rate else b - a) for (s, a), (t, b) in pairwise(value.points)]
    return _line(value.label, value.period_s, changes)


def choose(condition: Value, yes: Value, no: Value | None) -> Value:
    """IF: `yes` where the condition is not 0, `no` elsewhere; without a `no` nothing stands there."""
    if any(isinstance(one, tuple | str) for one in (condition, yes, no)):
        raise BadExpression("IF takes numbers and single time series.")
    if isinstance(condition, float):
        chosen = yes if condition else no
        return chosen if chosen is not None else Line(label="IF", period_s=60, points=())
    assert isinstance(condition, Line)
    sides = [dict(side.points) if isinstance(side, Line) else side for side in (yes, no)]
    points = []
    for at_s, holds in condition.points:
        side = sides[0] if holds else sides[1]
        points.append((at_s, side.get(at_s) if isinstance(side, dict) else side))
    lines = [one for one in (condition, yes, no) if isinstance(one, Line)]
    kept = [(t, float(v)) for t, v in points if isinstance(v, int | float)]
    return _line(condition.label, max(line.period_s for line in lines), kept)


def fill(value: Value, filling: Value, *, start_s: float, end_s: float) -> Value:
    """FILL: a value for each period that has none; a number, another series, `REPEAT` or `LINEAR`."""
    if isinstance(value, tuple):
        filled = (fill(one, filling, start_s=start_s, end_s=end_s) for one in value)
        return tuple(line for line in filled if isinstance(line, Line))
    if not isinstance(value, Line) or isinstance(filling, tuple):
        raise BadExpression("FILL takes a time series, and a number, a time series, REPEAT or LINEAR.")
    known, period_s = dict(value.points), value.period_s
    first = int(start_s // period_s) * period_s
    if (end_s - first) / period_s > MAX_FILLED:
        raise BadExpression(f"FILL would make more than {MAX_FILLED} values. Use a longer period.")
    times = [float(at_s) for at_s in range(first, math.ceil(end_s), period_s)]
    if isinstance(filling, float):
        points: list[tuple[float, float | None]] = [(t, known.get(t, filling)) for t in times]
    elif isinstance(filling, Line):
        others = dict(filling.points)
        points = [(t, known.get(t, others.get(t))) for t in times]
    elif filling.upper() == "REPEAT":
        points, last = [], None
        for t in times:
            last = known.get(t, last)
            points.append((t, last))
    elif filling.upper() == "LINEAR":
        points = [(t, _between(value.points, t)) for t in times]
    else:
        raise BadExpression(f"FILL cannot fill with {filling!r}; use a number, a time series, REPEAT or LINEAR.")
    return _line(value.label, period_s, points)


def _between(points: Sequence[tuple[float, float]], at_s: float) -> float | None:
    before = next((point for point in reversed(points) if point[0] <= at_s), None)
    after = next((point for point in points if point[0] >= at_s), None)
    if before is None or after is None:
        return None
    if before[0] == after[0]:
        return before[1]
    return before[1] + (after[1] - before[1]) * (at_s - before[0]) / (after[0] - before[0])


def _number(apply: Callable[[float, float], float], left: float, right: float) -> float | None:
    try:
        number = apply(left, right)
    except (ArithmeticError, ValueError):
        return None
    return float(number) if not isinstance(number, complex) and math.isfinite(number) else None


def _line(label: str, period_s: int, points: Sequence[tuple[float, float | None]]) -> Line:
    return Line(label=label, period_s=period_s, points=tuple((t, v) for t, v in points if v is not None))
