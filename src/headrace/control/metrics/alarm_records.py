"""
An alarm as a record, and as the API tells of it. Pure.

`spec` has the members of PutMetricAlarm, `configured_s` (when it was put) and, of a scaling policy's alarm, `owner`;
`status` is made and changed by the functions here, whoever decides the state.
"""

import json
from collections.abc import Sequence

from headrace.control.names import Site, partition_of
from headrace.state.records import Json, Record

MAX_HISTORY = 100
NEW_REASON = "Unchecked: Initial alarm creation"
_OWN_MEMBERS = ("configured_s", "owner")


def alarm_arn(site: Site, name: str) -> str:
    """The ARN of an alarm; names keep their case."""
    return f"arn:{partition_of(site.region)}:cloudwatch:{site.region}:{site.account}:alarm:{name}"


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


def alarm_json(site: Site, record: Record) -> Json:
    """A `MetricAlarm` of the API."""
    spec = {name: value for name, value in record.spec.items() if name not in _OWN_MEMBERS}
    status = record.status
    found: Json = {
        **spec,
        "AlarmName": record.name,
        "AlarmArn": alarm_arn(site, record.name),
        "AlarmConfigurationUpdatedTimestamp": record.spec.get("configured_s", record.created_s),
        "StateValue": status.get("state", "INSUFFICIENT_DATA"),
        "StateReason": status.get("reason", NEW_REASON),
        "StateUpdatedTimestamp": status.get("updated_s", record.created_s),
        "StateTransitionedTimestamp": status.get("transitioned_s", record.created_s),
    }
    return found | ({"StateReasonData": status["reason_data"]} if status.get("reason_data") else {})


def actions_of(spec: Json) -> Sequence[str]:
    """All actions of an alarm, whatever state they are for."""
    return [one for name in ("OKActions", "AlarmActions", "InsufficientDataActions") for one in spec.get(name) or ()]
