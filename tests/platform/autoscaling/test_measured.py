"""Policies on what the gateway really publishes: an idle variant is scaled in, a queue scales from zero and back."""

from collections.abc import Callable, Iterator

import pytest

from headrace.platform.gateway.async_queue import AsyncPublisher, Backlog
from headrace.platform.gateway.metrics import InvocationRecord
from headrace.platform.gateway.publishing import Publisher, Sampler
from headrace.platform.state.routes import AsyncOutput, Fleet, Replica, Route, VariantRoute

from .support import World


def route(num_replicas: int, *, is_asynchronous: bool) -> Route:
    replicas = tuple(Replica(worker=f"w{number}", url=f"http://w{number}") for number in range(num_replicas))
    variant = VariantRoute(name="a", weight=1.0, fleets=(Fleet(generation=1, share=1.0, replicas=replicas),))
    return Route(
        endpoint="e",
        endpoint_arn="arn",
        endpoint_uid="uid",
        created_s=0.0,
        status="InService",
        variants=(variant,),
        async_output=AsyncOutput(output_path="s3://b") if is_asynchronous else None,
    )


@pytest.fixture
def world() -> Iterator[World]:
    made = World(count=3)
    yield made
    made.close()


def tracking(target: float, **metric: object) -> dict[str, object]:
    config = {"TargetValue": target, "ScaleInCooldown": 60, "ScaleOutCooldown": 300, **metric}
    return {"PolicyType": "TargetTrackingScaling", "TargetTrackingScalingPolicyConfiguration": config}


def measure(world: World, num_asked: Callable[[], int]) -> None:
    """Let a gateway look at the variant every ten seconds, and so many requests end in between."""
    routes: dict[str, Route] = {}
    publisher = Publisher(world.series, clock=lambda: world.now_s - 5)
    sampler = Sampler(
        publisher=publisher,
        sink=world.series,
        routes=lambda: routes,
        loads=dict,
        held=dict,
        clock=lambda: world.now_s - 5,
    )

    def load(serving: int) -> None:
        routes["e"] = route(serving, is_asynchronous=False)
        sampler.sample()
        for _ in range(num_asked()):
            ended = InvocationRecord(request_id="r", api="InvokeEndpoint", endpoint="e", variant="a", started_s=0.0)
            publisher.publish(ended, routes["e"])

    world.load = load


def test_a_variant_without_requests_is_scaled_in_by_its_invocations(world: World) -> None:
    """Without a measurement there would be no data, and target tracking never scales in by that."""
    predefined = {"PredefinedMetricType": "SageMakerVariantInvocationsPerInstance"}
    world.register(1, 6)
    world.put_policy(**tracking(30.0, PredefinedMetricSpecification=predefined))
    asked = [20]
    measure(world, lambda: asked[0])
    world.pass_time(400)
    assert world.capacities[-1] == 4, "120 a minute, 30 for each"
    asked[0] = 0
    world.pass_time(1500)
    assert world.capacities[-1] == 1


def test_a_queue_scales_its_endpoint_to_zero_from_there_and_back(world: World) -> None:
    """AWS's guide: target tracking of the backlog by instance, and a step policy that leaves zero."""
    customized = {
        "MetricName": "ApproximateBacklogSizePerInstance",
        "Namespace": "AWS/SageMaker",
        "Dimensions": [{"Name": "EndpointName", "Value": "e"}],
        "Statistic": "Average",
    }
    world.register(0, 5)
    world.put_policy(**tracking(5.0, CustomizedMetricSpecification=customized))
    leave_zero = {
        "AdjustmentType": "ChangeInCapacity",
        "MetricAggregationType": "Average",
        "Cooldown": 300,
        "StepAdjustments": [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}],
    }
    policy = world.put_policy("leave-zero", PolicyType="StepScaling", StepScalingPolicyConfiguration=leave_zero)
    world.call(
        "PutMetricAlarm",
        "cloudwatch",
        AlarmName="backlog-without-capacity",
        AlarmActions=[policy["PolicyARN"]],
        MetricName="HasBacklogWithoutCapacity",
        Namespace="AWS/SageMaker",
        Dimensions=[{"Name": "EndpointName", "Value": "e"}],
        Statistic="Average",
        EvaluationPeriods=2,
        DatapointsToAlarm=2,
        Threshold=1.0,
        ComparisonOperator="GreaterThanOrEqualToThreshold",
        TreatMissingData="missing",
        Period=60,
    )
    backlog = Backlog()
    publisher = AsyncPublisher(world.series, clock=lambda: world.now_s - 5)

    def load(serving: int) -> None:
        publisher.publish_backlogs({"e": route(serving, is_asynchronous=True)}, {"e": backlog})

    world.load = load
    world.pass_time(1500)
    assert world.capacities[-1] == 0, "nothing waits"
    backlog.size, backlog.oldest_s = 20, world.now_s
    world.pass_time(1200)
    assert world.capacities[-1] == 4, "20, 5 for each"
    assert 1 in world.capacities[world.capacities.index(0) :], "one first, as nothing is divided by zero"
    backlog.size = 0
    world.pass_time(2000)
    assert world.capacities[-1] == 0
