"""Handlers of the operations on alarms, their states, actions, history and tags."""

import json
from collections.abc import Iterator
from functools import partial
from heapq import nlargest, nsmallest

import msgspec

from headrace.platform.cloudwatch.alarms.records import (
    ALARM,
    AlarmRecord,
    AlarmSpec,
    alarm_arn,
    alarm_json,
    history_item,
    new_alarm_status,
)
from headrace.platform.cloudwatch.api.context import CloudWatchCall
from headrace.platform.cloudwatch.validation import (
    PAGES,
    invalid_combination,
    invalid_value,
    metric_of,
    parse_alarm,
    validation_error,
)
from headrace.platform.state.records import AlreadyExists, Conflict, Json, Record, Unreadable
from headrace.platform.state.selection import Entry, Selection
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.paging import Key
from headrace.serving.wire.aws.tags import list_tags, merge_tags

MAX_ALARMS = 5000
"""Source: CloudWatch service quotas, metric alarms per region."""
_PAGE_SIZE = 50
_HISTORY_PAGE_SIZE = 100
_FILTERS = {"Statistic": "statistic", "ExtendedStatistic": "extended_statistic", "Period": "period", "Unit": "unit"}
"""Parameters of DescribeAlarmsForMetric that filter by a member of the alarm."""


def put_metric_alarm(context: CloudWatchCall, params: Json) -> Json:
    """Answer PutMetricAlarm: create an alarm, or change one, which keeps its state."""
    definition = parse_alarm(params)
    name, tags = params["AlarmName"], merge_tags(params.get("Tags"), invalid_value)
    spec = AlarmSpec(**msgspec.structs.asdict(definition), configured_s=context.now_s)
    record = context.store.get(ALARM, name)
    if record is not None:
        item = history_item("ConfigurationUpdate", f'Alarm "{name}" updated', {"type": "Update"}, now_s=context.now_s)
        readable_record = _readable(record)
        context.store.update(readable_record, spec=spec, status=readable_record.status.with_history(item))
        return {}
    if context.store.count(ALARM) >= MAX_ALARMS:
        raise AwsError("LimitExceeded", f"There are {MAX_ALARMS} alarms already; delete some first.")
    status = new_alarm_status(name, now_s=context.now_s)
    try:
        context.store.create(ALARM, name, spec=spec, status=status, tags=tags)
    except AlreadyExists as error:
        raise Conflict(str(error)) from error  # the call is repeated, as an update
    return {}


def describe_alarms(context: CloudWatchCall, params: Json) -> Json:
    """Answer DescribeAlarms; there are no composite and no log alarms."""
    names, prefix = params.get("AlarmNames"), params.get("AlarmNamePrefix", "")
    if names and prefix:
        raise invalid_combination("AlarmNames and AlarmNamePrefix cannot both be specified. Give one of them.")
    has_metric_alarms = "MetricAlarm" in params.get("AlarmTypes", ["MetricAlarm"])
    if not has_metric_alarms or "ChildrenOfAlarmName" in params or "ParentsOfAlarmName" in params:
        return {"MetricAlarms": [], "CompositeAlarms": []}
    last = PAGES.last_key(params, listing="alarms", like=("",))
    selection = Selection(
        names=names or None,
        name_prefix=prefix,
        order="name",
        after=None if last is None else Entry(name=str(last[0]), created_s=0.0),
    )
    found = (record for record in context.store.each(ALARM, selection) if _fits(record, params))
    size = params.get("MaxRecords", max(_PAGE_SIZE, len(names or ())))
    chosen, token = PAGES.cut(found, listing="alarms", key=lambda record: (record.name,), size=size)
    alarms = [alarm_json(context.aws_scope, record) for record in chosen]
    return {"MetricAlarms": alarms, "CompositeAlarms": [], **token}


def describe_alarms_for_metric(context: CloudWatchCall, params: Json) -> Json:
    """Answer DescribeAlarmsForMetric: the alarms on one metric, without those on expressions."""
    metric = metric_of(params["Namespace"], params["MetricName"], params.get("Dimensions"))
    found = [
        record
        for record in context.store.each(ALARM)
        if isinstance(record, Record)
        and record.spec.rule.metric == metric
        and all(getattr(record.spec, field) == params[name] for name, field in _FILTERS.items() if name in params)
    ]
    return {"MetricAlarms": [alarm_json(context.aws_scope, record) for record in found]}


def delete_alarms(context: CloudWatchCall, params: Json) -> Json:
    """Answer DeleteAlarms; unknown names are ignored."""
    for name in params["AlarmNames"]:
        record = context.store.get(ALARM, name)
        if record is not None:
            context.store.remove(record)
    return {}


