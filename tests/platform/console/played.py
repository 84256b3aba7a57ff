"""An endpoint `e` whose variant `a` was scaled for real by a played load: out at its height, in after it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.control.app import ControlApp
from headrace.control.metrics.capacities import CapacityRecorder
from tests.control.autoscaling.support import CONCURRENCY, World
from tests.control.support import SITE, ListedLogs
from tests.platform.fake_platform import NOW_S, FakePlatform

LASTS_S = 2400
TRACKING: dict[str, Any] = {
    "PolicyType": "TargetTrackingScaling",
    "TargetTrackingScalingPolicyConfiguration": {
        "TargetValue": 4.0,
        "PredefinedMetricSpecification": {
            "PredefinedMetricType": "SageMakerVariantConcurrentRequestsPerModelHighResolution"
        },
        "ScaleOutCooldown": 60,
        "ScaleInCooldown": 60,
    },
}


def put_idle_policy(world: World) -> None:
    """A policy of one step whose alarm looks at an expression; nobody has looked at it yet."""
    step = {"MetricIntervalUpperBound": 0.0, "ScalingAdjustment": 1}
    policy = world.put_policy(
        "idle",
        PolicyType="StepScaling",
        StepScalingPolicyConfiguration={"AdjustmentType": "ExactCapacity", "StepAdjustments": [step]},
    )
    dimensions = [{"Name": name, "Value": value} for name, value in CONCURRENCY.dimensions]
    metric = {"Namespace": CONCURRENCY.namespace, "MetricName": CONCURRENCY.name, "Dimensions": dimensions}
    world.call(
        "PutMetricAlarm",
        "cloudwatch",
        AlarmName="quiet",
        AlarmActions=[policy["PolicyARN"]],
        Metrics=[
            {"Id": "one", "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Sum"}, "ReturnData": False},
            {"Id": "twice", "Expression": "one * 2", "Label": "Twice as many", "ReturnData": True},
        ],
        EvaluationPeriods=3,
        Threshold=0.5,
        ComparisonOperator="LessThanThreshold",
    )


@contextmanager
def played_world() -> Iterator[World]:
    """From 40 minutes ago until now: 9 requests at a time from the fifth to the twelfth minute, else none."""
    world = World(now_s=NOW_S - LASTS_S)
    try:
        recorder = CapacityRecorder(store=world.store, sink=world.series, clock=lambda: world.now_s)
        world.register(1, 3)
        world.put_policy("load", **TRACKING)
        for second in range(0, LASTS_S, 10):
            requests = 9 if 300 <= second < 720 else 0
            world.load = lambda serving, requests=requests: requests / max(1, serving)  # type: ignore[misc]
            world.pass_time(10)
            recorder.pass_once()
        put_idle_policy(world)
        yield world
    finally:
        world.close()


def show(platform: FakePlatform, world: World) -> None:
    """Let the platform tell of the played endpoint."""
    platform.add("e")["ProductionVariants"][0]["VariantName"] = "a"
    platform.control = ControlApp(
        world.store,
        site=SITE,
        logs=ListedLogs(),
        own_images={},
        is_strict=False,
        series=world.series,
        clock=lambda: world.now_s,
    )
