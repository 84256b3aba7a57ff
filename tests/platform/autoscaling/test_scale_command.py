"""`headrace scale` against a control plane on a real port."""

import json

import pytest
from botocore.exceptions import ClientError
from click.testing import CliRunner, Result

from headrace.tools.cli.scale import scale, tracking
from tests.platform.control.calls import make_config
from tests.platform.control.support import Platform

IDENTITY = {
    "ServiceNamespace": "sagemaker",
    "ResourceId": "endpoint/e/variant/AllTraffic",
    "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
}


def run(platform: Platform, *arguments: str) -> Result:
    return CliRunner().invoke(scale, [*arguments, "--url", platform.url])


@pytest.fixture
def endpoint(still_platform: Platform) -> Platform:
    """A platform with an endpoint `e`."""
    client = still_platform.client("sagemaker")
    make_config(client)
    client.create_endpoint(EndpointName="e", EndpointConfigName="c")
    return still_platform


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the command's clients live as long as its process
def test_a_name_and_bounds_are_enough_and_off_undoes_them(endpoint: Platform) -> None:
    done = run(endpoint, "e", "--min", "0", "--max", "3", "--target", "2", "--idle-s", "60")
    assert done.exit_code == 0, done.output
    output = run(endpoint, "e", "--describe", "--json").output
    shown, _ = json.JSONDecoder().raw_decode(output[output.index("{\n") :])  # the server may log to the same place
    (target,) = shown["ScalableTargets"]
    assert (target["MinCapacity"], target["MaxCapacity"]) == (0, 3)
    assert {policy["PolicyName"] for policy in shown["ScalingPolicies"]} == {"headrace-load", "headrace-idle"}
    alarms = endpoint.client("cloudwatch").describe_alarms()["MetricAlarms"]
    assert len(alarms) == 3
    (idle,) = (alarm for alarm in alarms if alarm["AlarmName"].startswith("headrace-idle"))
    assert (idle["EvaluationPeriods"], idle["TreatMissingData"]) == (6, "breaching")
    watched = [query["MetricStat"] for query in idle["Metrics"] if "MetricStat" in query]
    assert {(query["Metric"]["MetricName"], query["Stat"], query["Period"]) for query in watched} == {
        ("ConcurrentRequestsPerModel", "Maximum", 10),
        ("Invocations", "Sum", 10),
    }
    assert run(endpoint, "e", "--min", "1", "--max", "3").exit_code == 0
    assert len(endpoint.client("cloudwatch").describe_alarms()["MetricAlarms"]) == 2, "no idle policy any more"
    described = run(endpoint, "e", "--describe").output
    assert "endpoint/e/variant/AllTraffic: 0 of 1 workers in service, bounds 1 to 3" in described
    assert "headrace-load  keeps SageMakerVariantConcurrentRequestsPerModelHighResolution at 4" in described
    assert "High INSUFFICIENT_DATA, Low INSUFFICIENT_DATA" in described
    assert run(endpoint, "e", "--off").exit_code == 0
    assert endpoint.client("cloudwatch").describe_alarms()["MetricAlarms"] == []
    assert "is not scaled" in run(endpoint, "e", "--describe").output


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("idle_s", "period_s", "periods"), [(10, 10, 1), (35, 10, 4), (3600, 10, 360), (7230, 60, 121)]
)
def test_the_idle_time_is_at_least_the_given_one(endpoint: Platform, idle_s: int, period_s: int, periods: int) -> None:
    assert run(endpoint, "e", "--min", "0", "--max", "1", "--idle-s", str(idle_s)).exit_code == 0
    found = endpoint.client("cloudwatch").describe_alarms(AlarmNamePrefix="headrace-idle")["MetricAlarms"]
    assert [entry["EvaluationPeriods"] for entry in found] == [periods]
    assert {query["MetricStat"]["Period"] for query in found[0]["Metrics"] if "MetricStat" in query} == {period_s}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("e", "--min", "2", "--max", "1"), "--min not above --max"),
        (("e", "--min", "2"), "Give both --min and --max"),
        (("e",), "Give both --min and --max"),
        (("none", "--min", "1", "--max", "2"), "no endpoint or inference component called none"),
        (("e", "--variant", "b", "--describe"), "has no variant b"),
        (("e", "--off"), "is not scaled"),
    ],
)
def test_invalid_arguments_are_refused_with_one_sentence(
    endpoint: Platform, arguments: tuple[str, ...], message: str
) -> None:
    done = run(endpoint, *arguments)
    assert done.exit_code == 2
    assert message in done.output


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_users_own_policy_on_the_same_metric_is_kept_with_its_bounds(endpoint: Platform) -> None:
    client = endpoint.client("application-autoscaling")
    identity = IDENTITY
    client.register_scalable_target(**identity, MinCapacity=2, MaxCapacity=9)
    put = {"PolicyType": "TargetTrackingScaling", "TargetTrackingScalingPolicyConfiguration": tracking(identity, 7)}
    client.put_scaling_policy(**identity, PolicyName="mine", **put)
    done = run(endpoint, "e", "--min", "0", "--max", "3")
    assert done.exit_code == 2
    assert "The policy mine already tracks SageMakerVariantConcurrentRequestsPerModelHighResolution" in done.output
    (target,) = client.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"]
    assert (target["MinCapacity"], target["MaxCapacity"]) == (2, 9)
    with pytest.raises(ClientError, match="There is mine: put that one, or delete it first"):
        client.put_scaling_policy(**identity, PolicyName="twin", **put)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_off_keeps_a_users_own_policies_and_says_how_to_delete_them(endpoint: Platform) -> None:
    client = endpoint.client("application-autoscaling")
    assert run(endpoint, "e", "--min", "1", "--max", "3", "--idle-s", "60").exit_code == 0
    step = {"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}
    steps = {"AdjustmentType": "ChangeInCapacity", "StepAdjustments": [step]}
    client.put_scaling_policy(
        **IDENTITY, PolicyName="mine", PolicyType="StepScaling", StepScalingPolicyConfiguration=steps
    )
    client.put_scheduled_action(
        **IDENTITY, ScheduledActionName="night", Schedule="rate(1 day)", ScalableTargetAction={"MaxCapacity": 1}
    )
    done = run(endpoint, "e", "--off")
    assert done.exit_code == 0, done.output
    assert "and kept: policy mine, scheduled action night." in done.output
    line = f"deregister-scalable-target --endpoint-url {endpoint.url} --service-namespace sagemaker --resource-id "
    assert f"{line}{IDENTITY['ResourceId']} --scalable-dimension {IDENTITY['ScalableDimension']}" in done.output
    (policy,) = client.describe_scaling_policies(ServiceNamespace="sagemaker")["ScalingPolicies"]
    (action,) = client.describe_scheduled_actions(ServiceNamespace="sagemaker")["ScheduledActions"]
    (target,) = client.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"]
    assert (policy["PolicyName"], action["ScheduledActionName"], target["MaxCapacity"]) == ("mine", "night", 3)
    assert endpoint.client("cloudwatch").describe_alarms()["MetricAlarms"] == []
    again = run(endpoint, "e", "--off")
    assert (again.exit_code, "nothing was changed" in again.output) == (2, True)
