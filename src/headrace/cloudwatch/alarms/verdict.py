"""
An alarm's verdict in CloudWatch's words: StateReason, StateReasonData.

Source: CloudWatch's DescribeAlarms answers, as its user guide and SDK examples show them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headrace.cloudwatch.alarms.rules import (
    AlarmRule,
    AlarmState,
    Comparison,
    Datapoint,
    Judgement,
    ReadDatapoints,
    judge,
)

RELATIONS: dict[Comparison, str] = {
    "GreaterThanOrEqualToThreshold": "greater than or equal to",
    "GreaterThanThreshold": "greater than",
    "LessThanThreshold": "less than",
    "LessThanOrEqualToThreshold": "less than or equal to",
}
TREATED = {"breaching": "Breaching", "notBreaching": "NonBreaching"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An alarm's state, and why."""

    state: AlarmState
    reason: str
    """`StateReason`"""
    reason_data: str
    """`StateReasonData`: a JSON object."""
    values: tuple[float, ...]
    """Those that counted, oldest first."""

    @property
    def newest_value(self) -> float | None:
        """The latest of them, or None where nothing was measured."""
        return self.values[-1] if self.values else None


def evaluate(rule: AlarmRule, read: ReadDatapoints, *, state: AlarmState, now_s: float) -> Verdict:
    """
    Read what an alarm watches and say what its state is now.

    Args:
        rule: The alarm.
        read: Called once; whatever it raises goes through.
        state: The one until now.
        now_s: Seconds since 1970. Only whole periods before it count.
    """
    start_s, end_s = rule.window(now_s)
    judgement = judge(rule, read(rule, start_s=start_s, end_s=end_s), state=state, end_s=end_s)
    return Verdict(
        state=judgement.state,
        reason=_reason(rule, judgement, state),
        reason_data=json.dumps(_reason_data(rule, judgement, now_s)),
        values=judgement.values,
    )


def _reason(rule: AlarmRule, judgement: Judgement, before: AlarmState) -> str:
    evaluated, num_filled = judgement.evaluated, judgement.num_filled
    is_alarm = judgement.state == "ALARM"
    named = [point for point in evaluated if rule.breaches(point.value) is is_alarm]
    if not named or judgement.state == "INSUFFICIENT_DATA":
        return _reason_of_gaps(rule, judgement.state, num_filled)
    relation = RELATIONS[rule.comparison] if is_alarm else f"not {RELATIONS[rule.comparison]}"
    return (
        f"Threshold Crossed: {len(named)} out of the last {_counted(len(evaluated))} [{_listed(named)}] "
        f"{_were(len(named))} {relation} the threshold ({rule.threshold}){_needed(rule, judgement.state, before)}."
    )


def _reason_of_gaps(rule: AlarmRule, state: AlarmState, num_filled: int) -> str:
    """The state follows from what was missing, whatever the values that came say."""
    if state == "INSUFFICIENT_DATA" or rule.missing not in TREATED:
        return f"Insufficient Data: {_counted(num_filled)} {_were(num_filled)} unknown."
    return (
        f"Threshold Crossed: no datapoints were received for {num_filled} {_plural(num_filled, 'period')} and "
        f"{num_filled} missing {_plural(num_filled, 'datapoint')} {_were(num_filled)} treated as "
        f"[{TREATED[rule.missing]}]."
    )


def _needed(rule: AlarmRule, state: AlarmState, before: AlarmState) -> str:
    if state == before:
        return ""
    needed = rule.datapoints_to_alarm
    if state == "OK":
        needed = rule.evaluation_periods - rule.datapoints_to_alarm + 1
    return f" (minimum {_counted(needed)} for {before} -> {state} transition)"


def _reason_data(rule: AlarmRule, judgement: Judgement, now_s: float) -> dict[str, Any]:
    data: dict[str, Any] = {"version": "1.0", "queryDate": _iso(now_s)}
    if judgement.evaluated:
        data["startDate"] = _iso(judgement.evaluated[0].start_s)
    if rule.metric is not None:
        data["statistic"] = rule.statistic
    if rule.unit:
        data["unit"] = rule.unit
    data |= {
        "period": rule.period_s,
        "recentDatapoints": list(judgement.values),
        "threshold": rule.threshold,
        "evaluatedDatapoints": [
            {"timestamp": _iso(point.start_s), "sampleCount": point.count, "value": point.value}
            for point in reversed(judgement.evaluated)
        ],
    }
    return data


def _listed(points: Sequence[Datapoint]) -> str:
    """Newest first, as CloudWatch lists them."""
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
