"""Application Auto Scaling as boto3 sees it."""

from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.platform.control.calls import make_config
from tests.platform.control.support import ROLE, Platform

RESOURCE = "endpoint/e/variant/AllTraffic"
IDENTITY = {
    "ServiceNamespace": "sagemaker",
    "ResourceId": RESOURCE,
    "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
}
TRACKING = {
    "TargetValue": 20.0,
    "PredefinedMetricSpecification": {"PredefinedMetricType": "SageMakerVariantInvocationsPerInstance"},
    "ScaleOutCooldown": 60,
    "ScaleInCooldown": 300,
}
STEP = {
    "AdjustmentType": "ChangeInCapacity",
    "StepAdjustments": [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}],
    "Cooldown": 60,
}


@pytest.fixture
def client(still_platform: Platform) -> Any:
    """The client of a platform with an endpoint `e`."""
    sagemaker = still_platform.client("sagemaker")
    make_config(sagemaker)
    sagemaker.create_endpoint(EndpointName="e", EndpointConfigName="c")
    return still_platform.client("application-autoscaling")


@pytest.fixture
def cloudwatch(still_platform: Platform) -> Any:
    return still_platform.client("cloudwatch")


def test_a_target_is_registered_changed_described_and_deregistered(client: Any) -> None:
    made = client.register_scalable_target(
        **IDENTITY, MinCapacity=1, MaxCapacity=2, RoleARN=ROLE, Tags={"team": "search"}
    )
    arn = made["ScalableTargetARN"]
    assert arn.startswith("arn:aws:application-autoscaling:us-east-1:123456789012:scalable-target/")
    again = client.register_scalable_target(
        **IDENTITY, MaxCapacity=5, SuspendedState={"DynamicScalingInSuspended": True}
    )
    assert again["ScalableTargetARN"] == arn
    (target,) = client.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"]
    assert (target["MinCapacity"], target["MaxCapacity"]) == (1, 5)
    assert target["RoleARN"].endswith("AWSServiceRoleForApplicationAutoScaling_SageMakerEndpoint")
    assert target["SuspendedState"] == {
        "DynamicScalingInSuspended": True,
        "DynamicScalingOutSuspended": False,
        "ScheduledScalingSuspended": False,
    }
    client.tag_resource(ResourceARN=arn, Tags={"env": "prod"})
    client.untag_resource(ResourceARN=arn, TagKeys=["team"])
    assert client.list_tags_for_resource(ResourceARN=arn)["Tags"] == {"env": "prod"}
    client.deregister_scalable_target(**IDENTITY)
    assert client.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"] == []
    with pytest.raises(client.exceptions.ObjectNotFoundException, match="No scalable target found for service"):
        client.deregister_scalable_target(**IDENTITY)
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        client.list_tags_for_resource(ResourceARN=arn)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"MaxCapacity": 0}, "Maximum capacity cannot be less than minimum capacity"),
        ({"MinCapacity": -1}, "Minimum capacity cannot be less than 0"),
        ({"ResourceId": "endpoint/none/variant/AllTraffic"}, "does not exist: endpoint/none"),
        ({"ResourceId": "endpoint/e/variant/none"}, "does not exist: endpoint/e/variant/none"),
        ({"ResourceId": "service/a/b"}, "Unsupported service namespace, resource type or scalable dimension"),
        ({"ServiceNamespace": "ecs"}, "Unsupported service namespace, resource type or scalable dimension"),
        (
            {"ScalableDimension": "sagemaker:variant:DesiredProvisionedConcurrency"},
            "serverless variant has at most one worker",
        ),
        (
            {
                "ResourceId": "inference-component/none",
                "ScalableDimension": "sagemaker:inference-component:DesiredCopyCount",
            },
            "inference component does not exist",
        ),
    ],
)
def test_an_invalid_target_is_refused(client: Any, change: dict[str, Any], message: str) -> None:
    with pytest.raises(client.exceptions.ValidationException, match=message):
        client.register_scalable_target(**{**IDENTITY, "MinCapacity": 1, "MaxCapacity": 2, **change})


def test_a_new_target_needs_bounds(client: Any) -> None:
    with pytest.raises(client.exceptions.ValidationException, match="MaxCapacity cannot be null"):
        client.register_scalable_target(**IDENTITY, MinCapacity=1)


