"""
Alarm definitions as PutMetricAlarm takes them, the rule that each of them states, and the state that follows. Pure.

Source: CloudWatch API reference, PutMetricAlarm; user guide, "Using Amazon CloudWatch alarms": evaluating an alarm, how
alarm state is evaluated when data is missing, avoiding premature transitions.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, cast, get_args

import msgspec

from headrace.platform.cloudwatch.math import queries as metric_math
from headrace.platform.cloudwatch.math.queries import ReadPoints
from headrace.platform.cloudwatch.metrics.metric import Metric, whole_period
from headrace.platform.cloudwatch.metrics.statistics import statistic
from headrace.platform.state.records import Json

AlarmState = Literal["OK", "ALARM", "INSUFFICIENT_DATA"]
Comparison = Literal[
    "GreaterThanOrEqualToThreshold", "GreaterThanThreshold", "LessThanThreshold", "LessThanOrEqualToThreshold"
]
Treatment = Literal["missing", "ignore", "breaching", "notBreaching"]

COMPARES: Mapping[Comparison, Callable[[float, float], bool]] = {
    "GreaterThanOrEqualToThreshold": operator.ge,
    "GreaterThanThreshold": operator.gt,
    "LessThanThreshold": operator.lt,
    "LessThanOrEqualToThreshold": operator.le,
}

EXTRA_PERIODS = 2
"""
Periods that are read besides the evaluation periods, in case some of those have no data. CloudWatch makes the number
depend on the period, and its guide's examples show 5 for 3 evaluation periods; Headrace always reads 2 more.
"""

MINUTE_S = 60
"""Alarms with a period of a minute or more are evaluated every minute, all others every 10 s."""


class AlarmDefinition(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """The members of PutMetricAlarm that Headrace supports, under AWS's names."""

    alarm_name: str = ""
    alarm_description: str | None = None
    actions_enabled: bool = True
    ok_actions: list[str] = msgspec.field(default_factory=list, name="OKActions")
    alarm_actions: list[str] = msgspec.field(default_factory=list)
    insufficient_data_actions: list[str] = msgspec.field(default_factory=list)
    metric_name: str | None = None
    namespace: str | None = None
    statistic: str | None = None
    extended_statistic: str | None = None
    dimensions: list[Json] | None = None
    period: int | None = None
    unit: str | None = None
    evaluation_periods: int | None = None
    datapoints_to_alarm: int | None = None
    threshold: float | None = None
    comparison_operator: str | None = None
    treat_missing_data: str | None = None
    evaluate_low_sample_count_percentile: str | None = None
    metrics: list[Json] | None = None
    evaluation_window: Json | None = None
    action_configuration: Json | None = None

    def actions_on(self, state: AlarmState) -> list[str]:
        """Return the actions that start when the alarm enters a state."""
        return self._actions[state] if self.actions_enabled else []

    @property
    def actions(self) -> list[str]:
        """The actions for any state, enabled or not."""
        return [action for actions in self._actions.values() for action in actions]

    @property
    def _actions(self) -> Mapping[AlarmState, list[str]]:
        return {
            "OK": self.ok_actions,
            "ALARM": self.alarm_actions,
            "INSUFFICIENT_DATA": self.insufficient_data_actions,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmRule:
    """The condition for ALARM: M (`datapoints_to_alarm`) of the last N (`evaluation_periods`) values breach."""

    threshold: float
    comparison: Comparison
    evaluation_periods: int
    datapoints_to_alarm: int
    period_s: int
    missing: Treatment = "missing"
    metric: Metric | None = None
    """None: the alarm watches `queries`."""
    statistic: str = "Average"
    """Statistic of `metric`: `Average`, `Sum`, ..., or an extended one such as `p99`."""
    unit: str | None = None
    queries: tuple[Json, ...] = ()
    """MetricDataQuery members, for an alarm on metric math; the one whose ReturnData is true is watched."""
    min_samples: float = 0.0
    """Measurements that a percentile needs to be meaningful; with fewer the alarm keeps its state."""

    @property
    def range_periods(self) -> int:
        """The number of periods in which values are looked for: the guide's evaluation range."""
        return self.evaluation_periods + EXTRA_PERIODS

    @property
    def watched_s(self) -> float:
        """The length of the evaluation periods together."""
        return float(self.evaluation_periods * self.period_s)

    def is_from_gaps(self, state: AlarmState, values: Sequence[float]) -> bool:
        """Return whether the alarm is in `state` because data are missing, not because of its values."""
        num_breaching = self.num_breaching(values)
        return num_breaching < self.datapoints_to_alarm if state == "ALARM" else num_breaching == len(values)

    def breaches(self, value: float) -> bool:
        return COMPARES[self.comparison](value, self.threshold)

    def num_breaching(self, values: Iterable[float]) -> int:
        compare, threshold = COMPARES[self.comparison], self.threshold
        return sum(compare(value, threshold) for value in values)

    def window(self, now_s: float) -> tuple[float, float]:
        """Return start and end (exclusive) of the evaluation range at `now_s`, in whole periods."""
        step_s = min(self.period_s, MINUTE_S)
        end_s = now_s // step_s * step_s
        return end_s - self.range_periods * self.period_s, end_s


def rule_from_json(document: Mapping[str, Any]) -> AlarmRule:
    """Parse an alarm as PutMetricAlarm takes it. Raises `ValueError` as `rule_of`, or for a wrong type."""
    return rule_of(msgspec.convert(document, AlarmDefinition))


def rule_of(definition: AlarmDefinition) -> AlarmRule:
    """Return the rule that a definition states. Raises `ValueError`: a member is missing or contradicts another one."""
    comparison, missing = definition.comparison_operator, definition.treat_missing_data or "missing"
    if comparison not in COMPARES:
        raise ValueError(f"ComparisonOperator is {comparison!r}; expected one of {', '.join(COMPARES)}.")
    if missing not in get_args(Treatment):
        raise ValueError(f"TreatMissingData is {missing!r}; expected one of {', '.join(get_args(Treatment))}.")
    if definition.threshold is None or not definition.evaluation_periods:
        raise ValueError("An alarm needs a Threshold and EvaluationPeriods.")
    periods = definition.evaluation_periods
    needed = definition.datapoints_to_alarm or periods
    if needed > periods:
        raise ValueError(f"DatapointsToAlarm is {needed}; expected at most EvaluationPeriods ({periods}).")
    queries, metric = tuple(definition.metrics or ()), None
    if not queries:
        if not definition.metric_name or not definition.namespace:
            raise ValueError("An alarm needs MetricName and Namespace, or Metrics.")
        metric = Metric.of(definition.namespace, definition.metric_name, definition.dimensions)
    statistic = definition.extended_statistic or definition.statistic or "Average"
    is_ignoring = definition.evaluate_low_sample_count_percentile == "ignore"
    return AlarmRule(
        threshold=definition.threshold,
        comparison=cast("Comparison", comparison),
        evaluation_periods=periods,
        datapoints_to_alarm=needed,
        period_s=_period_s(queries) if queries else definition.period or MINUTE_S,
        missing=cast("Treatment", missing),
        metric=metric,
        statistic=statistic,
        unit=definition.unit,
        queries=queries,
        min_samples=samples_needed(statistic) if is_ignoring else 0.0,
    )


def samples_needed(statistic: str) -> float:
    """
    Return the measurements that a percentile needs to be meaningful (p99: 1000), 0 for other statistics.

    Source: CloudWatch user guide, "Percentile-based alarms and low data samples".
    """
    try:
        share = float(statistic[1:]) / 100 if statistic.startswith("p") else 0.0
    except ValueError:
        return 0.0
    if not 0 < share < 1:
        return 0.0
    return 10 / (1 - share) if share >= 0.5 else 10 / share


def _period_s(queries: Sequence[Json]) -> int:
    periods = [int(query["MetricStat"]["Period"]) for query in queries if query.get("MetricStat")]
    periods += [int(query["Period"]) for query in queries if query.get("Period")]
    if not periods:
        raise ValueError("No query in Metrics names a Period.")
    if any(period != following for period, following in pairwise(periods)):
        raise ValueError(f"The periods of Metrics are {sorted(set(periods))}; expected the same for all queries.")
    return periods[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Datapoint:
    """The watched statistic over one period that had measurements."""

    start_s: float
    """Seconds since 1970."""
    value: float
    count: float = 1.0
    """Measurements behind the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
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
    Return the state that follows from the datapoints, oldest first, of the evaluation range that ends at `end_s`.

    Those before the range are ignored. The current `state` is kept where the rule says so.
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
    """Read the statistic or expression that a rule watches in [start_s, end_s). Raises `BadExpression`."""
    if rule.metric is None:
        queries = [metric_math.query_from_json(query) for query in rule.queries]
        results = metric_math.evaluate(queries, read, start_s=start_s, end_s=end_s)
        # Of several series the first counts.
        series = next((found[0] for found in results.values() if found), None)
        return [Datapoint(start_s=at_s, value=value) for at_s, value in series.points] if series is not None else []
    points = read(rule.metric, start_s=start_s, end_s=end_s, period_s=whole_period(rule.period_s))
    return [
        Datapoint(start_s=point.start_s, value=value, count=point.count)
        for point in points
        if rule.unit in (None, point.unit) and (value := statistic(point, rule.statistic)) is not None
    ]
