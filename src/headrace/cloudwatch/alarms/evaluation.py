"""
Evaluates an alarm's rule: the state that follows from the datapoints of its metric. Pure.

Source: CloudWatch user guide, "Using Amazon CloudWatch alarms": evaluating an alarm, how alarm state is evaluated when
data is missing, avoiding premature transitions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.cloudwatch.alarms.rules import AlarmRule, AlarmState
from headrace.cloudwatch.math import queries as metric_math
from headrace.cloudwatch.math.queries import ReadPoints
from headrace.cloudwatch.metrics.retention import whole_period
from headrace.cloudwatch.metrics.statistics import statistic


@dataclass(frozen=True, slots=True, kw_only=True)
class Datapoint:
    """The watched statistic over one period that had measurements."""

    start_s: float
    """Seconds since 1970."""
    value: float
    count: float = 1.0
    """Measurements behind the value."""


class ReadDatapoints(Protocol):
    """Reads what an alarm watches: at most one datapoint for each period, oldest first; gaps have none."""

    def __call__(self, rule: AlarmRule, *, start_s: float, end_s: float) -> Sequence[Datapoint]:
        """Return the datapoints whose periods lie in [start_s, end_s)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The state of an alarm, and the datapoints that led to it."""

    state: AlarmState
    evaluated: tuple[Datapoint, ...]
    """The datapoints that counted, oldest first."""
    num_filled: int
    """Missing datapoints that were treated as `AlarmRule.missing` says."""

    @property
    def values(self) -> tuple[float, ...]:
        """The evaluated values, oldest first."""
        return tuple(point.value for point in self.evaluated)


def evaluate_rule(rule: AlarmRule, datapoints: Sequence[Datapoint], *, state: AlarmState, end_s: float) -> Evaluation:
    """
    Return the state that follows from the datapoints of the evaluation range.

    Args:
        rule: The alarm's rule.
        datapoints: Datapoints, oldest first; those before the range are ignored.
        state: The current state, kept where the rule says so.
        end_s: End of the range, exclusive; see `AlarmRule.window`.
    """
    start_s = end_s - rule.range_periods * rule.period_s
    found = tuple(point for point in datapoints if start_s <= point.start_s < end_s)
    evaluated = found[-rule.evaluation_periods :]
    num_filled = rule.evaluation_periods - len(evaluated)
    if rule.min_samples and evaluated and sum(point.count for point in evaluated) < rule.min_samples:
        return Evaluation(state=state, evaluated=evaluated, num_filled=num_filled)
    if num_filled == 0 or rule.missing in ("breaching", "notBreaching"):
        num_breaching = rule.num_breaching(point.value for point in evaluated)
        num_breaching += num_filled if rule.missing == "breaching" else 0
        result: AlarmState = "ALARM" if num_breaching >= rule.datapoints_to_alarm else "OK"
    else:
        result = _with_gaps(rule, evaluated, state=state, end_s=end_s)
    return Evaluation(state=result, evaluated=evaluated, num_filled=num_filled)


def _with_gaps(rule: AlarmRule, evaluated: Sequence[Datapoint], *, state: AlarmState, end_s: float) -> AlarmState:
    """Evaluate `missing` and `ignore` with fewer values than evaluation periods."""
    is_ignoring = rule.missing == "ignore"
    if not evaluated:
        return state if is_ignoring else "INSUFFICIENT_DATA"
    num_breaching = rule.num_breaching(point.value for point in evaluated)
    if num_breaching >= rule.datapoints_to_alarm:
        return "ALARM"
    if num_breaching < len(evaluated):
        return "OK"
    if is_ignoring:
        return state
    # All values breach, but they are too few. The alarm is raised early once they are old enough: had the later
    # periods been fine, their values would have arrived. Until then the state stays.
    age_periods = (end_s - evaluated[0].start_s) / rule.period_s
    return "ALARM" if age_periods >= rule.datapoints_to_alarm else state


def read_datapoints(rule: AlarmRule, read: ReadPoints, *, start_s: float, end_s: float) -> Sequence[Datapoint]:
    """
    Read what a rule watches in [start_s, end_s): one metric's statistic, or an expression of several metrics.

    Args:
        rule: The alarm's rule.
        read: Reads the points of a metric.
        start_s: Start of the range, seconds since 1970.
        end_s: End of the range, exclusive.

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
    """Evaluate the rule's expression; of several series the first counts."""
    queries = [metric_math.query_from_json(query) for query in rule.queries]
    results = metric_math.evaluate(queries, read, start_s=start_s, end_s=end_s)
    series = next((found[0] for found in results.values() if found), None)
    return [Datapoint(start_s=at_s, value=value) for at_s, value in series.points] if series is not None else []