def test_a_tracking_policy_has_two_alarms_which_cloudwatch_shows(client: Any, cloudwatch: Any) -> None:
    client.register_scalable_target(**IDENTITY, MinCapacity=1, MaxCapacity=2)
    policy = {"PolicyName": "p", "PolicyType": "TargetTrackingScaling", **IDENTITY}
    made = client.put_scaling_policy(**policy, TargetTrackingScalingPolicyConfiguration=TRACKING)
    assert made["PolicyARN"].endswith(f":resource/sagemaker/{RESOURCE}:policyName/p")
    names = [alarm["AlarmName"] for alarm in made["Alarms"]]
    assert names[0].startswith(f"TargetTracking-{RESOURCE}-AlarmHigh-")
    assert names[1].startswith(f"TargetTracking-{RESOURCE}-AlarmLow-")
    high, low = cloudwatch.describe_alarms(AlarmNames=names)["MetricAlarms"]
    assert (high["Threshold"], high["EvaluationPeriods"], high["Period"]) == (20.0, 3, 60)
    assert (low["Threshold"], low["EvaluationPeriods"], low["Period"]) == (18.0, 15, 60)
    assert high["AlarmActions"] == [made["PolicyARN"]]
    assert high["StateValue"] == "INSUFFICIENT_DATA"
    again = client.put_scaling_policy(
        **policy, TargetTrackingScalingPolicyConfiguration={**TRACKING, "TargetValue": 10.0}
    )
    assert again == {**made, "ResponseMetadata": again["ResponseMetadata"]}
    assert cloudwatch.describe_alarms(AlarmNames=names)["MetricAlarms"][0]["Threshold"] == 10.0
    (shown,) = client.describe_scaling_policies(ServiceNamespace="sagemaker", ResourceId=RESOURCE)["ScalingPolicies"]
    assert shown["Alarms"] == made["Alarms"]
    assert shown["TargetTrackingScalingPolicyConfiguration"]["TargetValue"] == 10.0
    client.delete_scaling_policy(**IDENTITY, PolicyName="p")
    assert cloudwatch.describe_alarms()["MetricAlarms"] == []
    with pytest.raises(client.exceptions.ObjectNotFoundException, match="policy name: p"):
        client.delete_scaling_policy(**IDENTITY, PolicyName="p")


def test_a_policy_that_may_not_scale_in_has_only_the_alarm_for_out(client: Any, cloudwatch: Any) -> None:
    client.register_scalable_target(**IDENTITY, MinCapacity=1, MaxCapacity=2)
    policy = {"PolicyName": "p", "PolicyType": "TargetTrackingScaling", **IDENTITY}

    def put(*, is_scale_in_disabled: bool) -> list[str]:
        config = {**TRACKING, "DisableScaleIn": is_scale_in_disabled}
        made = client.put_scaling_policy(**policy, TargetTrackingScalingPolicyConfiguration=config)
        names = [alarm["AlarmName"] for alarm in made["Alarms"]]
        assert {alarm["AlarmName"] for alarm in cloudwatch.describe_alarms()["MetricAlarms"]} == set(names)
        (shown,) = client.describe_scaling_policies(ServiceNamespace="sagemaker")["ScalingPolicies"]
        assert shown["Alarms"] == made["Alarms"]
        return names

    (high,) = put(is_scale_in_disabled=True)
    assert "-AlarmHigh-" in high
    both = put(is_scale_in_disabled=False)
    assert both[0] == high
    assert "-AlarmLow-" in both[1]
    assert put(is_scale_in_disabled=True) == [high]


def test_a_policy_needs_a_registered_target(client: Any) -> None:
    with pytest.raises(client.exceptions.ObjectNotFoundException, match="No scalable target registered for"):
        client.put_scaling_policy(**IDENTITY, PolicyName="p", StepScalingPolicyConfiguration=STEP)
    with pytest.raises(client.exceptions.ObjectNotFoundException, match="No scalable target registered for"):
        client.put_scheduled_action(**IDENTITY, ScheduledActionName="a", Schedule="rate(1 hour)")


