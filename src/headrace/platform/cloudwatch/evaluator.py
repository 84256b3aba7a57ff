"""
Evaluates all alarms, users' and policies', and records the changes of their states, with reasons in CloudWatch's words.

An alarm is evaluated once in each of its periods (at least 10 s, at most a minute), so that a state that SetAlarmState
has set lasts until the next evaluation, as on CloudWatch. Source of the reasons: answers of DescribeAlarms in
CloudWatch's user guide and SDK examples.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from headrace.core.telemetry import get_logger
from headrace.platform.cloudwatch.alarms.records import ALARM, AlarmRecord, EvaluatedAlarm, history_item
from headrace.platform.cloudwatch.alarms.rules import (
    AlarmRule,
    AlarmState,
    Comparison,
    Datapoint,
    Evaluation,
    evaluate_rule,
    read_datapoints,
)
from headrace.platform.cloudwatch.metrics.metric import SeriesReader
from headrace.platform.state.records import Conflict, Unreadable
from headrace.platform.state.store import Store

_RELATIONS: dict[Comparison, str] = {
    "GreaterThanOrEqualToThreshold": "greater than or equal to",
    "GreaterThanThreshold": "greater than",
    "LessThanThreshold": "less than",
    "LessThanOrEqualToThreshold": "less than or equal to",
}
_TREATED_AS = {"breaching": "Breaching", "notBreaching": "NonBreaching"}


OnChange = Callable[[AlarmRecord, AlarmState], None]
ReadDatapoints = Callable[..., Sequence[Datapoint]]
"""`read_datapoints` of a series: takes a rule, `start_s` and `end_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedState:
    """The state of an alarm with its `StateReason` and `StateReasonData`, as DescribeAlarms reports it."""

    state: AlarmState
    reason: str
    reason_data: str
    values: tuple[float, ...]
    """The values that counted, oldest first."""


def evaluate_alarm(rule: AlarmRule, read: ReadDatapoints, *, state: AlarmState, now_s: float) -> EvaluatedState:
    """Read what an alarm watches and return its state and reason; only whole periods before `now_s` count."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _LastEvaluation:
    configured_s: float
    end_s: float
    found: EvaluatedState


@dataclass(slots=True)
class AlarmEvaluator:
    """Keeps the latest evaluation of each alarm. Its methods block on the store."""

    store: Store
    series: SeriesReader
    on_change: OnChange = lambda *_: None
    """Called with an alarm whose state has changed, and its state before."""
    _last: dict[str, _LastEvaluation] = field(default_factory=dict)
    _faults: dict[str, str] = field(default_factory=dict)

    def evaluate_all(self, *, now_s: float) -> list[EvaluatedAlarm]:
        """Evaluate the alarms that are due; return all that could be evaluated."""
        records = self.store.list(ALARM)
        uids = {record.uid for record in records}
        self._last = {uid: last for uid, last in self._last.items() if uid in uids}
        self._faults = {uid: fault for uid, fault in self._faults.items() if uid in uids}
        return [alarm for record in records if (alarm := self._guarded(record, now_s)) is not None]

    def _guarded(self, record: AlarmRecord | Unreadable, now_s: float) -> EvaluatedAlarm | None:
        """Evaluate one alarm; its faults are logged once and do not affect other alarms."""
        if isinstance(record, Unreadable):
            self._note_fault(record, record.reason)
            return None
        try:
            alarm = self._evaluate(record, now_s)
        except Conflict:
            return None
        except Exception as error:  # noqa: BLE001 -- an edge: logged and retried
            self._note_fault(record, str(error))
            return None
        self._faults.pop(record.uid, None)
        return alarm

    def _note_fault(self, record: AlarmRecord | Unreadable, fault: str) -> None:
        if self._faults.get(record.uid) != fault:
            self._faults[record.uid] = fault
            get_logger().warning("alarm.failed", alarm=record.name, error=fault)

    def _evaluate(self, record: AlarmRecord, now_s: float) -> EvaluatedAlarm:
        rule = record.spec.rule
        end_s = rule.window(now_s)[1]
        configured_s = record.created_s if record.spec.configured_s is None else record.spec.configured_s
        last = self._last.get(record.uid)
        if last is None or (last.configured_s, last.end_s) != (configured_s, end_s):
            read = partial(read_datapoints, read=self.series.read)
            found = evaluate_alarm(rule, read, state=record.status.state, now_s=now_s)
            record = self._write(record, found, now_s)
            last = self._last[record.uid] = _LastEvaluation(configured_s=configured_s, end_s=end_s, found=found)
        return EvaluatedAlarm(record=record, rule=rule, values=last.found.values, evaluated_state=last.found.state)

    def _write(self, record: AlarmRecord, found: EvaluatedState, now_s: float) -> AlarmRecord:
        if found.state == record.status.state:
            return record
        items = [
            history_item("Action", f"Successfully executed action {arn}", {"actionArn": arn}, now_s=now_s)
            for arn in record.spec.actions_on(found.state)
        ]
        status = record.status.with_state(
            found.state, reason=found.reason, reason_data=found.reason_data, now_s=now_s
        ).with_history(*items)
        get_logger().info("alarm.changed", alarm=record.name, state=found.state, before=record.status.state)
        before, record = record.status.state, self.store.update(record, status=status)
        self.on_change(record, before)
        return record
