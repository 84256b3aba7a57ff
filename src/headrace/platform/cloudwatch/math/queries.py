"""
Queries for metrics and for expressions of them, as in GetMetricData and alarms. Pure.

Supported: + - * / ^, comparisons, AND, OR, IF, FILL, RATE, DIFF, SUM, AVG, MIN, MAX, STDDEV, ABS, CEIL, FLOOR, LOG,
LOG10, METRICS, PERIOD, and other queries by their id. Other functions are refused with their name.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from headrace.platform.cloudwatch.math import syntax, values
from headrace.platform.cloudwatch.math.syntax import BadExpression
from headrace.platform.cloudwatch.math.values import EmptySeries, TimeSeries, Value
from headrace.platform.cloudwatch.metrics.metric import TIERS, Metric, Point, tier_of, whole_period
from headrace.platform.cloudwatch.metrics.statistics import statistic

MAX_POINTS = 100_800
"""Points of one series. Source: CloudWatch API reference, GetMetricData."""
MAX_VISITED = 10 * MAX_POINTS
"""Points that one evaluation reads and computes with: CloudWatch's limit on points a second is of this order."""
MAX_SERIES = 500
"""Time series in a list. Source: CloudWatch API reference, GetMetricData, metrics of one call."""
_MAX_CHAIN = 50
"""Longest chain of expressions that refer to each other."""
_MAX_DEPTH = 150
"""Deepest nesting of such a chain: at three calls a level, and 350 of the parser, below Python's limit of 1000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query for a metric's statistic, or for an expression of other queries."""

    id: str
    metric: Metric | None = None
    statistic: str = "Average"
    period_s: int = 60
    unit: str | None = None
    """Points with another unit are ignored."""
    expression: str = ""
    label: str = ""
    is_returned: bool = True


class ReadPoints(Protocol):
    """The signature of `SeriesReader.read`: reads the points of a metric."""

    def __call__(self, metric: Metric, *, start_s: float, end_s: float, period_s: int) -> Sequence[Point]: ...


def query_from_json(spec: Mapping[str, Any]) -> Query:
    """Parse a `MetricDataQuery` of the API."""
    label, is_returned = spec.get("Label", ""), spec.get("ReturnData", True)
    if "MetricStat" not in spec:
        period_s = int(spec.get("Period", 60))
        expression = spec.get("Expression", "")
        return Query(id=spec["Id"], expression=expression, period_s=period_s, label=label, is_returned=is_returned)
    stat = spec["MetricStat"]
    metric = stat["Metric"]
    return Query(
        id=spec["Id"],
        metric=Metric.of(metric["Namespace"], metric["MetricName"], metric.get("Dimensions")),
        statistic=stat["Stat"],
        period_s=int(stat["Period"]),
        unit=stat.get("Unit"),
        label=label,
        is_returned=is_returned,
    )


def evaluate(
    queries: Sequence[Query], read: ReadPoints, *, start_s: float, end_s: float
) -> dict[str, tuple[TimeSeries, ...]]:
    """
    Evaluate the queries that are to be returned, over [start_s, end_s); expressions may refer to the others.

    Returns:
        Id → one series; several, or none, where an expression is a list of series.

    Raises `BadExpression`: An expression is not valid, refers to a missing query or to itself, or is not a time series.
    """
    evaluation = _Evaluation({query.id: query for query in queries}, read, start_s, end_s)
    return {query.id: evaluation.result(query) for query in queries if query.is_returned}


