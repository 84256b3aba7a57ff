"""
Queries for metrics and for what is computed from them, as GetMetricData and alarms have them. Pure.

What is there: + - * / ^, comparisons, AND, OR, IF, FILL, RATE, DIFF, SUM, AVG, MIN, MAX, STDDEV, ABS, CEIL, FLOOR, LOG,
LOG10, METRICS, PERIOD, and other queries by their id. Other functions are refused by name.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from headrace.cloudwatch.math import values
from headrace.cloudwatch.math.syntax import BadExpression, Call, Listed, Name, Node, Number, Operation, Text, parse
from headrace.cloudwatch.math.values import Line, NothingThere, Value
from headrace.cloudwatch.metrics.metric import Metric, Point
from headrace.cloudwatch.metrics.retention import whole_period
from headrace.cloudwatch.metrics.statistics import statistic

MAX_POINTS = 100_800
"""Of one series. Source: CloudWatch API reference, GetMetricData."""
_MAX_CHAIN = 50
"""Expressions that refer to one another, one behind the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A metric's statistic, or an expression."""

    id: str
    metric: Metric | None = None
    statistic: str = "Average"
    period_s: int = 60
    unit: str | None = None
    """Points with another unit are left out."""
    expression: str = ""
    label: str = ""
    is_returned: bool = True


class Read(Protocol):
    """`SeriesReader.read`."""

    def __call__(self, metric: Metric, *, start_s: float, end_s: float, period_s: int) -> Sequence[Point]:
        """The points of [start_s, end_s), oldest first."""
        ...


def query_from_json(spec: Mapping[str, Any]) -> Query:
    """Read a `MetricDataQuery` as the API has it."""
    label, is_returned = spec.get("Label", ""), spec.get("ReturnData", True)
    if "MetricStat" not in spec:
        period_s = int(spec.get("Period", 60))
        expression = spec.get("Expression", "")
        return Query(id=spec["Id"], expression=expression, period_s=period_s, label=label, is_returned=is_returned)
    stat = spec["MetricStat"]
    asked = stat["Metric"]
    dimensions = tuple(sorted((one["Name"], one["Value"]) for one in asked.get("Dimensions") or ()))
    return Query(
        id=spec["Id"],
        metric=Metric(namespace=asked["Namespace"], name=asked["MetricName"], dimensions=dimensions),
        statistic=stat["Stat"],
        period_s=int(stat["Period"]),
        unit=stat.get("Unit"),
        label=label,
        is_returned=is_returned,
    )


def evaluate(queries: Sequence[Query], read: Read, *, start_s: float, end_s: float) -> dict[str, tuple[Line, ...]]:
    """
    Answer the queries that are to be returned.

    Args:
        queries: ids are unique; expressions may refer to queries that are not returned.
        read: gives points of metrics.
        start_s: from when on.
        end_s: until when, not included.

    Returns:
        Id → one series; several, or none, where an expression is a list of series.

    Raises:
        BadExpression: an expression cannot be read, refers to what is not there or to itself, or is no time series.
    """
    work = _Evaluation({query.id: query for query in queries}, read, start_s, end_s)
    return {query.id: work.lines(query) for query in queries if query.is_returned}


