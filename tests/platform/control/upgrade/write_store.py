"""
Write the store of a platform that was stopped during deployments, and the responses of its API at that moment.

`python -m tests.platform.control.upgrade.write_store FILE` writes FILE (the database), FILE.sql (its dump) and
FILE.json (the responses). The fixtures in this folder were written by it at the commit aa594e0f: the oldest form of
records that is still read.
"""

import asyncio
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

from headrace.platform.autoscaling.api.requests import read_key
from headrace.platform.autoscaling.records.capacity import keep_copies
from headrace.platform.control.api.context import CallContext
from headrace.platform.host.access_keys import AccessKeys
from headrace.platform.host.operations import OPERATIONS
from headrace.platform.state.store import open_store
from headrace.testing.fake_launcher import FakeMachine, ManualClock, fails_after, ready_after
from tests.platform.control.support import AWS_SCOPE, IMAGE, ROLE, ListedLogs, reconciler_of

NEED = {"NumberOfAcceleratorDevicesRequired": 1, "MinMemoryRequiredInMb": 1024}
TYPE = "ml.p3.8xlarge"
TAGS = [{"Key": "team", "Value": "x"}]
ALL_TARGETS = {"ServiceNamespace": "sagemaker"}
DESCRIBING_CALLS = [
    *(
        ("sagemaker", "DescribeEndpoint", {"EndpointName": name})
        for name in ("plain", "updating", "scaled", "failed", "leaving", "host", "new")
    ),
    *(
        ("sagemaker", "DescribeInferenceComponent", {"InferenceComponentName": name})
        for name in ("named", "contained", "crowded", "broken", "typed")
    ),
    *(("sagemaker", "DescribeModel", {"ModelName": name}) for name in ("m", "bad")),
    ("sagemaker", "DescribeEndpointConfig", {"EndpointConfigName": "host"}),
    ("sagemaker", "ListEndpoints", {}),
    ("sagemaker", "ListInferenceComponents", {}),
    ("sagemaker", "ListEndpointConfigs", {}),
    ("sagemaker", "ListModels", {"NameContains": "a"}),
    ("sagemaker", "ListTags", {"ResourceArn": "arn:aws:sagemaker:us-east-1:123456789012:endpoint/plain"}),
    ("cloudwatch", "DescribeAlarms", {}),
    ("cloudwatch", "DescribeAlarmHistory", {"AlarmName": "errors"}),
    ("application-autoscaling", "DescribeScalableTargets", ALL_TARGETS),
    ("application-autoscaling", "DescribeScalingPolicies", ALL_TARGETS),
    ("application-autoscaling", "DescribeScheduledActions", ALL_TARGETS),
    ("application-autoscaling", "DescribeScalingActivities", ALL_TARGETS),
]


class PlatformToStop:
    """A control plane on a database file whose time passes when `settle` says so."""

    def __init__(self, path: str) -> None:
        self.clock = ManualClock()
        self.store = open_store(path, now_s=self.clock)
        self._reconciler = reconciler_of(self.store, FakeMachine(clock=self.clock, script=_script), clock=self.clock)

    def call(self, service: str, operation: str, **params: Any) -> dict[str, Any]:
        """Call the handler of an operation."""
        context = CallContext(
            store=self.store,
            logs=ListedLogs(),
            aws_scope=AWS_SCOPE,
            now_s=self.clock(),
        )
        return OPERATIONS[service, operation](context, params)

    async def settle(self, seconds: float) -> None:
        """Run passes of the reconciler, one every half second."""
        for _ in range(int(seconds * 2)):
            self.clock.advance(0.5)
            await self._reconciler.pass_once()


def _script(spec: Any) -> Any:
    return fails_after(message="It is bad.") if spec.environment["HF_MODEL_ID"] == "bad" else ready_after(1.0)


