"""DescribeAlarmHistory. What happened to an alarm is forgotten with it, other than at AWS."""

from typing import Any

from headrace.cloudwatch.alarms.records import ALARM
from headrace.cloudwatch.api.context import CloudWatchCall
from headrace.cloudwatch.errors import PAGES
from headrace.state.records import Json

_PAGE_SIZE = 100


def describe_alarm_history(context: CloudWatchCall, params: dict[str, Any]) -> dict[str, Any]:
    """DescribeAlarmHistory: of one alarm or of all, newest first unless asked otherwise."""
    if "MetricAlarm" not in params.get("AlarmTypes", ["MetricAlarm"]):
        return {"AlarmHistoryItems": []}
    name = params.get("AlarmName")
    items = [
        {"AlarmName": record.name, "AlarmType": "MetricAlarm", **item}
        for record in context.store.list(ALARM)
        if name in (None, record.name)
        for item in record.status.get("history", ())
        if _fits(item, params)
    ]
    is_descending = params.get("ScanBy", "TimestampDescending") == "TimestampDescending"
    items.sort(key=lambda item: item["Timestamp"], reverse=is_descending)
    begin = PAGES.begin(params, listing="alarm history")
    end = begin + params.get("MaxRecords", _PAGE_SIZE)
    token = PAGES.token_at(end, listing="alarm history") if end < len(items) else {}
    return {"AlarmHistoryItems": items[begin:end], **token}


def _fits(item: Json, params: dict[str, Any]) -> bool:
    if params.get("HistoryItemType", item["HistoryItemType"]) != item["HistoryItemType"]:
        return False
    at_s = item["Timestamp"]
    return bool(params.get("StartDate", at_s) <= at_s <= params.get("EndDate", at_s))
