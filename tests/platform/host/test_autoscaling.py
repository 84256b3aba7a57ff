"""A variant that grows under load, goes to sleep, and is woken by a request: the real small model and real clocks."""

from pathlib import Path
from typing import Any

import pytest

from .endpoints import delete_endpoint, invoke, make_endpoint
from .running import IMAGE, Running, until

pytestmark = pytest.mark.model

NAME = "scaled"
IDENTITY = {
    "ServiceNamespace": "sagemaker",
    "ResourceId": f"endpoint/{NAME}/variant/AllTraffic",
    "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
}


def put_step(running: Running, name: str, capacity: int, **alarm: Any) -> None:
    """A step policy to an exact capacity, and the alarm that starts it."""
    side = "MetricIntervalLowerBound" if "Greater" in alarm["ComparisonOperator"] else "MetricIntervalUpperBound"
    policy = running.client("application-autoscaling").put_scaling_policy(
        **IDENTITY,
        PolicyName=name,
        PolicyType="StepScaling",
        StepScalingPolicyConfiguration={
            "AdjustmentType": "ExactCapacity",
            "StepAdjustments": [{side: 0.0, "ScalingAdjustment": capacity}],
            "Cooldown": 0,
        },
    )
    running.client("cloudwatch").put_metric_alarm(
        AlarmName=name,
        AlarmActions=[policy["PolicyARN"]],
        Namespace="Test",
        MetricName="Work",
        Statistic="Maximum",
        Period=10,
        EvaluationPeriods=1,
        Threshold=1.0,
        **alarm,
    )


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the command's clients live as long as its process
def test_a_variant_scales_out_then_to_zero_and_is_woken_by_a_request(platform: Running, smollm2_path: Path) -> None:
    make_endpoint(platform, NAME, {"Image": IMAGE, "Environment": {"HF_MODEL_ID": str(smollm2_path)}})
    sagemaker, scaling = platform.client("sagemaker"), platform.client("application-autoscaling")
    cloudwatch = platform.client("cloudwatch")

    def counts() -> tuple[int, int]:
        found = sagemaker.describe_endpoint(EndpointName=NAME)
        (variant,) = found["ProductionVariants"]
        is_settled = found["EndpointStatus"] == "InService"
        return (variant["CurrentInstanceCount"], variant["DesiredInstanceCount"]) if is_settled else (-1, -1)

    until(lambda: counts() == (1, 1), "it is in service")
    scaling.register_scalable_target(**IDENTITY, MinCapacity=0, MaxCapacity=2)
    put_step(platform, "busy", 2, ComparisonOperator="GreaterThanThreshold", TreatMissingData="notBreaching")

    def is_doubled() -> bool:
        datum = {"MetricName": "Work", "Value": 5.0, "StorageResolution": 1}
        cloudwatch.put_metric_data(Namespace="Test", MetricData=[datum])
        return counts() == (2, 2)

    until(is_doubled, "it scaled out")
    cloudwatch.delete_alarms(AlarmNames=["busy"])
    asleep = platform.headrace("scale", NAME, "--min", "0", "--max", "2", "--idle-s", "10", "--url", platform.url)
    assert asleep.returncode == 0, asleep.stderr
    until(lambda: counts() == (0, 0), "it went to sleep without requests")

    (answer,) = invoke(platform, NAME)
    assert answer["details"]["generated_tokens"] == 12
    activities = scaling.describe_scaling_activities(ServiceNamespace="sagemaker", ResourceId=IDENTITY["ResourceId"])
    causes = [activity["Cause"] for activity in reversed(activities["ScalingActivities"])]
    assert causes == [
        "monitor alarm busy in state ALARM triggered policy busy",
        f"monitor alarm headrace-idle-{IDENTITY['ResourceId']} in state ALARM triggered policy headrace-idle",
        "a request arrived while capacity was 0",
    ]
    assert platform.headrace("scale", NAME, "--off", "--url", platform.url).returncode == 0
    delete_endpoint(platform, NAME)