class _Evaluation:
    def __init__(self, queries: Mapping[str, Query], read: Read, start_s: float, end_s: float) -> None:
        self._queries = queries
        self._read = read
        self._start_s, self._end_s = start_s, end_s
        self._known: dict[str, Value] = {}
        self._under_way: list[str] = []

    def lines(self, query: Query) -> tuple[Line, ...]:
        """The answer to one query."""
        try:
            value = self._value_of(query.id)
        except NothingThere:
            value = Line(label=query.id, period_s=query.period_s, points=())
        if isinstance(value, float | str):
            raise BadExpression(
                f"The expression of {query.id} gives a {'number' if isinstance(value, float) else 'text'}, "
                "not a time series."
            )
        if isinstance(value, tuple):
            return value
        return (replace(value, label=query.label or (value.label if query.metric else query.id)),)

    def _value_of(self, name: str) -> Value:
        if name in self._known:
            return self._known[name]
        query = self._queries.get(name)
        if query is None:
            raise BadExpression(f"There is no query with the id {name!r}.")
        if name in self._under_way or len(self._under_way) >= _MAX_CHAIN:
            raise BadExpression(
                f"The expression of {name!r} refers to itself, or the chain of expressions is too long."
            )
        self._under_way.append(name)
        try:
            value = self._of_metric(query) if query.metric is not None else self._of(parse(query.expression))
        finally:
            self._under_way.pop()
        self._known[name] = value
        return value

    def _of_metric(self, query: Query) -> Line:
        assert query.metric is not None
        period_s = whole_period(query.period_s)
        if (self._end_s - self._start_s) / period_s > MAX_POINTS:
            raise BadExpression(f"The query {query.id} asks for more than {MAX_POINTS} points. Use a longer period.")
        points = self._read(query.metric, start_s=self._start_s, end_s=self._end_s, period_s=period_s)
        found = [(p.start_s, statistic(p, query.statistic)) for p in points if query.unit in (None, p.unit)]
        kept = tuple((at_s, value) for at_s, value in found if value is not None and math.isfinite(value))
        return Line(label=query.label or query.metric.name, period_s=period_s, points=kept)

    def _of(self, node: Node) -> Value:
        match node:
            case Number(value) | Text(value):
                return value
            case Name(name):
                return name if name.upper() in {"REPEAT", "LINEAR"} else self._value_of(name)
            case Operation(sign, left, right):
                return values.operate(sign, self._of(left), self._of(right))
            case Listed(items):
                return self._listed(items)
            case Call(function, arguments):
                return self._call(function, arguments)

    def _listed(self, items: Sequence[Node]) -> tuple[Line, ...]:
        lines: list[Line] = []
        for item in items:
            value = self._of(item)
            if isinstance(value, float | str):
                raise BadExpression("A list in brackets takes time series only.")
            lines.extend(value if isinstance(value, tuple) else (value,))
        return tuple(lines)

    def _call(self, function: str, nodes: Sequence[Node]) -> Value:
        if function == "METRICS":
            return self._metrics(nodes)
        arguments = [self._of(node) for node in nodes]
        if function in values.AGGREGATES and len(arguments) == 1:
            return values.aggregate(function, arguments[0])
        if function in values.MAPPED and len(arguments) == 1:
            return values.mapped(function, arguments[0])
        made = self._special(function, arguments)
        if made is not None:
            return made
        if function in _FUNCTIONS:
            raise BadExpression(f"The function {function} does not take {len(arguments)} such arguments.")
        raise BadExpression(f"The function {function} is not supported. There are {', '.join(sorted(_FUNCTIONS))}.")

    def _special(self, function: str, arguments: Sequence[Value]) -> Value | None:
        """Functions with arguments of their own; None if it is none of them."""
        match function, arguments:
            case ("RATE" | "DIFF", [value]):
                return values.change(value, is_rate=function == "RATE")
            case "IF", [condition, yes, *no] if len(no) <= 1:
                return values.choose(condition, yes, no[0] if no else None)
            case "FILL", [value, filling]:
                return values.fill(value, filling, start_s=self._start_s, end_s=self._end_s)
            case "PERIOD", [Line() as line]:
                return float(line.period_s)
        return None

    def _metrics(self, nodes: Sequence[Node]) -> tuple[Line, ...]:
        """All queries of metrics (no expressions), or those whose id has the text in it."""
        wanted = ""
        if nodes:
            if len(nodes) > 1 or not isinstance(nodes[0], Text):
                raise BadExpression('METRICS takes nothing, or a part of ids in quotes: METRICS("errors").')
            wanted = nodes[0].value
        names = [query.id for query in self._queries.values() if query.metric is not None and wanted in query.id]
        found = (self._value_of(name) for name in names)
        return tuple(value for value in found if isinstance(value, Line))


_FUNCTIONS = frozenset({*values.AGGREGATES, *values.MAPPED, "RATE", "DIFF", "IF", "FILL", "PERIOD", "METRICS"})
