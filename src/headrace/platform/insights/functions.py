"""
Functions and aggregates of the Insights language, as tables. Pure.

Values are texts, numbers, booleans and None: a field that a line does not have. Functions of None return None.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

Value = str | float | bool | None

PERIOD_S: Final = {
    "ms": 0.001,
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
    **dict.fromkeys(("w", "week", "weeks"), 604_800.0),
}
MAX_TEXT: Final = 256 << 10
"""Longest text that a function returns."""


def number(value: Value) -> float | None:
    """Return a value as a number; None if it is none."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def text(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _numeric(function: Callable[..., float]) -> Callable[..., Value]:
    """Return a function of numbers; None for operands that are none, and where it is not defined."""

    def apply(*operands: Value) -> Value:
        numbers = [number(operand) for operand in operands]
        if any(operand is None for operand in numbers):
            return None
        try:
            return number(function(*numbers))
        except (ValueError, ArithmeticError):
            return None

    return apply


def _textual(function: Callable[..., Value]) -> Callable[..., Value]:
    return lambda value, *rest: None if value is None else function(text(value), *rest)


def _substr(value: str, start: Value, length: Value = None) -> Value:
    begin = int(number(start) or 0)
    size = number(length)
    return value[begin:] if size is None else value[begin : begin + int(size)]


def _trimming(function: Callable[[str, str | None], str]) -> Callable[..., Value]:
    """Return a function that removes white space, or the given characters, from a text."""
    return _textual(lambda value, characters=None: function(value, None if characters is None else text(characters)))


def _floor(value: float, period_s: float) -> float:
    """Return the beginning of the period that a time in milliseconds is in."""
    step = period_s * 1000
    return math.floor(value / step) * step


Function = tuple[int, int, Callable[..., Value]]
"""The least and the largest number of operands, and the function."""
FUNCTIONS: Final[dict[str, Function]] = {
    "abs": (1, 1, _numeric(abs)),
    "ceil": (1, 1, _numeric(math.ceil)),
    "floor": (1, 1, _numeric(math.floor)),
    "log": (1, 1, _numeric(math.log)),
    "sqrt": (1, 1, _numeric(math.sqrt)),
    "greatest": (1, 20, _numeric(lambda *numbers: max(numbers))),
    "least": (1, 20, _numeric(lambda *numbers: min(numbers))),
    "bin": (1, 1, lambda *_: None),  # of the time of a line: see `evaluation`
    "datefloor": (2, 2, _numeric(_floor)),
    "dateceil": (2, 2, _numeric(lambda value, period_s: -_floor(-value, period_s))),
    "frommillis": (1, 1, _numeric(float)),
    "tomillis": (1, 1, _numeric(float)),
    "coalesce": (1, 20, lambda *values: next((value for value in values if value is not None), None)),
    "ispresent": (1, 1, lambda value: value is not None),
    "isempty": (1, 1, lambda value: value is None or value == ""),
    "isblank": (1, 1, lambda value: not text(value).strip()),
    "concat": (1, 20, lambda *values: "".join(map(text, values))[:MAX_TEXT]),
    "strlen": (1, 1, _textual(lambda value: float(len(value)))),
    "toupper": (1, 1, _textual(str.upper)),
    "tolower": (1, 1, _textual(str.lower)),
    "trim": (1, 2, _trimming(str.strip)),
    "ltrim": (1, 2, _trimming(str.lstrip)),
    "rtrim": (1, 2, _trimming(str.rstrip)),
    "substr": (2, 3, _textual(_substr)),
    "replace": (3, 3, _textual(lambda value, old, new: value.replace(text(old), text(new))[:MAX_TEXT])),
    "strcontains": (2, 2, _textual(lambda value, part: text(part) in value)),
}
OPERATORS: Final[dict[str, Callable[..., Value]]] = {
    "+": _numeric(lambda left, right: left + right),
    "-": _numeric(lambda left, right: left - right),
    "*": _numeric(lambda left, right: left * right),
    "/": _numeric(lambda left, right: left / right),
    "%": _numeric(math.fmod),
    "^": _numeric(math.pow),
}


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` percent of sorted values do not exceed."""
    return values[min(max(math.ceil(share / 100 * len(values)), 1), len(values)) - 1]


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def _median(values: list[float]) -> float:
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


def _deviation(values: list[float]) -> float:
    mean = _mean(values)
    return math.sqrt(_mean([(value - mean) ** 2 for value in values]))


def _of_numbers(function: Callable[[list[float]], float]) -> Callable[..., Value]:
    def apply(values: Sequence[Value], *_: Value) -> Value:
        numbers = sorted(found for value in values if (found := number(value)) is not None)
        return function(numbers) if numbers else None

    return apply


def _percent(values: Sequence[Value], share: Value = None) -> Value:
    numbers = sorted(found for value in values if (found := number(value)) is not None)
    return percentile(numbers, number(share) or 0.0) if numbers else None


def _extreme(choose: Callable[[Any], Any]) -> Callable[..., Value]:
    """Return the smallest or the largest value: of numbers, if all are."""

    def apply(values: Sequence[Value], *_: Value) -> Value:
        numbers = [number(value) for value in values]
        if not numbers:
            return None
        if any(found is None for found in numbers):
            return cast("Value", choose(text(value) for value in values))
        return cast("Value", choose(numbers))

    return apply


Aggregate = tuple[int, int, Callable[..., Value]]
AGGREGATES: Final[dict[str, Aggregate]] = {
    "count": (0, 1, lambda values, *_: float(len(values))),
    "count_distinct": (1, 1, lambda values, *_: float(len(set(map(text, values))))),
    "sum": (1, 1, _of_numbers(math.fsum)),
    "avg": (1, 1, _of_numbers(_mean)),
    "median": (1, 1, _of_numbers(_median)),
    "stddev": (1, 1, _of_numbers(_deviation)),
    "min": (1, 1, _extreme(min)),
    "max": (1, 1, _extreme(max)),
    "pct": (2, 2, _percent),
    "percentile": (2, 2, _percent),
    "earliest": (1, 1, lambda values, *_: values[0] if values else None),
    "latest": (1, 1, lambda values, *_: values[-1] if values else None),
    "sortsfirst": (1, 1, lambda values, *_: min(map(text, values), default=None)),
    "sortslast": (1, 1, lambda values, *_: max(map(text, values), default=None)),
}
"""Aggregates take the values of a group that are not None, in the order of their lines."""
