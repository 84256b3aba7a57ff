"""
Looks at all alarms, users' own as well: reads what they watch, decides, and writes down changes of their state.

An alarm is looked at once for each of its periods (10 s at least, a minute at most), so that a state that somebody set
by hand lasts until the next look, as on CloudWatch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.cloudwatch.alarms.datapoints import read_datapoints
from headrace.cloudwatch.alarms.records import ALARM, Watched, actions_for, history_item, with_history, with_state
from headrace.cloudwatch.alarms.rules import AlarmRule, AlarmState, Datapoint, rule_from_json
from headrace.cloudwatch.alarms.verdict import Verdict, evaluate
from headrace.cloudwatch.metrics.metric import SeriesReader
from headrace.core.telemetry import get_logger
from headrace.state.records import Conflict, RawRecord
from headrace.state.store import Store


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
        records = self._store.list(ALARM)
        uids = {record.uid for record in records}
        self._seen = {uid: seen for uid, seen in self._seen.items() if uid in uids}
        self._faults = {uid: fault for uid, fault in self._faults.items() if uid in uids}
        return [watched for record in records if (watched := self._guarded(record, now_s)) is not None]

    def _guarded(self, record: RawRecord, now_s: float) -> Watched | None:
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

    def _look(self, record: RawRecord, now_s: float) -> Watched:
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

    def _written(self, record: RawRecord, verdict: Verdict, old: AlarmState, now_s: float) -> RawRecord:
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