def test_a_step_policy_has_the_alarms_of_users_that_name_it(client: Any, cloudwatch: Any) -> None:
    client.register_scalable_target(**IDENTITY, MinCapacity=0, MaxCapacity=2)
    arn = client.put_scaling_policy(**IDENTITY, PolicyName="p", StepScalingPolicyConfiguration=STEP)["PolicyARN"]
    cloudwatch.put_metric_alarm(
        AlarmName="mine",
        AlarmActions=[arn],
        MetricName="m",
        Namespace="n",
        Statistic="Sum",
        Period=60,
        EvaluationPeriods=1,
        Threshold=1.0,
        ComparisonOperator="GreaterThanThreshold",
    )
    (shown,) = client.describe_scaling_policies(ServiceNamespace="sagemaker", PolicyNames=["p"])["ScalingPolicies"]
    assert shown["PolicyType"] == "StepScaling"
    assert [alarm["AlarmName"] for alarm in shown["Alarms"]] == ["mine"]
    client.delete_scaling_policy(**IDENTITY, PolicyName="p")
    (left,) = cloudwatch.describe_alarms()["MetricAlarms"]
    assert left["AlarmActions"] == []


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"TargetValue": -1.0}, "TargetValue"),
        ({"ScaleInCooldown": -1}, "ScaleInCooldown is -1"),
        (
            {
                "PredefinedMetricSpecification": {
                    "PredefinedMetricType": "SageMakerInferenceComponentInvocationsPerCopy"
                }
            },
            "is not for sagemaker:variant",
        ),
        ({"PredefinedMetricSpecification": {"PredefinedMetricType": "ALBRequestCountPerTarget"}}, "is not for"),
        ({"CustomizedMetricSpecification": {"MetricName": "m"}}, "either"),
    ],
)
def test_an_invalid_tracking_policy_is_refused(client: Any, config: dict[str, Any], message: str) -> None:
    client.register_scalable_target(**IDENTITY, MinCapacity=1, MaxCapacity=2)
    with pytest.raises(client.exceptions.ValidationException, match=message):
        client.put_scaling_policy(
            **IDENTITY,
            PolicyName="p",
            PolicyType="TargetTrackingScaling",
            TargetTrackingScalingPolicyConfiguration={**TRACKING, **config},
        )


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"Id": "e", "Expression": "q/c"}, "no query with the id 'q'"),
        ({"Id": "e", "Expression": "SEARCH('x', 'Sum', 60)"}, "SEARCH is not supported"),
        ({"Id": "e", "Expression": "1"}, "not a time series"),
        ({"Id": "Big", "Expression": "Big"}, "not matching the expected pattern"),
        (
            {"Id": "m", "MetricStat": {"Metric": {"Namespace": "n", "MetricName": "m"}, "Stat": "Avg"}},
            "The value Avg for parameter Stat of the query m is not supported",
        ),
    ],
)
def test_metrics_that_cloudwatch_would_refuse_are_refused_with_the_policy(
    client: Any, cloudwatch: Any, query: dict[str, Any], message: str
) -> None:
    client.register_scalable_target(**IDENTITY, MinCapacity=1, MaxCapacity=2)
    with pytest.raises(client.exceptions.ValidationException, match=message):
        client.put_scaling_policy(
            **IDENTITY,
            PolicyName="p",
            PolicyType="TargetTrackingScaling",
            TargetTrackingScalingPolicyConfiguration={
                "TargetValue": 1.0,
                "CustomizedMetricSpecification": {"Metrics": [query]},
            },
        )
    assert client.describe_scaling_policies(ServiceNamespace="sagemaker")["ScalingPolicies"] == []
    assert cloudwatch.describe_alarms()["MetricAlarms"] == []


def test_predictive_scaling_is_refused_by_name(client: Any) -> None:
    client.register_scalable_target(**IDENTITY, MinCapacity=1, MaxCapacity=2)
    with pytest.raises(ClientError, match="PredictiveScaling is not supported by Headrace"):
        client.put_scaling_policy(**IDENTITY, PolicyName="p", PolicyType="PredictiveScaling")
    now = datetime.now(UTC)
    with pytest.raises(ClientError, match="PredictiveScaling is not supported by Headrace"):
        client.get_predictive_scaling_forecast(**IDENTITY, PolicyName="p", StartTime=now, EndTime=now)


def test_two_tracking_policies_on_one_metric_and_gaps_between_steps_are_refused(client: Any) -> None:
    client.register_scalable_target(**IDENTITY, MinCapacity=1, MaxCapacity=2)
    tracking = {"PolicyType": "TargetTrackingScaling", "TargetTrackingScalingPolicyConfiguration": TRACKING}
    client.put_scaling_policy(**IDENTITY, PolicyName="one", **tracking)
    with pytest.raises(ClientError, match="Only one TargetTrackingScaling policy for a given metric"):
        client.put_scaling_policy(**IDENTITY, PolicyName="two", **tracking)
    with pytest.raises(ClientError, match="cannot be changed to StepScaling"):
        client.put_scaling_policy(
            **IDENTITY, PolicyName="one", PolicyType="StepScaling", StepScalingPolicyConfiguration=STEP
        )
    gap = [
        {"MetricIntervalLowerBound": 0.0, "MetricIntervalUpperBound": 1.0, "ScalingAdjustment": 1},
        {"MetricIntervalLowerBound": 2.0, "ScalingAdjustment": 2},
    ]
    with pytest.raises(ClientError, match="gap"):
        client.put_scaling_policy(
            **IDENTITY, PolicyName="steps", StepScalingPolicyConfiguration={**STEP, "StepAdjustments": gap}
        )


