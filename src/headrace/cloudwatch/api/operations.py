"""The operations of CloudWatch that Headrace supports."""

from collections.abc import Callable, Mapping

from headrace.cloudwatch.api import alarms, metric_data, metrics, put_metric_data, tags
from headrace.cloudwatch.api.context import CloudWatchCall
from headrace.state.records import Json

OPERATIONS: Mapping[str, Callable[[CloudWatchCall, Json], Json]] = {
    "PutMetricData": put_metric_data.put_metric_data,
    "GetMetricData": metric_data.get_metric_data,
    "GetMetricStatistics": metrics.get_metric_statistics,
    "ListMetrics": metrics.list_metrics,
    "PutMetricAlarm": alarms.put_metric_alarm,
    "DescribeAlarms": alarms.describe_alarms,
    "DescribeAlarmsForMetric": alarms.describe_alarms_for_metric,
    "DescribeAlarmHistory": alarms.describe_alarm_history,
    "DeleteAlarms": alarms.delete_alarms,
    "SetAlarmState": alarms.set_alarm_state,
    "EnableAlarmActions": alarms.enable_alarm_actions,
    "DisableAlarmActions": alarms.disable_alarm_actions,
    "TagResource": tags.tag_resource,
    "UntagResource": tags.untag_resource,
    "ListTagsForResource": tags.list_tags_for_resource,
}
