"""Alarms are put, described, set, deleted, and their actions enabled and disabled."""

import json
from typing import Any

from headrace.cloudwatch.alarms.records import (
    ALARM,
    actions_of,
    alarm_json,
    history_item,
    new_alarm_status,
    with_history,
    with_state,
)
from headrace.cloudwatch.alarms.validation import check_alarm
from headrace.cloudwatch.api.alarm_tags import read_tags
from headrace.cloudwatch.api.context import CloudWatchCall
from headrace.cloudwatch.errors import PAGES, alarm_not_found, invalid_combination
from headrace.cloudwatch.metrics.members import metric_of
from headrace.state.records import AlreadyExists, Conflict, Json, RawRecord
from headrace.wire.aws.errors import AwsError

MAX_ALARMS = 5000
"""Source: CloudWatch service quotas, metric alarms per region."""
_PAGE_SIZE = 50
_DEFAULTS: Json = {"ActionsEnabled": True, "OKActions": [], "AlarmActions": [], "InsufficientDataActions": []}


def put_metric_alarm(context: CloudWatchCall, params: dict[str, Any]) -> dict[str, Any]:
    """PutMetricAlarm: a new alarm has no data yet, one that is there keeps its state."""
    check_alarm(params)
    name, tags = params["AlarmName"], read_tags(params.get("Tags"))
    spec = {**_DEFAULTS, **params, "configured_s": context.now_s}
    spec.pop("Tags", None)
    record = context.store.get(ALARM, name)
    if record is not None:
        item = history_item("ConfigurationUpdate", f'Alarm "{name}" updated', {"type": "Update"}, now_s=context.now_s)
        context.store.update(record, spec=spec, status=with_history(record.status, item))
        return {}
    if len(context.store.list(ALARM)) >= MAX_ALARMS:
        raise AwsError("LimitExceeded", f"There are {MAX_ALARMS} alarms already; delete some first.")
    status = new_alarm_status(name, now_s=context.now_s)
    try:
        context.store.create(ALARM, name, spec=spec, status=status, tags=tags)
    except AlreadyExists as error:
        raise Conflict(str(error)) from error  # read anew: it is an update now
    return {}


def describe_alarms(context: CloudWatchCall, params: dict[str, Any]) -> dict[str, Any]:
    """DescribeAlarms; there are no composite and no log alarms."""
    names, prefix = params.get("AlarmNames"), params.get("AlarmNamePrefix", "")
    if names and prefix:
        raise invalid_combination("AlarmNames and AlarmNamePrefix cannot both be specified. Give one of them.")
    is_of_others = "MetricAlarm" not in params.get("AlarmTypes", ["MetricAlarm"])
    if is_of_others or "ChildrenOfAlarmName" in params or "ParentsOfAlarmName" in params:
        return {"MetricAlarms": [], "CompositeAlarms": []}
    found = [
        record
        for record in context.store.list(ALARM)
        if record.name.startswith(prefix) and (not names or record.name in names) and _fits(record, params)
    ]
    size = params.get("MaxRecords", _page_size(names))
    chosen, token = PAGES.page(found, params, listing="alarms", key=lambda record: (record.name,), size=size)
    alarms = [alarm_json(context.aws_scope, record) for record in chosen]
    return {"MetricAlarms": alarms, "CompositeAlarms": [], **token}


def describe_alarms_for_metric(context: CloudWatchCall, params: dict[str, Any]) -> dict[str, Any]:
    """DescribeAlarmsForMetric; alarms on expressions are not among them."""
    wanted = metric_of(params["Namespace"], params["MetricName"], params.get("Dimensions"))
    filters = {name: params[name] for name in ("Statistic", "ExtendedStatistic", "Period", "Unit") if name in params}
    found = [
        record
        for record in context.store.list(ALARM)
        if "MetricName" in record.spec
        and metric_of(record.spec["Namespace"], record.spec["MetricName"], record.spec.get("Dimensions")) == wanted
        and all(record.spec.get(name) == value for name, value in filters.items())
    ]
    return {"MetricAlarms": [alarm_json(context.aws_scope, record) for record in found]}


def delete_alarms(context: CloudWatchCall, params: dict[str, Any]) -> dict[str, Any]:
    """DeleteAlarms; names that are of none do no harm."""
    for name in params["AlarmNames"]:
        record = context.store.get(ALARM, name)
        if record is not None:
            context.store.remove(record)
    return {}


def set_alarm_state(context: CloudWatchCall, params: dict[str, Any]) -> dict[str, Any]:
    """SetAlarmState: until the alarm is looked at again; whoever looks sees the change and acts."""
    record = context.store.get(ALARM, params["AlarmName"])
    if record is None:
        raise alarm_not_found(params["AlarmName"])
    data = params.get("StateReasonData", "")
    if data and not _is_json(data):
        raise AwsError("InvalidFormat", "StateReasonData was not valid JSON.")
    status = with_state(
        record.status,
        params["StateValue"],
        reason=params["StateReason"],
        reason_data=data,
        now_s=context.now_s,
    )
    context.store.update(record, status=status)
    return {}


def enable_alarm_actions(context: CloudWatchCall, params: dict[str, Any]) -> dict[str, Any]:
    """EnableAlarmActions."""
    return _switch(context, params, is_enabled=True)


def disable_alarm_actions(context: CloudWatchCall, params: dict[str, Any]) -> dict[str, Any]:
    """DisableAlarmActions."""
    return _switch(context, params, is_enabled=False)


def _switch(context: CloudWatchCall, params: dict[str, Any], *, is_enabled: bool) -> dict[str, Any]:
    for name in params["AlarmNames"]:
        record = context.store.get(ALARM, name)
        if record is not None and record.spec.get("ActionsEnabled", True) is not is_enabled:
            context.store.update(record, spec={**record.spec, "ActionsEnabled": is_enabled})
    return {}


def _page_size(names: list[str] | None) -> int:
    return max(_PAGE_SIZE, len(names or ()))


def _fits(record: RawRecord, params: dict[str, Any]) -> bool:
    state = record.status.get("state", "INSUFFICIENT_DATA")
    if params.get("StateValue", state) != state:
        return False
    prefix = params.get("ActionPrefix")
    return prefix is None or any(action.startswith(prefix) for action in actions_of(record.spec))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
