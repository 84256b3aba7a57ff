"""
Whether a metric has crossed its threshold: what an alarm's state is, given the values of its metric.

The caller reads the values (`control.autoscaling`), keeps the state, and acts on its changes; here is only the verdict.
Source: CloudWatch user guide, "Using Amazon CloudWatch alarms": evaluating an alarm, how state is evaluated when data
is missing, avoiding premature transitions.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol, cast, get_args

from headrace.cloudwatch.metrics.metric import Metric

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
Periods that are looked at besides the evaluation periods, in case some of those have no data. CloudWatch says that the
number depends on the period, and its guide's examples show 5 for 3 evaluation periods; here it is 2 more, always.
"""

MINUTE_S = 60
"""Alarms with a period of a minute or more are evaluated every minute, all others every 10 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmRule:
    """When an alarm is in ALARM: M (`datapoints_to_alarm`) of the last N (`evaluation_periods`) values breach."""

    threshold: float
    comparison: Comparison
    evaluation_periods: int
    datapoints_to_alarm: int
    period_s: int
    missing: Treatment = "missing"
    metric: Metric | None = None
    """None: `queries` say what is watched."""
    statistic: str = "Average"
    """`Average`, `Sum`, ..., or an extended one such as `p99`; of `metric`."""
    unit: str | None = None
    queries: tuple[Mapping[str, Any], ...] = ()
    """MetricDataQuery members, for an alarm on metric math; the one whose ReturnData is true is watched."""
    min_samples: float = 0.0
    """Measurements in a period that a percentile needs to mean something; with fewer, the state stays as it is."""

    @property
    def range_periods(self) -> int:
        """How many periods back values are looked for: the guide's evaluation range."""
        return self.evaluation_periods + EXTRA_PERIODS

    @property
    def watched_s(self) -> float:
        """How long a time the alarm speaks of."""
        return float(self.evaluation_periods * self.period_s)

    def is_from_gaps(self, state: AlarmState, values: Sequence[float]) -> bool:
        """Whether the values alone do not lead to `state`: it comes from what is missing."""
        num_breaching = self.num_breaching(values)
        return num_breaching < self.datapoints_to_alarm if state == "ALARM" else num_breaching == len(values)

    def breaches(self, value: float) -> bool:
        """Whether a value is on the wrong side of the threshold."""
        return COMPARES[self.comparison](value, self.threshold)

    def num_breaching(self, values: Iterable[float]) -> int:
        """How many values are on the wrong side of the threshold."""
        compare, threshold = COMPARES[self.comparison], self.threshold
        return sum(compare(value, threshold) for value in values)

    def window(self, now_s: float) -> tuple[float, float]:
        """From when until when (not included) values are read at `now_s`, in whole periods, seconds since 1970."""
        step_s = min(self.period_s, MINUTE_S)
        end_s = now_s // step_s * step_s
        return end_s - self.range_periods * self.period_s, end_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Datapoint:
    """The watched statistic over one period that had measurements."""

    start_s: float
    """Seconds since 1970."""
    value: float
    count: float = 1.0
    """Measurements behind it."""


class ReadDatapoints(Protocol):
    """Reads what an alarm watches. Result: at most one for each period from `start_s`, oldest first; gaps have none."""

    def __call__(self, rule: AlarmRule, *, start_s: float, end_s: float) -> Sequence[Datapoint]:
        """The datapoints whose periods lie in [start_s, end_s)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the values say, before it is put into words."""

    state: AlarmState
    evaluated: tuple[Datapoint, ...]
    """Those that counted, oldest first."""
    num_filled: int
    """How many missing ones were filled in by `AlarmRule.missing`."""

    @property
    def values(self) -> tuple[float, ...]:
        """The evaluated values, oldest first: what `decide.Trigger` wants."""
        return tuple(point.value for point in self.evaluated)


