"""Records of alarms: what was put, the current state, and the history. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from headrace.platform.cloudwatch.alarms.rules import AlarmDefinition, AlarmRule, AlarmState, rule_of
from headrace.platform.state.records import Json, Kind, Record, RecordPart, Unreadable
from headrace.serving.wire.aws.scope import AwsScope, partition_of

MAX_HISTORY = 100
NEW_REASON = "Unchecked: Initial alarm creation"


class AlarmSpec(AlarmDefinition, frozen=True, kw_only=True, forbid_unknown_fields=True):
    configured_s: float | None = msgspec.field(default=None, name="configured_s")
    """Time of the latest PutMetricAlarm, in seconds since 1970."""
    owner: str = msgspec.field(default="", name="owner")
    """ARN of the scaling policy that the alarm belongs to; empty for a user's own alarm."""

    def __post_init__(self) -> None:
        """Check the members; a ValueError makes the record unreadable."""
        rule_of(self)

    @property
    def rule(self) -> AlarmRule:
        return rule_of(self)

    def without_action(self, arn: str) -> "AlarmSpec":
        ok, alarm, insufficient_data = (
            [action for action in actions if action != arn]
            for actions in (self.ok_actions, self.alarm_actions, self.insufficient_data_actions)
        )
        return msgspec.structs.replace(
            self, ok_actions=ok, alarm_actions=alarm, insufficient_data_actions=insufficient_data
        )


class HistoryItem(RecordPart, frozen=True, kw_only=True, rename="pascal"):
    """An event of an alarm, as DescribeAlarmHistory reports it."""

    timestamp: float
    history_item_type: str
    """`ConfigurationUpdate`, `StateUpdate` or `Action`."""
    history_summary: str
    history_data: str
    """A JSON object."""


class AlarmStatus(RecordPart, frozen=True, kw_only=True):
    state: AlarmState = "INSUFFICIENT_DATA"
    reason: str = NEW_REASON
    reason_data: str = ""
    updated_s: float | None = None
    transitioned_s: float | None = None
    history: tuple[HistoryItem, ...] = ()
    """Oldest first, at most `MAX_HISTORY`."""

    def with_state(self, state: AlarmState, *, reason: str, reason_data: str, now_s: float) -> "AlarmStatus":
        """Return the status after an evaluation or SetAlarmState; a change of the state enters the history."""
        changed = msgspec.structs.replace(self, state=state, reason=reason, reason_data=reason_data, updated_s=now_s)
        if state == self.state:
            return changed
        data = {
            "oldState": {"stateValue": self.state, "stateReason": self.reason},
            "newState": {"stateValue": state, "stateReason": reason},
        }
        item = history_item("StateUpdate", f"Alarm updated from {self.state} to {state}", data, now_s=now_s)
        return msgspec.structs.replace(changed, transitioned_s=now_s).with_history(item)

    def with_history(self, *items: HistoryItem) -> "AlarmStatus":
        """Return the status with more history; the oldest items beyond the maximum are dropped."""
        return msgspec.structs.replace(self, history=(*self.history, *items)[-MAX_HISTORY:])


ALARM: Final = Kind("alarm", AlarmSpec, AlarmStatus)

AlarmRecord = Record[AlarmSpec, AlarmStatus]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedAlarm:
    record: AlarmRecord
    rule: AlarmRule
    values: tuple[float, ...]
    """The values that were evaluated, oldest first."""
    evaluated_state: AlarmState
    """The state that they led to; SetAlarmState may have set another one since."""

    @property
    def state(self) -> AlarmState:
        return self.record.status.state

    @property
    def actions(self) -> Sequence[str]:
        """The actions that the current state starts."""
        return self.record.spec.actions_on(self.state)

    @property
    def is_from_gaps(self) -> bool:
        """True if the alarm is in its state because data are missing."""
        return self.state == self.evaluated_state and self.rule.is_from_gaps(self.state, self.values)


def alarm_arn(aws_scope: AwsScope, name: str) -> str:
    """Return the ARN of an alarm; names keep their case."""
    partition = partition_of(aws_scope.region)
    return f"arn:{partition}:cloudwatch:{aws_scope.region}:{aws_scope.account}:alarm:{name}"


def new_alarm_status(name: str, *, now_s: float) -> AlarmStatus:
    item = history_item("ConfigurationUpdate", f'Alarm "{name}" created', {"type": "Create"}, now_s=now_s)
    return AlarmStatus(updated_s=now_s, transitioned_s=now_s, history=(item,))


def history_item(kind: str, summary: str, data: Json, *, now_s: float) -> HistoryItem:
    """Return an event of an alarm, in words and as data: `ConfigurationUpdate`, `StateUpdate` or `Action`."""
    text = json.dumps({"version": "1.0", **data}, separators=(",", ":"))
    return HistoryItem(timestamp=now_s, history_item_type=kind, history_summary=summary[:255], history_data=text[:4095])


def alarm_json(aws_scope: AwsScope, record: AlarmRecord | Unreadable) -> Json:
    """Render a `MetricAlarm` of the API."""
    name = {"AlarmName": record.name, "AlarmArn": alarm_arn(aws_scope, record.name)}
    if isinstance(record, Unreadable):
        reason = f"The record of this alarm cannot be read ({record.reason}). Delete the alarm, and put it again."
        return {**name, "StateValue": "INSUFFICIENT_DATA", "StateReason": reason}
    spec, status = record.spec, record.status
    members = {member: value for member, value in msgspec.to_builtins(spec).items() if value is not None}
    del members["owner"]
    configured_s = members.pop("configured_s", record.created_s)
    rendered: Json = {
        **members,
        **name,
        "AlarmConfigurationUpdatedTimestamp": configured_s,
        "StateValue": status.state,
        "StateReason": status.reason,
        "StateUpdatedTimestamp": record.created_s if status.updated_s is None else status.updated_s,
        "StateTransitionedTimestamp": record.created_s if status.transitioned_s is None else status.transitioned_s,
    }
    return rendered | ({"StateReasonData": status.reason_data} if status.reason_data else {})