async def main(path: str) -> None:
    platform = PlatformToStop(path)
    create_models(platform)
    create_configs(platform)
    create_alarm(platform)
    create_endpoints(platform)
    await platform.settle(8)
    create_components(platform)
    await platform.settle(8)
    start_update_of_component(platform)
    await platform.settle(4)
    request_more_copies_than_fit(platform)
    await platform.settle(6)
    scale_variants(platform)
    await platform.settle(6)
    add_scaling(platform)
    AccessKeys(platform.store).create(note="ours")
    start_update_of_endpoint(platform)
    await platform.settle(6)
    platform.call("sagemaker", "DeleteEndpoint", EndpointName="leaving")
    await platform.settle(0.5)
    platform.call("sagemaker", "CreateEndpoint", EndpointName="new", EndpointConfigName="plain")
    described: dict[str, Any] = {"now_s": platform.clock()}
    for service, operation, params in DESCRIBING_CALLS:
        described[f"{service} {operation} {json.dumps(params)}"] = platform.call(service, operation, **params)
    platform.store.close()
    with sqlite3.connect(path) as connection:
        Path(f"{path}.sql").write_text("\n".join(connection.iterdump()) + "\n")
    Path(f"{path}.json").write_text(json.dumps(described, indent=1, sort_keys=True) + "\n")


def create_models(platform: PlatformToStop) -> None:
    for name in ("m", "n", "bad"):
        container = {"Image": IMAGE, "Environment": {"HF_MODEL_ID": name}}
        platform.call(
            "sagemaker", "CreateModel", ModelName=name, PrimaryContainer=container, ExecutionRoleArn=ROLE, Tags=TAGS
        )


def create_configs(platform: PlatformToStop) -> None:
    def config(name: str, *variants: Any, **more: Any) -> None:
        platform.call(
            "sagemaker", "CreateEndpointConfig", EndpointConfigName=name, ProductionVariants=list(variants), **more
        )

    def variant(name: str, model: str, count: int = 1, **more: Any) -> dict[str, Any]:
        kind = {"InstanceType": "ml.g5.xlarge", "InitialInstanceCount": count}
        return {"VariantName": name, "ModelName": model, **kind, **more}

    host = {
        "VariantName": "v",
        "InstanceType": TYPE,
        "InitialInstanceCount": 2,
        "ManagedInstanceScaling": {
            "Status": "ENABLED",
            "MinInstanceCount": 1,
            "MaxInstanceCount": 2,
            "ScaleInPolicy": {"Strategy": "CONSOLIDATION", "CooldownInMinutes": 5},
        },
    }
    async_config = {"OutputConfig": {"S3OutputPath": "s3://b/out/"}}
    config("plain", variant("a", "m", 2, InitialVariantWeight=3.0), variant("b", "n"))
    config("next", variant("a", "n", 2), variant("b", "n"), AsyncInferenceConfig=async_config)
    config("bad", variant("a", "bad"))
    config("host", host, ExecutionRoleArn=ROLE)


def create_alarm(platform: PlatformToStop) -> None:
    platform.call(
        "cloudwatch",
        "PutMetricAlarm",
        AlarmName="errors",
        MetricName="Invocation5XXErrors",
        Namespace="AWS/SageMaker",
        Statistic="Sum",
        Period=60,
        EvaluationPeriods=1,
        Threshold=1.0,
        ComparisonOperator="GreaterThanThreshold",
    )
    platform.call("cloudwatch", "SetAlarmState", AlarmName="errors", StateValue="OK", StateReason="calm")


def create_endpoints(platform: PlatformToStop) -> None:
    platform.call("sagemaker", "CreateEndpoint", EndpointName="plain", EndpointConfigName="plain", Tags=TAGS)
    configs = {"updating": "plain", "scaled": "plain", "failed": "bad", "leaving": "plain", "host": "host"}
    for name, config in configs.items():
        platform.call("sagemaker", "CreateEndpoint", EndpointName=name, EndpointConfigName=config)


