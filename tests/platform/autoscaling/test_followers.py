"""
An endpoint with inference components, scaled by the instances of its variant: the copies follow.

The real gateway publishes, the real autoscaler and reconciler act on a real store; workers are played and the clock is
moved by hand.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.platform.autoscaling.api.requests import read_key
from headrace.platform.autoscaling.loops.autoscaler import Autoscaler
from headrace.platform.autoscaling.loops.waker import Waker
from headrace.platform.autoscaling.planning.targets import VARIANT_DIMENSION
from headrace.platform.autoscaling.records.capacity import write_capacity
from headrace.platform.cloudwatch.series.memory import MemorySeries
from headrace.platform.cluster.launcher import WorkerSpec
from headrace.platform.control.api.endpoints import update_weights
from headrace.platform.control.loops.timing import WATCH_PAUSE_S
from headrace.platform.control.model.component import Density
from headrace.platform.control.model.worker import WORKER
from headrace.platform.gateway.metrics import InvocationRecord
from headrace.platform.gateway.publishing import Publisher, Sampler
from headrace.platform.host.operations import OPERATIONS
from headrace.platform.state.routes import ROUTE, Route, WakeTarget
from headrace.testing.fake_launcher import fails_after, ready_after
from tests.platform.control.components.scene import NEED, Scene
from tests.platform.control.planning.host_world import managed
from tests.platform.control.support import AWS_SCOPE

from .test_autoscaler import steps

VARIANT = {
    "ServiceNamespace": "sagemaker",
    "ResourceId": "endpoint/ep/variant/v",
    "ScalableDimension": VARIANT_DIMENSION,
}
KEY = read_key(VARIANT)
COMPONENT = {
    "ServiceNamespace": "sagemaker",
    "ResourceId": "inference-component/c",
    "ScalableDimension": "sagemaker:inference-component:DesiredCopyCount",
}
TRACKING = {
    "PolicyType": "TargetTrackingScaling",
    "TargetTrackingScalingPolicyConfiguration": {
        "TargetValue": 20.0,
        "PredefinedMetricSpecification": {"PredefinedMetricType": "SageMakerVariantInvocationsPerInstance"},
        "ScaleOutCooldown": 60,
        "ScaleInCooldown": 300,
    },
}
"""As the Llama 3 article has it."""
NO_MEMORY = "The model needs 2.0 GiB and 1.1 GiB are free."


class Hosted(Scene):
    """The endpoint `ep` whose component `c` is asked so many times a minute."""

    def __init__(self, *, is_strict: bool = False) -> None:
        super().__init__(is_strict=is_strict)
        self.per_minute = 0
        self.room = 100
        """Workers that the machine carries."""
        self.series = MemorySeries()
        self.scaler = Autoscaler(
            store=self.store, series=self.series, aws_scope=AWS_SCOPE, is_strict=is_strict, clock=self.clock
        )
        self.publisher = Publisher(self.series, is_strict=is_strict, clock=lambda: self.clock() - 5)
        self.sampler = Sampler(
            publisher=self.publisher,
            sink=self.series,
            routes=lambda: {"ep": self.route},
            loads=dict,
            held=dict,
            clock=lambda: self.clock() - 5,
        )
        self._is_changed = True
        self.store.subscribe(self._note_change)

    def _note_change(self) -> None:
        self._is_changed = True

    def _script(self, spec: WorkerSpec) -> Any:
        if len(list(self.machine.living())) >= self.room:
            return fails_after(message=NO_MEMORY)
        return ready_after(1.0)

    @property
    def route(self) -> Route:
        found = self.store.get(ROUTE, "ep")
        assert found is not None
        return found.spec

    def call(self, operation: str, service: str = "application-autoscaling", **params: Any) -> dict[str, Any]:
        return OPERATIONS[service, operation](self.context, params)

    def register(self, minimum: int = 1, maximum: int = 2, identity: dict[str, str] = VARIANT) -> None:
        self.call("RegisterScalableTarget", **identity, MinCapacity=minimum, MaxCapacity=maximum)

    def activities(self, **more: Any) -> list[dict[str, Any]]:
        """The activities of the variant, oldest first."""
        found = self.call("DescribeScalingActivities", **VARIANT, **more)
        return list(reversed(found["ScalingActivities"]))

    def alarm(self, name: str, arn: str, **members: Any) -> None:
        pairs = (("EndpointName", "ep"), ("VariantName", "v"))
        self.call(
            "PutMetricAlarm",
            "cloudwatch",
            **{
                "AlarmName": name,
                "AlarmActions": [arn],
                "MetricName": "InvocationsPerInstance",
                "Namespace": "AWS/SageMaker",
                "Dimensions": [{"Name": key, "Value": value} for key, value in pairs],
                "Statistic": "Sum",
                "Period": 60,
                "EvaluationPeriods": 1,
                "Threshold": 20.0,
                "ComparisonOperator": "GreaterThanThreshold",
                **members,
            },
        )

    async def pass_time(self, seconds: float) -> None:
        """Ask, measure, scale and reconcile: every ten seconds, and 2.5 seconds after anything has changed."""
        for _ in range(int(seconds // 10)):
            for _ in range(self.per_minute // 6):
                ended = InvocationRecord(request_id="r", api="InvokeEndpoint", endpoint="ep", started_s=0.0)
                ended.variant, ended.component = "v", "c"
                self.publisher.publish(ended, self.route)
            for quarter in range(4):
                self.clock.advance(2.5)
                self.sampler.sample()
                if quarter == 0 or self._is_changed:
                    self._is_changed = False
                    self.scaler.run_pass()
                    pause_s = await self.reconciler.pass_once()
                    self._is_changed |= pause_s < WATCH_PAUSE_S  # something is in progress

    async def until(self, counts: tuple[int, int], limit_s: int) -> None:
        """Pass time until there are so many instances and copies of `c`."""
        for _ in range(limit_s // 10):
            if self.there() == counts:
                return
            await self.pass_time(10)
        assert self.there() == counts, self.activities(IncludeNotScaledActivities=True)

    def there(self) -> tuple[int, int]:
        state, copies = self.status("c")
        return (self.num_instances(), copies) if state == "InService" else (-1, -1)

    def per_instance(self) -> Counter[str]:
        """Instance -> living copies."""
        return Counter(worker.spec.copy.instance for worker in self.store.list(WORKER) if worker.spec.copy is not None)

    def density(self, name: str = "c") -> Density | None:
        return self.record(name).spec.density


@pytest.fixture
def scene() -> Iterator[Hosted]:
    made = Hosted()
    yield made
    made.store.close()


async def serving(scene: Hosted, copies: int = 4, **variant: Any) -> None:
    await scene.host(**variant)
    scene.create("c", copies=copies)
    await scene.settle()


async def test_the_article_s_policy_adds_an_instance_with_its_copies_and_takes_both_away(scene: Hosted) -> None:
    await serving(scene)
    scene.register()
    scene.call("PutScalingPolicy", **VARIANT, PolicyName="p", **TRACKING)
    scene.per_minute = 48
    await scene.until((2, 8), 300)
    assert sorted(scene.per_instance().values()) == [4, 4], "the new copies are on the new instance"
    scene.per_minute = 0
    await scene.pass_time(840)
    assert scene.there() == (2, 8), "not before 15 minutes below 90 % of the target"
    await scene.until((1, 4), 300)
    out, back = scene.activities()
    assert out["Description"] == "Setting desired instance count to 2."
    assert out["Cause"].startswith("monitor alarm TargetTracking-endpoint/ep/variant/v-AlarmHigh-")
    assert out["StatusCode"] == back["StatusCode"] == "Successful"
    assert out["Details"] == "Inference component c follows with 8 copies (declared: 4 for 1 instance)."
    assert "AlarmLow" in back["Cause"]
    assert back["Details"] == "Inference component c follows with 4 copies (declared: 4 for 1 instance)."
    await scene.pass_time(300)
    assert len(scene.activities()) == 2


@pytest.mark.parametrize("kind", ["step", "customized"])
async def test_steps_and_customized_metrics_of_the_variant_scale_it_too(scene: Hosted, kind: str) -> None:
    await serving(scene)
    scene.register(1, 3)
    pairs = [{"Name": "EndpointName", "Value": "ep"}, {"Name": "VariantName", "Value": "v"}]
    customized = {
        "MetricName": "InvocationsPerInstance",
        "Namespace": "AWS/SageMaker",
        "Dimensions": pairs,
        "Statistic": "Sum",
    }
    if kind == "step":
        policy = scene.call("PutScalingPolicy", **VARIANT, PolicyName="p", **steps(3, MetricIntervalLowerBound=0.0))
        scene.alarm("busy", policy["PolicyARN"])
    else:
        config = {"TargetValue": 20.0, "CustomizedMetricSpecification": customized}
        tracking = {"PolicyType": "TargetTrackingScaling", "TargetTrackingScalingPolicyConfiguration": config}
        scene.call("PutScalingPolicy", **VARIANT, PolicyName="p", **tracking)
    scene.per_minute = 60
    await scene.until((3, 12), 300)


async def test_a_component_that_is_a_target_itself_does_not_follow(scene: Hosted) -> None:
    await serving(scene, copies=2)
    scene.register(1, 3)
    await scene.pass_time(10)
    assert scene.density() == Density(copies=2, instances=1)
    scene.register(1, 4, COMPONENT)
    scene.register(3, 3)
    await scene.until((3, 2), 60)
    assert scene.density() is None
    scene.call("DeregisterScalableTarget", **COMPONENT)
    await scene.pass_time(10)
    assert scene.density() == Density(copies=2, instances=3)


async def test_copies_without_room_set_the_instances_back_and_are_retried_each_minute(
    scene: Hosted,
) -> None:
    await serving(scene)
    scene.room = 6
    scene.register(1, 2)
    scene.call("PutScalingPolicy", **VARIANT, PolicyName="p", **TRACKING)
    scene.per_minute = 48
    await scene.pass_time(300)
    await scene.until((1, 4), 60)
    failed = scene.activities()[0]
    assert failed["StatusCode"] == "Unfulfilled"
    assert NO_MEMORY in failed["Details"]
    assert failed["Details"].endswith("The desired instance count was set back to 1.")
    scene.room = 8
    await scene.until((2, 8), 300)
    await scene.pass_time(10)
    assert scene.activities()[-1]["StatusCode"] == "Successful"
    ended = [activity["EndTime"] for activity in scene.activities()]
    begun = [activity["StartTime"] for activity in scene.activities()]
    assert all(start >= end + 60 for end, start in zip(ended, begun[1:], strict=False))


async def test_instances_required_by_the_bounds_stay_and_their_copies_are_retried_each_minute(scene: Hosted) -> None:
    await serving(scene)
    scene.room = 6
    scene.register(2, 3)
    await scene.pass_time(40)
    (activity,) = scene.activities()
    assert activity["StatusCode"] == "Unfulfilled"
    assert NO_MEMORY in activity["Details"]
    assert "set back" not in activity["Details"]
    assert scene.there() == (2, 4)
    scene.room = 8
    await scene.until((2, 8), 120)


async def test_copies_that_fit_on_no_instance_are_reported_and_the_others_start(scene: Hosted) -> None:
    """Two components of a whole instance each, rounded up on three instances: one copy too many."""
    await scene.host(InitialInstanceCount=2)
    whole = {"ModelName": "m", "ComputeResourceRequirements": {**NEED, "NumberOfAcceleratorDevicesRequired": 4}}
    for name in ("c", "d"):
        scene.create(name, Specification=whole)
    await scene.settle()
    scene.register(2, 3)
    await scene.pass_time(10)
    scene.register(3, 3)
    await scene.pass_time(30)
    assert [scene.status(name) for name in ("c", "d")] == [("InService", 2), ("InService", 1)]
    (activity,) = scene.activities()
    assert activity["StatusCode"] == "Successful"
    assert "Inference component c follows with 2 copies (declared: 1 for 2 instances)." in activity["Details"]
    assert "1 of 2 copies are missing" in activity["Details"]
    await scene.pass_time(120)
    assert len(scene.activities()) == 1, "what has no room is not asked for again and again"


async def test_copies_set_by_the_user_are_declared_for_the_present_instances(
    scene: Hosted,
) -> None:
    await serving(scene)
    scene.register(2, 2)
    await scene.until((2, 8), 60)
    scene.scale("c", 4)
    await scene.until((2, 4), 60)
    assert scene.density() == Density(copies=4, instances=2)
    scene.register(1, 1)
    await scene.until((1, 2), 60)


async def test_instances_at_zero_have_no_copies_and_a_request_wakes_both(scene: Hosted) -> None:
    await serving(scene)
    scene.register(0, 2)
    await scene.pass_time(10)
    write_capacity(scene.store, AWS_SCOPE, KEY, 0)
    await scene.until((0, 0), 120)
    waker = Waker(scene.store, aws_scope=AWS_SCOPE, clock=scene.clock)
    for _ in range(3):
        waker.wake(WakeTarget(endpoint="ep", component="c"))
    waker.close()
    await scene.until((1, 4), 60)
    (activity,) = scene.activities()
    assert activity["Cause"] == "a request arrived while capacity was 0"
    assert activity["StatusCode"] == "Successful"


async def test_a_sleeping_component_without_instances_is_given_one(scene: Hosted) -> None:
    await serving(scene, copies=1)
    scene.scale("c", 0)
    await scene.settle()
    write_capacity(scene.store, AWS_SCOPE, KEY, 0)
    await scene.until((0, 0), 60)
    waker = Waker(scene.store, aws_scope=AWS_SCOPE, clock=scene.clock)
    waker.wake(WakeTarget(endpoint="ep", component="c"))
    waker.close()
    await scene.until((1, 1), 60)


async def test_after_deregistering_copies_stay_and_stop_following(scene: Hosted) -> None:
    await serving(scene)
    scene.register(2, 2)
    await scene.until((2, 8), 60)
    scene.call("DeregisterScalableTarget", **VARIANT)
    assert scene.density() is None
    changes = [{"VariantName": "v", "DesiredInstanceCount": 3}]
    update_weights(scene.context, {"EndpointName": "ep", "DesiredWeightsAndCapacities": changes})
    await scene.until((3, 8), 60)
    await scene.pass_time(60)
    assert scene.there() == (3, 8)


async def test_a_pass_interrupted_after_its_first_write_is_finished_by_another_autoscaler(scene: Hosted) -> None:
    await serving(scene)
    scene.register(1, 2)
    await scene.pass_time(10)
    write_capacity(scene.store, AWS_SCOPE, KEY, 2)
    scene.scaler = Autoscaler(store=scene.store, series=scene.series, aws_scope=AWS_SCOPE, clock=scene.clock)
    await scene.until((2, 8), 60)


async def test_a_variant_is_not_scaled_while_a_component_on_it_is_updated(scene: Hosted) -> None:
    await serving(scene, copies=2)
    scene.register(1, 2)
    scene.call("PutScalingPolicy", **VARIANT, PolicyName="p", **TRACKING)
    scene.per_minute = 48
    await scene.pass_time(120)
    policy = {"MaximumBatchSize": {"Type": "COPY_COUNT", "Value": 1}, "WaitIntervalInSeconds": 200}
    scene.update("c", "n", RollingUpdatePolicy=policy)
    await scene.pass_time(180)
    assert scene.activities() == []
    (told,) = scene.activities(IncludeNotScaledActivities=True)
    assert [reason["Code"] for reason in told["NotScaledReasons"]] == ["TargetServicePutResourceAsUnscalable"]
    await scene.until((2, 4), 600)


async def test_with_managed_instance_scaling_instances_come_as_the_copies_need_them(scene: Hosted) -> None:
    await serving(scene, copies=2, **managed(1, 2, strategy="IDLE_RELEASE"))
    scene.register(1, 3)
    await scene.pass_time(10)
    write_capacity(scene.store, AWS_SCOPE, KEY, 3)
    await scene.until((2, 6), 60)
    write_capacity(scene.store, AWS_SCOPE, KEY, 1)
    await scene.pass_time(30)
    assert scene.there() == (2, 2), "an empty instance is kept for its cooldown"
    await scene.until((1, 2), 600)


async def test_in_strict_mode_the_policy_has_no_data_and_copies_do_not_follow() -> None:
    scene = Hosted(is_strict=True)
    await serving(scene)
    scene.register(1, 3)
    scene.call("PutScalingPolicy", **VARIANT, PolicyName="p", **TRACKING)
    scene.per_minute = 120
    await scene.pass_time(300)
    assert scene.there() == (1, 4)
    alarms = scene.call("DescribeAlarms", "cloudwatch")["MetricAlarms"]
    assert {alarm["StateValue"] for alarm in alarms} == {"INSUFFICIENT_DATA"}
    scene.register(2, 3)
    await scene.until((2, 4), 60)
    assert scene.density() is None
    scene.store.close()
