"""
An alarm as a record, and as the API tells of it. Pure.

`spec` has the members of PutMetricAlarm, `configured_s` (when it was put) and, of a scaling policy's alarm, `owner`;
`status` is made and changed by the functions here, whoever decides the state.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.cloudwatch.alarms.rules import AlarmRule, AlarmState
from headrace.state.records import Json, Kind, RawKind, RawRecord
from headrace.wire.aws.scope import AwsScope, partition_of

ALARM: Final[RawKind] = Kind("alarm", dict, dict)
MAX_HISTORY = 100
NEW_REASON = "Unchecked: Initial alarm creation"
_OWN_MEMBERS = ("configured_s", "owner")
_ACTIONS = {"OK": "OKActions", "ALARM": "AlarmActions", "INSUFFICIENT_DATA": "InsufficientDataActions"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """An alarm as it is now."""

    record: RawRecord
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


def alarm_arn(aws_scope: AwsScope, name: str) -> str:
    """The ARN of an alarm; names keep their case."""
    return f"arn:{partition_of(aws_scope.region)}:cloudwatch:{aws_scope.region}:{aws_scope.account}:alarm:{name}"


def new_alarm_status(name: str, *, now_s: float) -> Json:
    """The status of an alarm that was put just now."""
    item = history_item("ConfigurationUpdate", f'Alarm "{name}" created', {"type": "Create"}, now_s=now_s)
    return {
        "state": "INSUFFICIENT_DATA",
        "reason": NEW_REASON,
        "reason_data": "",
        "updated_s": now_s,
        "transitioned_s": now_s,
        "history": [item],
    }


def with_state(status: Json, state: str, *, reason: str, reason_data: str, now_s: float) -> Json:
    """A status after somebody looked, or said so; a change of the state goes into its history."""
    old = status.get("state", "INSUFFICIENT_DATA")
    changed = {**status, "state": state, "reason": reason, "reason_data": reason_data, "updated_s": now_s}
    if state == old:
        return changed
    data = {
        "oldState": {"stateValue": old, "stateReason": status.get("reason", "")},
        "newState": {"stateValue": state, "stateReason": reason},
    }
    item = history_item("StateUpdate", f"Alarm updated from {old} to {state}", data, now_s=now_s)
    return with_history({**changed, "transitioned_s": now_s}, item)


def with_history(status: Json, *items: Json) -> Json:
    """A status that remembers more, and forgets the oldest of too much."""
    return {**status, "history": [*status.get("history", ()), *items][-MAX_HISTORY:]}


def history_item(kind: str, summary: str, data: Json, *, now_s: float) -> Json:
    """
    One thing that happened to an alarm, as DescribeAlarmHistory tells it.

    Args:
        kind: `ConfigurationUpdate`, `StateUpdate` or `Action`.
        summary: for people.
        data: for programs.
        now_s: when.
    """
    text = json.dumps({"version": "1.0", **data}, separators=(",", ":"))
    return {"Timestamp": now_s, "HistoryItemType": kind, "HistorySummary": summary[:255], "HistoryData": text[:4095]}


def alarm_json(aws_scope: AwsScope, record: RawRecord) -> Json:
    """A `MetricAlarm` of the API."""
    spec = {name: value for name, value in record.spec.items() if name not in _OWN_MEMBERS}
    status = record.status
    found: Json = {
        **spec,
        "AlarmName": record.name,
        "AlarmArn": alarm_arn(aws_scope, record.name),
        "AlarmConfigurationUpdatedTimestamp": record.spec.get("configured_s", record.created_s),
        "StateValue": status.get("state", "INSUFFICIENT_DATA"),
        "StateReason": status.get("reason", NEW_REASON),
        "StateUpdatedTimestamp": status.get("updated_s", record.created_s),
        "StateTransitionedTimestamp": status.get("transitioned_s", record.created_s),
    }
    return found | ({"StateReasonData": status["reason_data"]} if status.get("reason_data") else {})


def actions_for(spec: Json, state: AlarmState) -> Sequence[str]:
    """Return the actions that an alarm starts when it enters a state."""
    return spec.get(_ACTIONS[state]) or () if spec.get("ActionsEnabled", True) else ()


def actions_of(spec: Json) -> Sequence[str]:
    """Return all actions of an alarm, for any state."""
    return [action for member in _ACTIONS.values() for action in spec.get(member) or ()]


def without_action(spec: Json, arn: str) -> Json:
    """Return an alarm's spec without one of its actions."""
    kept = {member: [action for action in spec.get(member, []) if action != arn] for member in _ACTIONS.values()}
    return {**spec, **kept}