def create_components(platform: PlatformToStop) -> None:
    def component(name: str, copies: int, **specifications: Any) -> None:
        platform.call(
            "sagemaker",
            "CreateInferenceComponent",
            InferenceComponentName=name,
            EndpointName="host",
            RuntimeConfig={"CopyCount": copies},
            **specifications,
        )

    needs: dict[str, Any] = {"ComputeResourceRequirements": NEED}
    contained = {
        **needs,
        "Container": {"Image": IMAGE, "Environment": {"HF_MODEL_ID": "n"}},
        "StartupParameters": {"ContainerStartupHealthCheckTimeoutInSeconds": 300},
        "SchedulingConfig": {"PlacementStrategy": "BINPACK"},
    }
    typed = [{"InstanceType": kind, "ModelName": "n", **needs} for kind in (TYPE, "ml.g5.xlarge")]
    component("named", 2, Specification={**needs, "ModelName": "m"})
    component("contained", 1, Specification=contained)
    component("crowded", 1, Specification={**needs, "ModelName": "m"})
    component("broken", 1, Specification={**needs, "ModelName": "bad"})
    component("typed", 1, Specifications=typed)


def start_update_of_component(platform: PlatformToStop) -> None:
    one_copy = {"Type": "COPY_COUNT", "Value": 1}
    platform.call(
        "sagemaker",
        "UpdateInferenceComponent",
        InferenceComponentName="named",
        Specification={"ModelName": "n", "ComputeResourceRequirements": NEED},
        DeploymentConfig={"RollingUpdatePolicy": {"MaximumBatchSize": one_copy, "WaitIntervalInSeconds": 600}},
    )


def request_more_copies_than_fit(platform: PlatformToStop) -> None:
    platform.call(
        "sagemaker",
        "UpdateInferenceComponentRuntimeConfig",
        InferenceComponentName="crowded",
        DesiredRuntimeConfig={"CopyCount": 9},
    )


def scale_variants(platform: PlatformToStop) -> None:
    platform.call(
        "sagemaker",
        "UpdateEndpointWeightsAndCapacities",
        EndpointName="scaled",
        DesiredWeightsAndCapacities=[
            {"VariantName": "a", "DesiredInstanceCount": 1},
            {"VariantName": "b", "DesiredInstanceCount": 0},
        ],
    )


def add_scaling(platform: PlatformToStop) -> None:
    def scaled(resource: str) -> dict[str, Any]:
        dimension = "sagemaker:variant:DesiredInstanceCount"
        return {"ServiceNamespace": "sagemaker", "ResourceId": resource, "ScalableDimension": dimension}

    target = scaled("endpoint/plain/variant/a")
    tracking = {
        "TargetValue": 5.0,
        "PredefinedMetricSpecification": {"PredefinedMetricType": "SageMakerVariantInvocationsPerInstance"},
    }
    platform.call("application-autoscaling", "RegisterScalableTarget", **target, MinCapacity=1, MaxCapacity=4)
    platform.call(
        "application-autoscaling",
        "PutScalingPolicy",
        PolicyName="load",
        **target,
        PolicyType="TargetTrackingScaling",
        TargetTrackingScalingPolicyConfiguration=tracking,
    )
    platform.call(
        "application-autoscaling",
        "PutScheduledAction",
        ScheduledActionName="night",
        **target,
        Schedule="rate(1 day)",
        ScalableTargetAction={"MinCapacity": 1},
    )
    keep_copies(platform.store, AWS_SCOPE, read_key(scaled("endpoint/host/variant/v")), 2, now_s=platform.clock())


def start_update_of_endpoint(platform: PlatformToStop) -> None:
    canary = {
        "Type": "CANARY",
        "CanarySize": {"Type": "CAPACITY_PERCENT", "Value": 10},
        "WaitIntervalInSeconds": 600,
    }
    platform.call(
        "sagemaker",
        "UpdateEndpoint",
        EndpointName="updating",
        EndpointConfigName="next",
        DeploymentConfig={
            "AutoRollbackConfiguration": {"Alarms": [{"AlarmName": "errors"}]},
            "BlueGreenUpdatePolicy": {"TerminationWaitInSeconds": 60, "TrafficRoutingConfiguration": canary},
        },
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