def set_alarm_state(context: CloudWatchCall, params: Json) -> Json:
    """Answer SetAlarmState: set a state that lasts until the next evaluation, which also starts its actions."""
    record = context.store.get(ALARM, params["AlarmName"])
    if record is None:
        raise AwsError("ResourceNotFound", f"Alarm {params['AlarmName']} does not exist.", status=404)
    data = params.get("StateReasonData", "")
    try:
        json.loads(data or "{}")
    except (ValueError, RecursionError):
        raise AwsError("InvalidFormat", "StateReasonData was not valid JSON.") from None
    record = _readable(record)
    status = record.status.with_state(
        params["StateValue"], reason=params["StateReason"], reason_data=data, now_s=context.now_s
    )
    context.store.update(record, status=status)
    return {}


def _switch_actions(context: CloudWatchCall, params: Json, *, is_enabled: bool) -> Json:
    for name in params["AlarmNames"]:
        record = context.store.get(ALARM, name)
        if isinstance(record, Record) and record.spec.actions_enabled is not is_enabled:
            context.store.update(record, spec=msgspec.structs.replace(record.spec, actions_enabled=is_enabled))
    return {}


enable_alarm_actions = partial(_switch_actions, is_enabled=True)
disable_alarm_actions = partial(_switch_actions, is_enabled=False)


def describe_alarm_history(context: CloudWatchCall, params: Json) -> Json:
    """Answer DescribeAlarmHistory; unlike on AWS the history of an alarm is deleted with it."""
    if "MetricAlarm" not in params.get("AlarmTypes", ["MetricAlarm"]):
        return {"AlarmHistoryItems": []}
    is_descending = params.get("ScanBy", "TimestampDescending") == "TimestampDescending"
    last = PAGES.last_key(params, listing="alarm history", like=(0.0, "", 0))
    size = params.get("MaxRecords", _HISTORY_PAGE_SIZE)
    later = (
        (key, item)
        for key, item in _history(context, params, sign=-1 if is_descending else 1)
        if last is None or (key < last if is_descending else key > last)
    )
    first = (nlargest if is_descending else nsmallest)(size + 1, later, key=lambda keyed: keyed[0])
    chosen, token = PAGES.cut(first, listing="alarm history", key=lambda keyed: keyed[0], size=size)
    return {"AlarmHistoryItems": [item for _, item in chosen], **token}


def _history(context: CloudWatchCall, params: Json, *, sign: int) -> Iterator[tuple[Key, Json]]:
    """Yield the items of alarm history that pass the filters, each with a key; `sign` orders those of one moment."""
    names = [params["AlarmName"]] if "AlarmName" in params else None
    for record in context.store.each(ALARM, Selection(names=names)):
        for number, item in enumerate(record.status.history if isinstance(record, Record) else ()):
            is_of_type = params.get("HistoryItemType", item.history_item_type) == item.history_item_type
            start_s, end_s = params.get("StartDate", item.timestamp), params.get("EndDate", item.timestamp)
            if is_of_type and start_s <= item.timestamp <= end_s:
                rendered = {"AlarmName": record.name, "AlarmType": "MetricAlarm", **msgspec.to_builtins(item)}
                yield (item.timestamp, record.name, sign * number), rendered


def tag_resource(context: CloudWatchCall, params: Json) -> Json:
    record = _find(context, params["ResourceARN"])
    context.store.update(record, tags=merge_tags(params["Tags"], invalid_value, before=record.tags))
    return {}


def untag_resource(context: CloudWatchCall, params: Json) -> Json:
    """Answer UntagResource; unknown keys are ignored."""
    record, removed = _find(context, params["ResourceARN"]), set(params["TagKeys"])
    context.store.update(record, tags={key: value for key, value in record.tags.items() if key not in removed})
    return {}


def list_tags_for_resource(context: CloudWatchCall, params: Json) -> Json:
    return {"Tags": list_tags(_find(context, params["ResourceARN"]).tags)}


def _readable(record: AlarmRecord | Unreadable) -> AlarmRecord:
    if isinstance(record, Unreadable):
        raise validation_error(f"The record of {record.name} cannot be read ({record.reason}). Delete the alarm first.")
    return record


def _fits(record: AlarmRecord | Unreadable, params: Json) -> bool:
    prefix, state = params.get("ActionPrefix"), params.get("StateValue")
    if isinstance(record, Unreadable):
        return prefix is None and state is None
    return state in (None, record.status.state) and (
        prefix is None or any(action.startswith(prefix) for action in record.spec.actions)
    )


def _find(context: CloudWatchCall, arn: str) -> AlarmRecord | Unreadable:
    record = context.store.get(ALARM, arn.partition(":alarm:")[2])
    if record is None or alarm_arn(context.aws_scope, record.name) != arn:
        members = {"ResourceType": "alarm", "ResourceId": arn}
        raise AwsError("ResourceNotFoundException", f"There is no alarm {arn}.", status=404, members=members)
    return record