def rule_from_json(spec: Mapping[str, Any]) -> AlarmRule:
    """
    Read an alarm as PutMetricAlarm has it.

    Raises:
        ValueError: Members are missing or do not fit together; the text says which.
    """
    comparison, treatment = spec.get("ComparisonOperator"), spec.get("TreatMissingData", "missing")
    if comparison not in COMPARES:
        raise ValueError(f"ComparisonOperator {comparison!r} is not supported; wanted: {', '.join(COMPARES)}.")
    if treatment not in get_args(Treatment):
        raise ValueError(f"TreatMissingData is {treatment!r}; wanted: {', '.join(get_args(Treatment))}.")
    if spec.get("Threshold") is None or not spec.get("EvaluationPeriods"):
        raise ValueError("An alarm needs a Threshold and EvaluationPeriods.")
    periods = int(spec["EvaluationPeriods"])
    needed = int(spec.get("DatapointsToAlarm") or periods)
    if needed > periods:
        raise ValueError(f"DatapointsToAlarm ({needed}) must not be more than EvaluationPeriods ({periods}).")
    queries = tuple(spec.get("Metrics") or ())
    statistic = str(spec.get("ExtendedStatistic") or spec.get("Statistic") or "Average")
    is_ignoring = spec.get("EvaluateLowSampleCountPercentile") == "ignore"
    return AlarmRule(
        threshold=float(spec["Threshold"]),
        comparison=cast("Comparison", comparison),
        evaluation_periods=periods,
        datapoints_to_alarm=needed,
        period_s=_period_s(queries) if queries else int(spec.get("Period") or MINUTE_S),
        missing=cast("Treatment", treatment),
        metric=None if queries else _metric(spec),
        statistic=statistic,
        unit=spec.get("Unit"),
        queries=queries,
        min_samples=samples_wanted(statistic) if is_ignoring else 0.0,
    )


def samples_wanted(statistic: str) -> float:
    """
    How many measurements a percentile needs to mean something: p99: 1000; 0 for what is no percentile.

    Source: CloudWatch user guide, "Percentile-based alarms and low data samples".
    """
    try:
        share = float(statistic[1:]) / 100 if statistic.startswith("p") else 0.0
    except ValueError:
        return 0.0
    if not 0 < share < 1:
        return 0.0
    return 10 / (1 - share) if share >= 0.5 else 10 / share


def judge(rule: AlarmRule, datapoints: Sequence[Datapoint], *, state: AlarmState, end_s: float) -> Judgement:
    """
    The state that follows from the datapoints of the evaluation range.

    Args:
        rule: The alarm.
        datapoints: Oldest first; those before the range do not count.
        state: The one until now, kept where the rule says so.
        end_s: Where the range ends, not included; see `AlarmRule.window`.
    """
    start_s = end_s - rule.range_periods * rule.period_s
    found = tuple(point for point in datapoints if start_s <= point.start_s < end_s)
    evaluated = found[-rule.evaluation_periods :]
    num_filled = rule.evaluation_periods - len(evaluated)
    if rule.min_samples and evaluated and sum(point.count for point in evaluated) < rule.min_samples:
        return Judgement(state=state, evaluated=evaluated, num_filled=num_filled)
    if num_filled == 0 or rule.missing in ("breaching", "notBreaching"):
        num_breaching = rule.num_breaching(point.value for point in evaluated)
        num_breaching += num_filled if rule.missing == "breaching" else 0
        verdict: AlarmState = "ALARM" if num_breaching >= rule.datapoints_to_alarm else "OK"
    else:
        verdict = _with_gaps(rule, evaluated, state=state, end_s=end_s)
    return Judgement(state=verdict, evaluated=evaluated, num_filled=num_filled)


def _with_gaps(rule: AlarmRule, evaluated: Sequence[Datapoint], *, state: AlarmState, end_s: float) -> AlarmState:
    """For `missing` and `ignore`, when there are fewer values than evaluation periods."""
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
    # All that came breach, but they are too few. An early alarm is raised once they are old enough: had the periods
    # after them been fine, their values would have come by now. Until then nobody can say, and the state stays.
    age_periods = (end_s - evaluated[0].start_s) / rule.period_s
    return "ALARM" if age_periods >= rule.datapoints_to_alarm else state


def _metric(spec: Mapping[str, Any]) -> Metric:
    if not spec.get("MetricName") or not spec.get("Namespace"):
        raise ValueError("An alarm needs MetricName and Namespace, or Metrics.")
    dimensions = sorted((d["Name"], d["Value"]) for d in spec.get("Dimensions") or ())
    return Metric(namespace=spec["Namespace"], name=spec["MetricName"], dimensions=tuple(dimensions))


def _period_s(queries: Sequence[Mapping[str, Any]]) -> int:
    periods = [int(q["MetricStat"]["Period"]) for q in queries if q.get("MetricStat")]
    periods += [int(q["Period"]) for q in queries if q.get("Period")]
    if not periods:
        raise ValueError("No query in Metrics names a Period.")
    if any(one != other for one, other in pairwise(periods)):
        raise ValueError(f"The queries of an alarm must have the same Period, not {sorted(set(periods))}.")
    return periods[0]
