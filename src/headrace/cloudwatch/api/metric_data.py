"""Handler of GetMetricData: several metrics and expressions of them in one call."""

import re
from collections.abc import Mapping, Sequence

from headrace.cloudwatch.alarms.validation import check_queries
from headrace.cloudwatch.api.context import CloudWatchCall
from headrace.cloudwatch.errors import PAGES, validation_error
from headrace.cloudwatch.math.queries import evaluate, query_from_json
from headrace.cloudwatch.math.syntax import BadExpression
from headrace.cloudwatch.math.values import TimeSeries
from headrace.cloudwatch.metrics.members import check_period, rounded_start_s
from headrace.state.records import Json

_MAX_QUERIES = 500
_MAX_POINTS = 100_800
_TIMEZONE = re.compile(r"[+-]\d{4}", re.ASCII)


def get_metric_data(context: CloudWatchCall, params: Json) -> Json:
    """GetMetricData; an expression that yields several series has several results under its id."""
    queries = params["MetricDataQueries"]
    _check(params, queries)
    found = _evaluate(context, params, queries)
    series = [(query["Id"], line) for query in queries for line in found.get(query["Id"], ())]
    begin = PAGES.begin(params, listing="metric data")
    end = begin + params.get("MaxDatapoints", _MAX_POINTS)
    is_descending = params.get("ScanBy", "TimestampDescending") == "TimestampDescending"
    results, position = [], 0
    for name, line in series:
        points = line.points[::-1] if is_descending else line.points
        results.append(_result(name, line.label, points, begin=begin - position, end=end - position))
        position += len(points)
    token = PAGES.token_at(end, listing="metric data") if position > end else {}
    return {"MetricDataResults": results, "Messages": [], **token}


def _check(params: Json, queries: Sequence[Json]) -> None:
    if not queries:
        raise validation_error("The parameter MetricDataQueries must have at least one query.")
    if len(queries) > _MAX_QUERIES:
        raise validation_error(f"The collection MetricDataQueries must not have a size greater than {_MAX_QUERIES}.")
    check_queries(queries)
    for query in queries:
        check_period(query["MetricStat"]["Period"] if "MetricStat" in query else query.get("Period", 60))
    if params["StartTime"] >= params["EndTime"]:
        raise validation_error("The parameter StartTime must be less than the parameter EndTime.")
    if params.get("MaxDatapoints", 1) < 1:
        raise validation_error("The parameter MaxDatapoints must be greater than 0.")
    timezone = (params.get("LabelOptions") or {}).get("Timezone", "+0000")
    if not _TIMEZONE.fullmatch(timezone):
        raise validation_error(f"LabelOptions.Timezone is {timezone[:20]!r}; expected an offset such as +0130.")


def _evaluate(context: CloudWatchCall, params: Json, queries: Sequence[Json]) -> Mapping[str, tuple[TimeSeries, ...]]:
    try:
        return evaluate(
            [query_from_json(query) for query in queries],
            context.series.read,
            start_s=rounded_start_s(params["StartTime"], period_s=1, now_s=context.now_s),
            end_s=params["EndTime"],
        )
    except BadExpression as error:
        raise validation_error(f"Error in expression: {error}") from error


def _result(name: str, label: str, points: Sequence[tuple[float, float]], *, begin: int, end: int) -> Json:
    """Render the part of a series on this page; `begin` and `end` count from the series' first point."""
    chosen = points[max(begin, 0) : max(end, 0)]
    return {
        "Id": name,
        "Label": label,
        "Timestamps": [at_s for at_s, _ in chosen],
        "Values": [value for _, value in chosen],
        "StatusCode": "PartialData" if len(points) > max(end, 0) else "Complete",
    }
