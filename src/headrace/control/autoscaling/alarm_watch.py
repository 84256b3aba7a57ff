"""
Looks at all alarms, users' own as well: reads what they watch, decides, and writes down changes of their state.

An alarm is looked at once for each of its periods (10 s at least, a minute at most), so that a state that somebody set
by hand lasts until the next look, as on CloudWatch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.control.metrics.alarm_records import history_item, with_history, with_state
from headrace.core.telemetry import get_logger
from headrace.monitoring.metrics import SeriesReader
from headrace.scaling.alarm_reading import read_datapoints
from headrace.scaling.alarm_texts import Verdict, evaluate
from headrace.scaling.alarms import AlarmRule, AlarmState, Datapoint, rule_from_json
from headrace.state.records import Conflict, Json, Kind, Record
from headrace.state.store import Store

_ACTIONS = {"OK": "OKActions", "ALARM": "AlarmActions", "INSUFFICIENT_DATA": "InsufficientDataActions"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """An alarm as it is now."""

    record: Record
    rule: AlarmRule
    values: tuple[float, ...]
    """Those that were looked at last, oldest first."""
    found: AlarmState
    """What that look found; somebody may have set another state since."""

    @property
    def state(self) -> AlarmState:
        """Its state."""
        state: AlarmState = self.record.status.get("state", "INSUFFICIENT_DATA")
        return state

    @property
    def actions(self) -> Sequence[str]:
        """What its state starts."""
        return actions_for(self.record.spec, self.state)

    @property
    def is_from_gaps(self) -> bool:
        """Whether it is in its state because data are missing."""
        return self.state == self.found and self.rule.is_from_gaps(self.state, self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    configured_s: float
    end_s: float
    values: tuple[float, ...]
    state: AlarmState


class AlarmWatch:
    """Remembers what it read last of each alarm. Its methods block for a moment (the store)."""

    def __init__(self, store: Store, series: SeriesReader) -> None:
        self._store = store
        self._series = series
        self._seen: dict[str, _Seen] = {}
        self._faults: dict[str, str] = {}
        self._log = get_logger()

    def look(self, *, now_s: float) -> list[Watched]:
        """Bring all alarms up to date."""
        records = self._store.list(Kind.ALARM)
        uids = {record.uid for record in records}
        self._seen = {uid: seen for uid, seen in self._seen.items() if uid in uids}
        self._faults = {uid: fault for uid, fault in self._faults.items() if uid in uids}
        return [watched for record in records if (watched := self._guarded(record, now_s)) is not None]

    def _guarded(self, record: Record, now_s: float) -> Watched | None:
        """One alarm; what is wrong with it is told once, and hinders no other."""
        try:
            watched = self._look(record, now_s)
        except Conflict:
            return None
        except Exception as error:  # noqa: BLE001 -- an edge: logged, and tried again
            if self._faults.get(record.uid) != repr(error):
                self._faults[record.uid] = repr(error)
                self._log.warning("alarm.failed", alarm=record.name, error=str(error))
            return None
        self._faults.pop(record.uid, None)
        return watched

    def _look(self, record: Record, now_s: float) -> Watched:
        rule = rule_from_json(record.spec)
        end_s = rule.window(now_s)[1]
        configured_s = float(record.spec.get("configured_s", record.created_s))
        seen = self._seen.get(record.uid)
        if seen is None or (seen.configured_s, seen.end_s) != (configured_s, end_s):
            state: AlarmState = record.status.get("state", "INSUFFICIENT_DATA")
            verdict = evaluate(rule, self._read, state=state, now_s=now_s)
            record = self._written(record, verdict, state, now_s)
            seen = _Seen(configured_s=configured_s, end_s=end_s, values=verdict.values, state=verdict.state)
            self._seen[record.uid] = seen
        return Watched(record=record, rule=rule, values=seen.values, found=seen.state)

    def _written(self, record: Record, verdict: Verdict, old: AlarmState, now_s: float) -> Record:
        if verdict.state == old:
            return record
        status = with_state(
            record.status, verdict.state, reason=verdict.reason, reason_data=verdict.reason_data, now_s=now_s
        )
        items = [
            history_item("Action", f"Successfully executed action {arn}", {"actionArn": arn}, now_s=now_s)
            for arn in actions_for(record.spec, verdict.state)
        ]
        self._log.info("alarm.changed", alarm=record.name, state=verdict.state, before=old)
        return self._store.update(record, status=with_history(status, *items))

    def _read(self, rule: AlarmRule, *, start_s: float, end_s: float) -> Sequence[Datapoint]:
        return read_datapoints(rule, self._series.read, start_s=start_s, end_s=end_s)


def actions_for(spec: Json, state: AlarmState) -> Sequence[str]:
    """What an alarm starts when it is in a state."""
    return spec.get(_ACTIONS[state]) or () if spec.get("ActionsEnabled", True) else ()
