"""Alarms as boto3 sees them, in all three protocols."""

from uuid import uuid4

import pytest
from botocore.exceptions import ClientError

from headrace.platform.cloudwatch.alarms.records import ALARM

ACTION = "arn:aws:autoscaling:us-east-1:123456789012:scalingPolicy:uid:resource/sagemaker/x:policyName/p"
RULE = {
    "Namespace": "AWS/SageMaker",
    "MetricName": "Invocations",
    "Statistic": "Sum",
    "Period": 60,
    "EvaluationPeriods": 3,
    "Threshold": 20.0,
    "ComparisonOperator": "GreaterThanThreshold",
}
MATH = [
    {"Id": "m1", "MetricStat": {"Metric": {"Namespace": "N", "MetricName": "M"}, "Period": 60, "Stat": "Sum"}},
    {"Id": "e1", "Expression": "m1 * 2"},
]


ALL = {"Id": "all", "Expression": "METRICS()"}
NO_METRIC = dict.fromkeys(("Namespace", "MetricName", "Statistic", "Period"))


@pytest.fixture
def name() -> str:
    return f"alarm-{uuid4().hex}"


def described(client, name):
    [alarm] = client.describe_alarms(AlarmNames=[name])["MetricAlarms"]
    return alarm


def test_a_new_alarm_has_no_data_yet(client, name):
    client.put_metric_alarm(AlarmName=name, AlarmActions=[ACTION], DatapointsToAlarm=2, **RULE)

    alarm = described(client, name)

    assert {key: alarm[key] for key in RULE} == RULE
    assert alarm["AlarmArn"] == f"arn:aws:cloudwatch:us-east-1:123456789012:alarm:{name}"
    assert (alarm["StateValue"], alarm["StateReason"]) == (
        "INSUFFICIENT_DATA",
        "Unchecked: Initial alarm creation",
    )
    assert (alarm["ActionsEnabled"], alarm["AlarmActions"], alarm["OKActions"]) == (True, [ACTION], [])


def test_an_alarm_that_is_put_again_keeps_its_state(client, name):
    client.put_metric_alarm(AlarmName=name, AlarmDescription="old", **RULE)
    client.set_alarm_state(AlarmName=name, StateValue="OK", StateReason="because", StateReasonData='{"a": 1}')

    client.put_metric_alarm(AlarmName=name, **{**RULE, "Threshold": 5.0})

    alarm = described(client, name)
    assert (alarm["StateValue"], alarm["StateReason"], alarm["StateReasonData"]) == ("OK", "because", '{"a": 1}')
    assert alarm["Threshold"] == 5.0
    assert "AlarmDescription" not in alarm


def test_the_history_is_described_newest_first(client, name):
    client.put_metric_alarm(AlarmName=name, **RULE)
    for state in ("OK", "OK", "ALARM"):
        client.set_alarm_state(AlarmName=name, StateValue=state, StateReason="test")

    items = client.describe_alarm_history(AlarmName=name)["AlarmHistoryItems"]
    first = client.describe_alarm_history(AlarmName=name, ScanBy="TimestampAscending", MaxRecords=1)
    changes = client.describe_alarm_history(AlarmName=name, HistoryItemType="StateUpdate")["AlarmHistoryItems"]

    assert [item["HistorySummary"] for item in items] == [
        "Alarm updated from OK to ALARM",
        "Alarm updated from INSUFFICIENT_DATA to OK",
        f'Alarm "{name}" created',
    ]
    assert first["AlarmHistoryItems"] == items[-1:]
    assert first["NextToken"]
    assert changes == items[:2]


def test_an_alarm_on_an_expression_keeps_its_queries(client, name):
    metrics = [{**MATH[0], "ReturnData": False}, {**MATH[1], "ReturnData": True}]
    rule = {key: RULE[key] for key in ("EvaluationPeriods", "Threshold", "ComparisonOperator")}

    client.put_metric_alarm(AlarmName=name, Metrics=metrics, **rule)

    assert described(client, name)["Metrics"] == metrics


def test_alarms_are_described_by_name_state_action_and_metric(client, name):
    names = [f"{name}-{number}" for number in range(3)]
    for number, alarm in enumerate(names):
        dimensions = [{"Name": "EndpointName", "Value": name}]
        actions = [ACTION] if number == 0 else []
        client.put_metric_alarm(AlarmName=alarm, Dimensions=dimensions, AlarmActions=actions, **RULE)
    client.set_alarm_state(AlarmName=names[1], StateValue="ALARM", StateReason="test")

    def found(**params):
        return [alarm["AlarmName"] for alarm in client.describe_alarms(AlarmNamePrefix=name, **params)["MetricAlarms"]]

    of_metric = client.describe_alarms_for_metric(
        Namespace=RULE["Namespace"], MetricName=RULE["MetricName"], Dimensions=dimensions
    )
    pages = client.get_paginator("describe_alarms").paginate(AlarmNamePrefix=name, PaginationConfig={"PageSize": 2})
    assert found() == names
    assert found(StateValue="ALARM") == names[1:2]
    assert found(ActionPrefix="arn:aws:autoscaling:") == names[:1]
    assert found(AlarmTypes=["CompositeAlarm"]) == []
    assert [alarm["AlarmName"] for alarm in of_metric["MetricAlarms"]] == names
    assert [len(page["MetricAlarms"]) for page in pages] == [2, 1]


def test_actions_are_disabled_and_enabled(client, name):
    client.put_metric_alarm(AlarmName=name, **RULE)

    client.disable_alarm_actions(AlarmNames=[name, "unknown"])
    off = described(client, name)["ActionsEnabled"]
    client.enable_alarm_actions(AlarmNames=[name])

    assert (off, described(client, name)["ActionsEnabled"]) == (False, True)


