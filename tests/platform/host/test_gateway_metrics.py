"""Metrics on a real platform: they outlive kill -9, and an asynchronous endpoint is scaled from zero by its queue."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .component_scene import ROLE, Scene, dumb_up
from .running import Running, until

NAME = "queued"
IDENTITY = {
    "ServiceNamespace": "sagemaker",
    "ResourceId": f"endpoint/{NAME}/variant/v",
    "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
}
VARIANT = {"EndpointName": NAME, "VariantName": "v"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def platforms(folder: Path) -> Iterator[list[Running]]:
    """Started one after the other in one folder; the last one is ended."""
    started: list[Running] = []
    yield started
    for running in started:
        running.close()
    if started:
        assert started[-1].stop() == 0, started[-1].log()


def total(running: Running, name: str, statistic: str = "Sum", **dimensions: str) -> float | None:
    """Statistics over everything that was measured; None: nothing was."""
    metric = {
        "Namespace": "AWS/SageMaker",
        "MetricName": name,
        "Dimensions": [{"Name": name, "Value": value} for name, value in dimensions.items()],
    }
    query = {"Id": "m", "MetricStat": {"Metric": metric, "Period": 86_400, "Stat": statistic}}
    found = running.client("cloudwatch").get_metric_data(
        StartTime=0, EndTime=4_000_000_000, MetricDataQueries=[query], ScanBy="TimestampDescending"
    )
    values = found["MetricDataResults"][0]["Values"]
    return float(values[0]) if values else None


def until_written(folder: Path) -> None:
    """Wait for two writings of the metrics' file: the second has all that was measured before this call."""
    files = [folder / f"metrics.sqlite{end}" for end in ("", "-wal")]

    def written() -> list[int]:
        return [file.stat().st_mtime_ns for file in files if file.exists()]

    for _ in range(2):
        before = written()
        until(lambda before=before: written() != before, "metrics are written")


def make_endpoint(scene: Scene, **config: Any) -> None:
    scene.model(NAME)
    variant = {"VariantName": "v", "ModelName": NAME, "InitialInstanceCount": 1, "InstanceType": "ml.m5.large"}
    scene.sagemaker.create_endpoint_config(
        EndpointConfigName=NAME, ProductionVariants=[variant], ExecutionRoleArn=ROLE, **config
    )
    scene.sagemaker.create_endpoint(EndpointName=NAME, EndpointConfigName=NAME)
    until(lambda: scene.endpoint(NAME)["EndpointStatus"] == "InService", "it is in service")


def test_metrics_survive_a_killed_platform(folder: Path, platforms: list[Running]) -> None:
    platforms.append(dumb_up(folder))
    scene = Scene(platforms[-1])
    make_endpoint(scene)
    for _ in range(7):
        scene.runtime.invoke_endpoint(EndpointName=NAME, Body=b"{}")["Body"].read()
    until(lambda: total(platforms[0], "Invocations", **VARIANT) == 7, "they are counted")
    latency = total(platforms[0], "ModelLatency", **VARIANT)
    until_written(folder)
    platforms[0].kill()
    platforms.append(dumb_up(folder))
    assert total(platforms[1], "Invocations", **VARIANT) == 7
    assert total(platforms[1], "ModelLatency", **VARIANT) == latency
    scene = Scene(platforms[1])
    scene.runtime.invoke_endpoint(EndpointName=NAME, Body=b"{}")["Body"].read()
    until(lambda: total(platforms[1], "Invocations", **VARIANT) == 8, "it goes on counting")


def put_waking(running: Running) -> None:
    """As AWS's guide does it: an alarm on a backlog without capacity, and a step policy that brings one instance."""
    scaling = running.client("application-autoscaling")
    scaling.register_scalable_target(**IDENTITY, MinCapacity=0, MaxCapacity=2)
    policy = scaling.put_scaling_policy(
        **IDENTITY,
        PolicyName="wake",
        PolicyType="StepScaling",
        StepScalingPolicyConfiguration={
            "AdjustmentType": "ChangeInCapacity",
            "MetricAggregationType": "Average",
            "StepAdjustments": [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}],
            "Cooldown": 300,
        },
    )
    running.client("cloudwatch").put_metric_alarm(
        AlarmName="wake",
        AlarmActions=[policy["PolicyARN"]],
        Namespace="AWS/SageMaker",
        MetricName="HasBacklogWithoutCapacity",
        Dimensions=[{"Name": "EndpointName", "Value": NAME}],
        Statistic="Average",
        Period=10,
        EvaluationPeriods=1,
        Threshold=1.0,
        ComparisonOperator="GreaterThanOrEqualToThreshold",
        TreatMissingData="missing",
    )


def test_a_queue_at_zero_survives_the_platform_and_scales_its_endpoint(folder: Path, platforms: list[Running]) -> None:
    """In strict mode nothing else wakes it."""
    platforms.append(dumb_up(folder, "--strict"))
    scene = Scene(platforms[-1])
    scene.running.client("s3").create_bucket(Bucket="out")
    output = {"S3OutputPath": "s3://out/done", "S3FailurePath": "s3://out/failed"}
    make_endpoint(scene, AsyncInferenceConfig={"OutputConfig": output})
    scene.sagemaker.update_endpoint_weights_and_capacities(
        EndpointName=NAME, DesiredWeightsAndCapacities=[{"VariantName": "v", "DesiredInstanceCount": 0}]
    )

    def is_asleep() -> bool:
        found = scene.endpoint(NAME)
        return found["EndpointStatus"] == "InService" and not found["ProductionVariants"][0]["CurrentInstanceCount"]

    until(is_asleep, "it sleeps")
    answers = [
        scene.runtime.invoke_endpoint_async(EndpointName=NAME, Body=json.dumps({"number": number}).encode())
        for number in range(3)
    ]
    platforms[0].kill()
    platforms.append(dumb_up(folder, "--strict"))
    running = platforms[1]
    until(lambda: total(running, "ApproximateBacklogSize", "Maximum", EndpointName=NAME) == 3, "they are in the queue")
    assert total(running, "HasBacklogWithoutCapacity", "Maximum", EndpointName=NAME) == 1
    assert not running.client("s3").list_objects_v2(Bucket="out").get("Contents")

    put_waking(running)
    s3 = running.client("s3")
    for answer in answers:
        key = answer["OutputLocation"].removeprefix("s3://out/")
        until(lambda key=key: key in keys(s3), f"{key} is written")
    assert not any(key.startswith("failed/") for key in keys(s3))
    until(lambda: total(running, "InvocationsProcessed", **VARIANT) == 3, "they are counted, after their outcomes")
    assert total(running, "InvocationFailures", **VARIANT) == 0
    assert total(running, "TimeInBacklog", "SampleCount", **VARIANT) == 3
    until(lambda: total(running, "ApproximateBacklogSizePerInstance", "Minimum", EndpointName=NAME) == 0, "it is empty")
    (activity,) = running.client("application-autoscaling").describe_scaling_activities(ServiceNamespace="sagemaker")[
        "ScalingActivities"
    ]
    assert activity["Cause"] == "monitor alarm wake in state ALARM triggered policy wake"


def keys(s3: Any) -> set[str]:
    return {object_["Key"] for object_ in s3.list_objects_v2(Bucket="out").get("Contents", [])}