def test_a_scheduled_action_is_kept_changed_and_deleted(client: Any) -> None:
    client.register_scalable_target(**IDENTITY, MinCapacity=1, MaxCapacity=2)
    start = datetime(2030, 1, 1, tzinfo=UTC)
    client.put_scheduled_action(
        **IDENTITY,
        ScheduledActionName="morning",
        Schedule="cron(0 8 ? * MON-FRI *)",
        Timezone="Europe/Berlin",
        StartTime=start,
        ScalableTargetAction={"MinCapacity": 2},
    )
    client.put_scheduled_action(**IDENTITY, ScheduledActionName="morning", Schedule="rate(1 day)")
    (action,) = client.describe_scheduled_actions(ServiceNamespace="sagemaker")["ScheduledActions"]
    assert action["Schedule"] == "rate(1 day)"
    assert action["ScalableTargetAction"] == {"MinCapacity": 2}
    assert "StartTime" not in action, "times that are not given are forgotten"
    assert action["ScheduledActionARN"].endswith("scheduledActionName/morning")
    for bad, message in (({"Schedule": "daily"}, "expected at"), ({"Timezone": "Mars/Base"}, "IANA")):
        with pytest.raises(ClientError, match=message):
            client.put_scheduled_action(**IDENTITY, ScheduledActionName="morning", **bad)
    client.delete_scheduled_action(**IDENTITY, ScheduledActionName="morning")
    with pytest.raises(client.exceptions.ObjectNotFoundException, match="No scheduled action found for"):
        client.delete_scheduled_action(**IDENTITY, ScheduledActionName="morning")


def test_policies_are_described_in_pages(client: Any) -> None:
    client.register_scalable_target(**IDENTITY, MinCapacity=1, MaxCapacity=2)
    for number in range(5):
        client.put_scaling_policy(**IDENTITY, PolicyName=f"p{number}", StepScalingPolicyConfiguration=STEP)
    pages = client.get_paginator("describe_scaling_policies").paginate(
        ServiceNamespace="sagemaker", PaginationConfig={"PageSize": 2}
    )
    names = [policy["PolicyName"] for page in pages for policy in page["ScalingPolicies"]]
    assert names == ["p0", "p1", "p2", "p3", "p4"]
    for number in range(5, 12):
        client.put_scaling_policy(**IDENTITY, PolicyName=f"p{number}", StepScalingPolicyConfiguration=STEP)
    first = client.describe_scaling_policies(ServiceNamespace="sagemaker", MaxResults=50)
    assert (len(first["ScalingPolicies"]), "NextToken" in first) == (10, True)
    with pytest.raises(client.exceptions.InvalidNextTokenException):
        client.describe_scaling_policies(ServiceNamespace="sagemaker", NextToken="nonsense")
    with pytest.raises(ClientError, match="MaxResults is 0"):
        client.describe_scaling_activities(ServiceNamespace="sagemaker", MaxResults=0)


def test_a_target_takes_its_policies_alarms_and_schedules_with_it(client: Any, cloudwatch: Any) -> None:
    client.register_scalable_target(**IDENTITY, MinCapacity=1, MaxCapacity=2)
    client.put_scaling_policy(
        **IDENTITY,
        PolicyName="p",
        PolicyType="TargetTrackingScaling",
        TargetTrackingScalingPolicyConfiguration=TRACKING,
    )
    client.put_scheduled_action(
        **IDENTITY, ScheduledActionName="a", Schedule="rate(1 day)", ScalableTargetAction={"MinCapacity": 1}
    )
    client.deregister_scalable_target(**IDENTITY)
    assert client.describe_scaling_policies(ServiceNamespace="sagemaker")["ScalingPolicies"] == []
    assert client.describe_scheduled_actions(ServiceNamespace="sagemaker")["ScheduledActions"] == []
    assert cloudwatch.describe_alarms()["MetricAlarms"] == []
