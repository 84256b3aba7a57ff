"""
StateReason and StateReasonData of an alarm, in CloudWatch's words. Pure.

Source: answers of DescribeAlarms in CloudWatch's user guide and SDK examples.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headrace.cloudwatch.alarms.evaluation import Datapoint, Evaluation, ReadDatapoints, evaluate_rule
from headrace.cloudwatch.alarms.rules import AlarmRule, AlarmState, Comparison

_RELATIONS: dict[Comparison, str] = {
    "GreaterThanOrEqualToThreshold": "greater than or equal to",
    "GreaterThanThreshold": "greater than",
    "LessThanThreshold": "less than",
    "LessThanOrEqualToThreshold": "less than or equal to",
}
_TREATED_AS = {"breaching": "Breaching", "notBreaching": "NonBreaching"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedState:
    """The state of an alarm with its reason, as DescribeAlarms reports it."""

    state: AlarmState
    reason: str
    """`StateReason`."""
    reason_data: str
    """`StateReasonData`, a JSON object."""
    values: tuple[float, ...]
    """The values that counted, oldest first."""


def evaluate_alarm(rule: AlarmRule, read: ReadDatapoints, *, state: AlarmState, now_s: float) -> EvaluatedState:
    """
    Read what an alarm watches and return its state and reason.

    Args:
        rule: The alarm's rule.
        read: Called once; its exceptions are not caught.
        state: The current state.
        now_s: Seconds since 1970; only whole periods before it count.
    """
    start_s, end_s = rule.window(now_s)
    evaluation = evaluate_rule(rule, read(rule, start_s=start_s, end_s=end_s), state=state, end_s=end_s)
    return EvaluatedState(
        state=evaluation.state,
        reason=_reason(rule, evaluation, state),
        reason_data=json.dumps(_reason_data(rule, evaluation, now_s)),
        values=evaluation.values,
    )


def _reason(rule: AlarmRule, evaluation: Evaluation, before: AlarmState) -> str:
    evaluated, num_filled = evaluation.evaluated, evaluation.num_filled
    is_alarm = evaluation.state == "ALARM"
    decisive = [point for point in evaluated if rule.breaches(point.value) is is_alarm]
    if not decisive or evaluation.state == "INSUFFICIENT_DATA":
        return _reason_of_gaps(rule, evaluation.state, num_filled)
    relation = _RELATIONS[rule.comparison] if is_alarm else f"not {_RELATIONS[rule.comparison]}"
    return (
        f"Threshold Crossed: {len(decisive)} out of the last {_counted(len(evaluated))} [{_listed(decisive)}] "
        f"{_were(len(decisive))} {relation} the threshold ({rule.threshold}){_needed(rule, evaluation.state, before)}."
    )


def _reason_of_gaps(rule: AlarmRule, state: AlarmState, num_filled: int) -> str:
    """Return the reason of a state that follows from missing datapoints, not from the values."""
    if state == "INSUFFICIENT_DATA" or rule.missing not in _TREATED_AS:
        return f"Insufficient Data: {_counted(num_filled)} {_were(num_filled)} unknown."
    return (
        f"Threshold Crossed: no datapoints were received for {num_filled} {_plural(num_filled, 'period')} and "
        f"{num_filled} missing {_plural(num_filled, 'datapoint')} {_were(num_filled)} treated as "
        f"[{_TREATED_AS[rule.missing]}]."
    )


def _needed(rule: AlarmRule, state: AlarmState, before: AlarmState) -> str:
    if state == before:
        return ""
    needed = rule.datapoints_to_alarm
    if state == "OK":
        needed = rule.evaluation_periods - rule.datapoints_to_alarm + 1
    return f" (minimum {_counted(needed)} for {before} -> {state} transition)"


def _reason_data(rule: AlarmRule, evaluation: Evaluation, now_s: float) -> dict[str, Any]:
    data: dict[str, Any] = {"version": "1.0", "queryDate": _iso(now_s)}
    if evaluation.evaluated:
        data["startDate"] = _iso(evaluation.evaluated[0].start_s)
    if rule.metric is not None:
        data["statistic"] = rule.statistic
    if rule.unit:
        data["unit"] = rule.unit
    data |= {
        "period": rule.period_s,
        "recentDatapoints": list(evaluation.values),
        "threshold": rule.threshold,
        "evaluatedDatapoints": [
            {"timestamp": _iso(point.start_s), "sampleCount": point.count, "value": point.value}
            for point in reversed(evaluation.evaluated)
        ],
    }
    return data


def _listed(points: Sequence[Datapoint]) -> str:
    """Render datapoints newest first, as CloudWatch does."""
    times = [datetime.fromtimestamp(point.start_s, UTC).strftime("%d/%m/%y %H:%M:%S") for point in points]
    pairs = zip(reversed(points), reversed(times), strict=True)
    return ", ".join(f"{point.value} ({time})" for point, time in pairs)


def _iso(time_s: float) -> str:
    moment = datetime.fromtimestamp(time_s, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}+0000"


def _counted(count: int) -> str:
    return f"{count} {_plural(count, 'datapoint')}"


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