class _Evaluation:
    def __init__(self, queries: Mapping[str, Query], read: ReadPoints, start_s: float, end_s: float) -> None:
        self._queries = queries
        self._read = read
        self._start_s, self._end_s = start_s, end_s
        self._known: dict[str, Value | EmptySeries] = {}
        self._in_progress: list[str] = []
        self._num_visited = 0
        self._depth = 0

    def result(self, query: Query) -> tuple[TimeSeries, ...]:
        try:
            value = self._value_of(query.id)
        except EmptySeries:
            value = TimeSeries(label=query.id, period_s=query.period_s, points=())
        if isinstance(value, float | str):
            raise BadExpression(
                f"The expression of {query.id} gives a {'number' if isinstance(value, float) else 'text'}, "
                "not a time series."
            )
        if isinstance(value, tuple):
            return value
        return (replace(value, label=query.label or (value.label if query.metric else query.id)),)

    def _value_of(self, name: str) -> Value:
        known = self._known.get(name)
        if isinstance(known, EmptySeries):
            raise EmptySeries(str(known))
        if known is not None:
            return known
        query = self._queries.get(name)
        if query is None:
            raise BadExpression(f"There is no query with the id {name!r}.")
        if name in self._in_progress or len(self._in_progress) >= _MAX_CHAIN:
            raise BadExpression(
                f"The expression of {name!r} refers to itself, or the chain of expressions is too long."
            )
        self._in_progress.append(name)
        try:
            is_metric = query.metric is not None
            value = self._read_metric(query) if is_metric else self._evaluate(syntax.parse(query.expression))
        except EmptySeries as error:
            self._known[name] = EmptySeries(str(error))
            raise
        finally:
            self._in_progress.pop()
        self._known[name] = value
        return value

    def _read_metric(self, query: Query) -> TimeSeries:
        assert query.metric is not None
        period_s = whole_period(query.period_s)
        if (self._end_s - self._start_s) / period_s > MAX_POINTS:
            raise BadExpression(f"The query {query.id} has more than {MAX_POINTS} points. Use a longer period.")
        points = self._read(query.metric, start_s=self._start_s, end_s=self._end_s, period_s=period_s)
        self._visit(len(points) * period_s // TIERS[tier_of(period_s)].period_s)
        found = [(p.start_s, statistic(p, query.statistic)) for p in points if query.unit in (None, p.unit)]
        kept = tuple((at_s, value) for at_s, value in found if value is not None and math.isfinite(value))
        return TimeSeries(label=query.label or query.metric.name, period_s=period_s, points=kept)

    def _visit(self, num_points: int) -> None:
        """Count points before they are computed with."""
        self._num_visited += num_points
        if self._num_visited > MAX_VISITED:
            raise BadExpression(
                f"The queries read and compute more than {MAX_VISITED:,} datapoints. Use a longer period, a shorter "
                "time range or fewer queries."
            )

    def _evaluate(self, node: syntax.Node) -> Value:
        if self._depth >= _MAX_DEPTH:
            raise BadExpression(
                f"The expression and those that it refers to are nested deeper than {_MAX_DEPTH} levels. Use fewer."
            )
        self._depth += 1
        try:
            return self._evaluate_node(node)
        finally:
            self._depth -= 1

    def _evaluate_node(self, node: syntax.Node) -> Value:
        match node:
            case syntax.Number(value) | syntax.Text(value):
                return value
            case syntax.Name(name):
                return name if name.upper() in {"REPEAT", "LINEAR"} else self._value_of(name)
            case syntax.Operation(sign, left_node, right_node):
                left, right = self._evaluate(left_node), self._evaluate(right_node)
                self._visit(values.num_visited((left, right)))
                return values.operate(sign, left, right)
            case syntax.ListLiteral(items):
                return self._list(items)
            case syntax.FunctionCall(function, arguments):
                return self._call(function, arguments)

    def _list(self, items: Sequence[syntax.Node]) -> tuple[TimeSeries, ...]:
        series_list: list[TimeSeries] = []
        for item in items:
            value = self._evaluate(item)
            if isinstance(value, float | str):
                raise BadExpression("A list in brackets can only contain time series.")
            series_list.extend(value if isinstance(value, tuple) else (value,))
            if len(series_list) > MAX_SERIES:
                raise BadExpression(f"A list has more than {MAX_SERIES} time series. Use several shorter ones.")
        self._visit(len(series_list))
        return tuple(series_list)

    def _call(self, function: str, nodes: Sequence[syntax.Node]) -> Value:
        if function == "METRICS":
            return self._metrics(nodes)
        arguments = list(map(self._evaluate, nodes))  # a comprehension is a fourth call a level
        self._visit(values.num_visited(arguments))
        if function in values.AGGREGATES and len(arguments) == 1:
            return values.aggregate(function, arguments[0])
        if function in values.MAPPED and len(arguments) == 1:
            return values.mapped(function, arguments[0])
        made = self._special(function, arguments)
        if made is not None:
            return made
        if function in _FUNCTIONS:
            raise BadExpression(f"The function {function} does not take these {len(arguments)} arguments.")
        raise BadExpression(f"The function {function} is not supported. Supported: {', '.join(sorted(_FUNCTIONS))}.")

    def _special(self, function: str, arguments: Sequence[Value]) -> Value | None:
        """Apply a function with a signature of its own; None for other functions and signatures."""
        match function, arguments:
            case ("RATE" | "DIFF", [value]):
                return values.change(value, is_rate=function == "RATE")
            case "IF", [condition, yes, *no] if len(no) <= 1:
                return values.choose(condition, yes, no[0] if no else None)
            case "FILL", [value, filling]:
                self._visit(values.num_filled(value, start_s=self._start_s, end_s=self._end_s))
                return values.fill(value, filling=filling, start_s=self._start_s, end_s=self._end_s)
            case "PERIOD", [TimeSeries() as series]:
                return float(series.period_s)
        return None

    def _metrics(self, nodes: Sequence[syntax.Node]) -> tuple[TimeSeries, ...]:
        """Apply METRICS: all queries for metrics (not expressions), or those whose id contains the text."""
        part = ""
        if nodes:
            if len(nodes) > 1 or not isinstance(nodes[0], syntax.Text):
                raise BadExpression('METRICS takes no argument, or a part of query ids in quotes: METRICS("errors").')
            part = nodes[0].value
        names = [query.id for query in self._queries.values() if query.metric is not None and part in query.id]
        self._visit(len(self._queries))
        found = (self._value_of(name) for name in names)
        return tuple(value for value in found if isinstance(value, TimeSeries))


_FUNCTIONS = frozenset({*values.AGGREGATES, *values.MAPPED, "RATE", "DIFF", "IF", "FILL", "PERIOD", "METRICS"})
