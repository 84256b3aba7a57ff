"""An endpoint `chat` that was scaled for real by an hour of played load: out twice as it grows, in twice as it goes."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from headrace.platform.control.app import ControlApp
from headrace.platform.control.loops.scraper import CapacityRecorder
from headrace.platform.host.operations import OPERATIONS
from tests.platform.autoscaling.support import World
from tests.platform.control.support import AWS_SCOPE, ListedLogs
from tests.platform.host.fake_platform import FakePlatform
from tests.platform.host.fake_resources import NOW_S

LASTS_S = 3540
ANSWER_S = 5
"""How long a request takes."""
QUIET_FROM_S = 240
"""Nothing is known before the hour, and FILL makes zeros of that: the second policy is put a little later."""
LOAD = ((0, 2.2), (6, 2.6), (12, 6.2), (18, 7.0), (23, 11.2), (31, 11.2), (37, 7.0), (46, 4.6), (52, 2.8), (60, 1.8))
"""Minute, and requests at a time."""
TRACKING: dict[str, Any] = {
    "PolicyType": "TargetTrackingScaling",
    "TargetTrackingScalingPolicyConfiguration": {
        "TargetValue": 4.0,
        "PredefinedMetricSpecification": {
            "PredefinedMetricType": "SageMakerVariantConcurrentRequestsPerModelHighResolution"
        },
        "ScaleOutCooldown": 60,
        "ScaleInCooldown": 120,
    },
}


def requests_at(second: int) -> float:
    """Requests in flight: along the hour's line, with some noise."""
    minute = second / 60
    (low, before), (high, after) = next(pair for pair in pairwise(LOAD) if pair[0][0] <= minute < pair[1][0])
    line = before + (after - before) * (minute - low) / (high - low)
    return line * (1 + 0.03 * math.sin(second / 17) + 0.02 * math.sin(second / 7))


def put_quiet_policy(world: World) -> None:
    """A policy of one step: its alarm looks at an expression, of a sum over its minute."""
    step = {"MetricIntervalUpperBound": 0.0, "ScalingAdjustment": 1}
    policy = world.put_policy(
        "chat-quiet",
        PolicyType="StepScaling",
        StepScalingPolicyConfiguration={"AdjustmentType": "ExactCapacity", "StepAdjustments": [step]},
    )
    invocations = world.metric("Invocations")
    dimensions = [{"Name": name, "Value": value} for name, value in invocations.dimensions]
    metric = {"Namespace": invocations.namespace, "MetricName": invocations.name, "Dimensions": dimensions}
    world.call(
        "PutMetricAlarm",
        "cloudwatch",
        AlarmName="chat-quiet",
        AlarmActions=[policy["PolicyARN"]],
        Metrics=[
            {"Id": "ended", "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Sum"}, "ReturnData": False},
            {"Id": "requests", "Expression": "FILL(ended, 0)", "Label": "Requests a minute", "ReturnData": True},
        ],
        EvaluationPeriods=3,
        Threshold=1.0,
        ComparisonOperator="LessThanThreshold",
    )


@contextmanager
def played_world() -> Iterator[World]:
    """The hour until now."""
    world = World(now_s=NOW_S - LASTS_S, endpoint="chat", variant="AllTraffic")
    try:
        recorder = CapacityRecorder(store=world.store, sink=world.series, clock=lambda: world.now_s)
        world.register(1, 3)
        world.put_policy("chat-load", **TRACKING)
        for second in range(0, LASTS_S, 10):
            if second == QUIET_FROM_S:
                put_quiet_policy(world)
            requests = requests_at(second)
            world.load = lambda serving, requests=requests: requests / max(1, serving)  # type: ignore[misc]
            ended = round(requests * 10 / ANSWER_S)
            world.series.put(world.metric("Invocations"), 1.0, count=ended, now_s=world.now_s + 5)
            world.pass_time(10)
            recorder.pass_once()
        yield world
    finally:
        world.close()


def show(platform: FakePlatform, world: World) -> None:
    """Let the platform tell of the played endpoint."""
    platform.add(world.endpoint)
    platform.control = ControlApp(
        world.store,
        OPERATIONS,
        aws_scope=AWS_SCOPE,
        logs=ListedLogs(),
        own_images={},
        is_strict=False,
        series=world.series,
        clock=lambda: world.now_s,
    )
