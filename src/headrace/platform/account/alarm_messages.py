"""Messages of alarms to the topics among their actions. Source: CloudWatch user guide, alarm notifications."""

import json
from typing import Final

import msgspec

from headrace.core.telemetry import get_logger
from headrace.platform.account.context import AccountCall
from headrace.platform.account.sns import publish, timestamp
from headrace.platform.cloudwatch.alarms.records import ALARM, AlarmRecord, alarm_arn
from headrace.platform.cloudwatch.alarms.rules import AlarmState
from headrace.platform.cloudwatch.api.alarms import set_alarm_state
from headrace.platform.state.records import Json, Record
from headrace.serving.wire.aws.errors import AwsError

_TOPIC: Final = ":sns:"
_MAX_SUBJECT: Final = 100


def set_alarm_state_and_publish(context: AccountCall, params: Json) -> Json:
    """Answer SetAlarmState, which starts the actions of the new state."""
    before = context.store.get(ALARM, params["AlarmName"])
    set_alarm_state(context, params)
    after = context.store.get(ALARM, params["AlarmName"])
    if isinstance(before, Record) and isinstance(after, Record) and before.status.state != after.status.state:
        publish_alarm(context, after, before.status.state)
    return {}


def publish_alarm(context: AccountCall, record: AlarmRecord, before: AlarmState) -> None:
    """Publish the new state of an alarm to the topics among its actions."""
    state = record.status.state
    topics = [action for action in record.spec.actions_on(state) if _TOPIC in action]
    if not topics:
        return
    subject = f'{state}: "{record.name}" in {context.aws_scope.region}'
    message = json.dumps(alarm_message(context, record, before))
    for topic in topics:
        try:
            publish(context, {"TopicArn": topic, "Message": message, "Subject": subject[:_MAX_SUBJECT]})
        except AwsError as error:
            get_logger().warning("alarm.not_published", alarm=record.name, topic=topic, reason=error.message)


def alarm_message(context: AccountCall, record: AlarmRecord, before: AlarmState) -> Json:
    members: Json = msgspec.to_builtins(record.spec)
    status, scope = record.status, context.aws_scope
    trigger = {name: members[name] for name in _TRIGGER if members.get(name) is not None}
    dimensions = [{"value": each["Value"], "name": each["Name"]} for each in members.get("Dimensions") or ()]
    statistic: Json = {}
    if members.get("Statistic"):
        statistic = {"StatisticType": "Statistic", "Statistic": str(members["Statistic"]).upper()}
    elif members.get("ExtendedStatistic"):
        statistic = {"StatisticType": "ExtendedStatistic", "ExtendedStatistic": members["ExtendedStatistic"]}
    return {
        "AlarmName": record.name,
        "AlarmDescription": members.get("AlarmDescription"),
        "AWSAccountId": scope.account,
        "AlarmConfigurationUpdatedTimestamp": timestamp(record.spec.configured_s or record.created_s),
        "NewStateValue": status.state,
        "NewStateReason": status.reason,
        "StateChangeTime": timestamp(status.transitioned_s or context.now_s),
        "Region": scope.region,
        "AlarmArn": alarm_arn(scope, record.name),
        "OldStateValue": before,
        **{name: members.get(name) or [] for name in ("OKActions", "AlarmActions", "InsufficientDataActions")},
        "Trigger": {**trigger, **statistic, "Dimensions": dimensions},
    }


_TRIGGER: Final = (
    *("MetricName", "Namespace", "Unit", "Period", "EvaluationPeriods", "DatapointsToAlarm", "ComparisonOperator"),
    *("Threshold", "TreatMissingData", "Metrics"),
)
