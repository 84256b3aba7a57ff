"""What an alarm watches, read from series of measurements: one metric's statistic, or an expression of several."""

from collections.abc import Sequence

from headrace.cloudwatch.alarms.rules import AlarmRule, Datapoint
from headrace.cloudwatch.math import queries as metric_math
from headrace.cloudwatch.math.queries import ReadPoints
from headrace.cloudwatch.metrics.retention import whole_period
from headrace.cloudwatch.metrics.statistics import statistic


def read_datapoints(rule: AlarmRule, read: ReadPoints, *, start_s: float, end_s: float) -> Sequence[Datapoint]:
    """
    The datapoints of [start_s, end_s), oldest first; periods without measurements have none.

    Args:
        rule: The alarm.
        read: Gives points of metrics.
        start_s: Seconds since 1970.
        end_s: Not included.

    Raises:
        BadExpression: The expression cannot be evaluated.
    """
    if rule.metric is None:
        return _computed(rule, read, start_s, end_s)
    points = read(rule.metric, start_s=start_s, end_s=end_s, period_s=whole_period(rule.period_s))
    return [
        Datapoint(start_s=point.start_s, value=value, count=point.count)
        for point in points
        if rule.unit in (None, point.unit) and (value := statistic(point, rule.statistic)) is not None
    ]


def _computed(rule: AlarmRule, read: ReadPoints, start_s: float, end_s: float) -> Sequence[Datapoint]:
    """What an expression gives; of several series the first."""
    queries = [metric_math.query_from_json(query) for query in rule.queries]
    found = metric_math.evaluate(queries, read, start_s=start_s, end_s=end_s)
    line = next((lines[0] for lines in found.values() if lines), None)
    return [Datapoint(start_s=at_s, value=value) for at_s, value in line.points] if line is not None else []
