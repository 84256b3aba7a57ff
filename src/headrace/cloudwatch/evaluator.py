"""
Evaluates all alarms, users' and policies', and records the changes of their states.

An alarm is evaluated once in each of its periods (at least 10 s, at most a minute), so that a state that SetAlarmState
has set lasts until the next evaluation, as on CloudWatch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.cloudwatch.alarms.evaluation import Datapoint, read_datapoints
from headrace.cloudwatch.alarms.records import ALARM, AlarmRecord, EvaluatedAlarm, history_item
from headrace.cloudwatch.alarms.rules import AlarmRule, AlarmState
from headrace.cloudwatch.alarms.state_reason import EvaluatedState, evaluate_alarm
from headrace.cloudwatch.metrics.metric import SeriesReader
from headrace.core.telemetry import get_logger
from headrace.state.records import Conflict, Unreadable
from headrace.state.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class _LastEvaluation:
    configured_s: float
    end_s: float
    values: tuple[float, ...]
    state: AlarmState


class AlarmEvaluator:
    """Keeps the latest evaluation of each alarm. Its methods block on the store."""

    def __init__(self, store: Store, series: SeriesReader) -> None:
        self._store = store
        self._series = series
        self._last: dict[str, _LastEvaluation] = {}
        self._faults: dict[str, str] = {}
        self._log = get_logger()

    def evaluate_all(self, *, now_s: float) -> list[EvaluatedAlarm]:
        """Evaluate the alarms that are due; return all that could be evaluated."""
        records = self._store.list(ALARM)
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
            self._log.warning("alarm.failed", alarm=record.name, error=fault)

    def _evaluate(self, record: AlarmRecord, now_s: float) -> EvaluatedAlarm:
        rule = record.spec.rule
        end_s = rule.window(now_s)[1]
        configured_s = record.created_s if record.spec.configured_s is None else record.spec.configured_s
        last = self._last.get(record.uid)
        if last is None or (last.configured_s, last.end_s) != (configured_s, end_s):
            found = evaluate_alarm(rule, self._read, state=record.status.state, now_s=now_s)
            record = self._write(record, found, now_s)
            last = _LastEvaluation(configured_s=configured_s, end_s=end_s, values=found.values, state=found.state)
            self._last[record.uid] = last
        return EvaluatedAlarm(record=record, rule=rule, values=last.values, evaluated_state=last.state)

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
        self._log.info("alarm.changed", alarm=record.name, state=found.state, before=record.status.state)
        return self._store.update(record, status=status)

    def _read(self, rule: AlarmRule, *, start_s: float, end_s: float) -> Sequence[Datapoint]:
        return read_datapoints(rule, self._series.read, start_s=start_s, end_s=end_s)
