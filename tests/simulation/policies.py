"""Scaling policies: clients that publish the metric of their alarms, and the rules of what the policies then do."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Final

from benchmarks.chaos.history import EndpointState
from benchmarks.harness.platforms import VARIANT

from tests.simulation.clients import Clients
from tests.simulation.scenario import Operation

FOLLOWING: Final = "following"
"""The endpoint that follows a metric."""
_BOUNDS: Final = {"MinCapacity": 1, "MaxCapacity": 3}
_TARGET: Final = {
    "ServiceNamespace": "sagemaker",
    "ResourceId": f"endpoint/{FOLLOWING}/variant/{VARIANT}",
    "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
}
_COOLDOWN_S: Final = 20.0
_METRIC: Final = {"Namespace": "Application", "MetricName": "Work"}
_PUBLISHED_S: Final = 45.0
"""Time for which an operation publishes the metric: two steps, if the cooldown allows them."""
_PAUSE_S: Final = 4.0
_AUTOSCALING: Final = "application-autoscaling"
_UNSETTLED: Final = frozenset({"Pending", "InProgress"})
_COUNTED: Final = frozenset({"Successful", "Unfulfilled"})
"""The ends of activities after which a cooldown begins."""


@dataclass
class Policies:
    """An endpoint with a step policy for each direction; each adds or removes an instance."""

    kinds: ClassVar = ("policy",)
    clients: Clients
    findings: list[str] = field(default_factory=list)
    _value: float = 0.0
    _until_s: float = 0.0
    """When the publication ends; 0 if there is none."""
    _activities: list[Any] = field(default_factory=list)
    """The activities of the policies, oldest first."""

    async def prepare(self) -> None:
        """Create the endpoint, its target, and a policy with an alarm for each direction."""
        config = await self.clients.define(1)
        await self.clients.call(
            "CreateEndpoint", done="already existing", EndpointName=FOLLOWING, EndpointConfigName=config
        )
        self.clients.world.history.asked[FOLLOWING] = EndpointState(config=config, count=1)
        self.clients.counts[FOLLOWING] = {1, 2, 3}
        await self.clients.until_changeable(FOLLOWING)
        await self.clients.call("RegisterScalableTarget", _AUTOSCALING, **_TARGET, **_BOUNDS)
        for name, step, relation, threshold in (
            ("out", {"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}, "GreaterThanThreshold", 5.0),
            ("in", {"MetricIntervalUpperBound": 0.0, "ScalingAdjustment": -1}, "LessThanThreshold", 2.0),
        ):
            steps = {
                "AdjustmentType": "ChangeInCapacity",
                "StepAdjustments": [step],
                "Cooldown": int(_COOLDOWN_S),
            }
            policy = await self.clients.call(
                "PutScalingPolicy",
                _AUTOSCALING,
                **_TARGET,
                PolicyName=name,
                PolicyType="StepScaling",
                StepScalingPolicyConfiguration=steps,
            )
            alarm = {"AlarmName": name, "ComparisonOperator": relation, "Threshold": threshold, "Statistic": "Average"}
            periods = {"Period": 10, "EvaluationPeriods": 1, "AlarmActions": [policy["PolicyARN"]]}
            await self.clients.call("PutMetricAlarm", "cloudwatch", **_METRIC, **alarm, **periods)

    async def run(self, operation: Operation) -> None:
        """Publish much work, or little, until another operation does or for a while."""
        now_s, is_publishing = self.clients.world.loop.now_s, bool(self._until_s)
        self._value, self._until_s = 10.0 * (operation.amount % 2), now_s + _PUBLISHED_S
        while not is_publishing and self.clients.world.loop.now_s < self._until_s:
            datum = {"MetricName": _METRIC["MetricName"], "Value": self._value, "StorageResolution": 1}
            await self.clients.call("PutMetricData", "cloudwatch", Namespace=_METRIC["Namespace"], MetricData=[datum])
            await asyncio.sleep(_PAUSE_S)
        if not is_publishing:
            self._until_s = 0.0

    async def describe(self) -> list[str]:
        found = await self.clients.call("DescribeScalingActivities", _AUTOSCALING, **_TARGET, MaxResults=50)
        activities = [activity for activity in found["ScalingActivities"] if "triggered policy" in activity["Cause"]]
        self._activities = sorted(activities, key=lambda activity: activity["StartTime"])
        unsettled = [activity for activity in self._activities if activity["StatusCode"] in _UNSETTLED]
        endpoint = await self.clients.call("DescribeEndpoint", EndpointName=FOLLOWING)
        (variant,) = endpoint["ProductionVariants"]
        is_reached = variant["DesiredInstanceCount"] == variant["CurrentInstanceCount"]
        if not (is_reached or endpoint.get("FailureReason")):  # what was asked for stays, also if it was rolled back
            unsettled.append(variant)
        alarms = (await self.clients.call("DescribeAlarms", "cloudwatch", StateValue="ALARM"))["MetricAlarms"]
        unsettled += [alarm["AlarmName"] for alarm in alarms]  # each may still scale
        return [f"The scaling of {FOLLOWING} has not settled: {activity}." for activity in unsettled]

    async def check(self) -> list[str]:
        return list(self._wrong())

    def _wrong(self) -> Iterator[str]:
        """Yield the scalings beyond the bounds, and those that began in the cooldown of the one before."""
        for activity in self._activities:
            if not _BOUNDS["MinCapacity"] <= _capacity(activity) <= _BOUNDS["MaxCapacity"]:
                yield f"A policy has set {activity['Description']}"
        if self.clients.world.invariants.has_jumped:
            return
        counted = [activity for activity in self._activities if activity["StatusCode"] in _COUNTED]
        for before, activity in pairwise(counted):
            passed_s = activity["StartTime"] - before["EndTime"]
            if _direction(before) == _direction(activity) and passed_s < _COOLDOWN_S:
                yield f"{FOLLOWING} is scaled {_direction(activity)} again after {passed_s:.1f} s, within the cooldown."


def _capacity(activity: Any) -> int:
    return int(activity["Description"].rstrip(".").rpartition(" ")[2])


def _direction(activity: Any) -> str:
    """Return the name of the policy that has led to an activity."""
    return str(activity["Cause"]).rpartition(" ")[2]