def test_alarms_are_deleted_and_unknown_names_are_ignored(client, name):
    client.put_metric_alarm(AlarmName=name, **RULE)

    client.delete_alarms(AlarmNames=["unknown", name])

    assert client.describe_alarms(AlarmNames=[name])["MetricAlarms"] == []


def test_an_alarm_has_tags(client, name):
    client.put_metric_alarm(AlarmName=name, Tags=[{"Key": "a", "Value": "1"}], **RULE)
    arn = described(client, name)["AlarmArn"]

    client.tag_resource(ResourceARN=arn, Tags=[{"Key": "b", "Value": ""}])
    both = client.list_tags_for_resource(ResourceARN=arn)["Tags"]
    client.untag_resource(ResourceARN=arn, TagKeys=["a", "c"])

    assert both == [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": ""}]
    assert client.list_tags_for_resource(ResourceARN=arn)["Tags"] == both[1:]
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        client.list_tags_for_resource(ResourceARN=arn + "x")


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        (MATH, "2 elements do"),
        ([{**MATH[0], "ReturnData": False}], "0 elements do"),
        ([{**MATH[0], "ReturnData": False}, {**MATH[1], "Period": 300}], "expected the same for all queries"),
        ([{**MATH[1], "Expression": "m2 * 2"}], "no query with the id"),
        ([{**MATH[0], "ReturnData": False}, {**MATH[0], "Id": "m2", "ReturnData": False}, ALL], "single time series"),
        ([{**MATH[0], "Id": f"m{i}"} for i in range(11)], "11 queries with MetricStat; expected at most 10"),
        ([{**MATH[1], "Id": f"e{i}"} for i in range(11)], "11 queries with Expression; expected at most 10"),
    ],
)
def test_an_alarm_on_invalid_queries_is_refused(client, name, metrics, words):
    rule = {key: RULE[key] for key in ("EvaluationPeriods", "Threshold", "ComparisonOperator")}

    with pytest.raises(ClientError, match=words):
        client.put_metric_alarm(AlarmName=name, Metrics=metrics, **rule)


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"EvaluationPeriods": None}, "MissingParameter", "EvaluationPeriods"),
        ({"Threshold": None}, "MissingParameter", "Threshold"),
        ({"MetricName": None}, "MissingParameter", "MetricName"),
        ({"Statistic": None}, "InvalidParameterCombination", "Exactly one"),
        ({"ExtendedStatistic": "p90"}, "InvalidParameterCombination", "Exactly one"),
        ({"Metrics": MATH}, "InvalidParameterCombination", "together"),
        ({"Period": 45}, "ValidationError", "Period"),
        ({"Period": 3600, "EvaluationPeriods": 169}, "ValidationError", "across more than"),
        ({"Threshold": float("inf")}, "InvalidParameterValue", "Threshold"),
        ({"DatapointsToAlarm": 4}, "ValidationError", "DatapointsToAlarm"),
        ({"TreatMissingData": "panic"}, "ValidationError", "TreatMissingData"),
        ({"AlarmActions": ["mail me"]}, "ValidationError", "Invalid arn syntax"),
        ({"ComparisonOperator": "GreaterThanUpperThreshold"}, "InvalidParameterValue", "anomaly"),
        ({"ThresholdMetricId": "ad1"}, "InvalidParameterValue", "not supported"),
    ],
)
def test_an_alarm_that_breaks_a_rule_is_refused(client, name, changes, code, words):
    params = {key: value for key, value in {**RULE, **changes}.items() if value is not None}

    with pytest.raises(ClientError, match=words) as raised:
        client.put_metric_alarm(AlarmName=name, **params)

    assert raised.value.response["Error"]["Code"] == code


def test_the_state_of_an_unknown_alarm_cannot_be_set(client, name):
    with pytest.raises(client.exceptions.ResourceNotFound) as raised:
        client.set_alarm_state(AlarmName=name, StateValue="OK", StateReason="test")

    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404
    client.put_metric_alarm(AlarmName=name, **RULE)
    with pytest.raises(client.exceptions.InvalidFormatFault, match="JSON"):
        client.set_alarm_state(AlarmName=name, StateValue="OK", StateReason="test", StateReasonData="{")


@pytest.mark.parametrize(
    ("changes", "period_s"),
    [
        ({}, 60),
        ({"Period": 10, "DatapointsToAlarm": 2, "TreatMissingData": "breaching"}, 10),
        ({"Statistic": None, "ExtendedStatistic": "p99.9", "EvaluateLowSampleCountPercentile": "ignore"}, 60),
        ({"Dimensions": [{"Name": "EndpointName", "Value": "e"}], "Period": 3600}, 3600),
        ({**NO_METRIC, "Metrics": [{**MATH[0], "ReturnData": False}, MATH[1]]}, 60),
        ({**NO_METRIC, "Metrics": [MATH[0]]}, 60),
    ],
)
def test_every_accepted_alarm_can_be_evaluated(client, cloud, name, changes, period_s):
    params = {key: value for key, value in {**RULE, **changes}.items() if value is not None}
    client.put_metric_alarm(AlarmName=name, **params)

    rule = cloud.store.get(ALARM, name).spec.rule

    assert (rule.period_s, rule.threshold, rule.evaluation_periods) == (period_s, 20.0, 3)


def test_the_history_of_an_alarm_is_bounded(client, cloud, name):
    client.put_metric_alarm(AlarmName=name, **RULE)
    for number in range(101):
        state = ("OK", "ALARM")[number % 2]
        client.set_alarm_state(AlarmName=name, StateValue=state, StateReason="test")

    record = cloud.store.get(ALARM, name)

    assert len(record.status.history) == 100
